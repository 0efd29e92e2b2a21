"""The results of an evaluation, as metrics.jsonl, summary.json and `shardwise status` have them.

`heldOutLoss`, `heldOutAccuracy` and `tokens` are of the documents that the job holds out; `sets` has `loss`, `accuracy`
and `tokens` of every other set by its name, of questions `accuracyNorm` and `questions` too. Of prompts, of those that
are held out as well, `sets` has `reward`, `prompts`, `completionTokens` and `cutCompletions`, and no loss. What the
average of the weights makes of a set is in `sets` as well, by `average/` and the set's name.
"""

from collections.abc import Mapping
from typing import Any

HELD_OUT = "heldOut"
"""What the held-out documents are called among sets, whose own names have no capital letters."""
_OF_ALL = ("loss", "accuracy")
"""Of every set but those of prompts; None where it was no number."""


def of_average(name: str) -> str:
    """Return the name of what the average of the weights makes of a set."""
    return f"average/{name}"


def results(record: Mapping[str, Any]) -> dict[str, dict[str, float | None]]:
    """Return loss, accuracy and tokens by the name of the set; None is what was not a number."""
    found = {name: dict(values) for name, values in record.get("sets", {}).items()}
    if f"{HELD_OUT}Loss" not in record:
        return found
    held_out = {"loss": record[f"{HELD_OUT}Loss"], "accuracy": record.get(f"{HELD_OUT}Accuracy")}
    return {HELD_OUT: held_out | {"tokens": record.get("tokens")}, **found}


def answered(sets: Mapping[str, Mapping[str, float | None]]) -> dict[str, tuple[float, int]]:
    """Return the share that is answered right, and the number of questions, of those of `results` that have any."""
    found = ((name, values.get("accuracy"), values.get("questions")) for name, values in sets.items())
    return {name: (share, int(count)) for name, share, count in found if share is not None and count is not None}


def rewarded(sets: Mapping[str, Mapping[str, float | None]]) -> dict[str, tuple[float, int]]:
    """Return the mean reward, and the number of prompts, of those of `results` that have any."""
    found = ((name, values.get("reward"), values.get("prompts")) for name, values in sets.items())
    return {name: (reward, int(count)) for name, reward, count in found if reward is not None and count is not None}


def as_record(found: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """Return the record of results by the name of the set: the inverse of `results`."""
    held_out = found.get(HELD_OUT, {})
    record: dict[str, Any] = {}
    if "loss" in held_out:
        record = {f"{HELD_OUT}Loss": held_out["loss"], f"{HELD_OUT}Accuracy": held_out["accuracy"]}
        record["tokens"] = held_out["tokens"]
    sets = {name: dict(values) for name, values in found.items() if name != HELD_OUT or not record}
    return record | ({"sets": sets} if sets else {})


def by_name(record: Mapping[str, Any]) -> dict[str, float | None]:
    """Return what curves and trackers have, by their names: `heldOutLoss`, or `web/loss` of the set web."""
    return {
        f"{HELD_OUT}{key.capitalize()}" if name == HELD_OUT else f"{name}/{key}": values.get(key)
        for name, values in results(record).items()
        for key in ("loss", "accuracy", "accuracyNorm", "reward")
        if key in values or (key in _OF_ALL and "reward" not in values)
    }
