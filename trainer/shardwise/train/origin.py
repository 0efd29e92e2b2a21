"""What a run without a checkpoint of its own begins from: drawn weights, or another run's checkpoint (`startFrom`)."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from shardwise.job.identity import differences, other_order
from shardwise.job.paths import without_links
from shardwise.job.spec import TrainingJob
from shardwise.protocol.contract import CHECKPOINTS
from shardwise.protocol.errors import CheckpointError
from shardwise.protocol.orders import Orders
from shardwise.train.checkpoint import Manifest, Restored, read_manifest, steps
from shardwise.train.lora import is_adapter
from shardwise.train.peers import Peers

_MODEL = "spec.training.model."
# What an optimizer's arrays follow from.
_OF_OPTIMIZER = {"spec.training.precision.params": "precision", "spec.training.optimizer.name": "optimizer"}
PARAMS, AVERAGES = "params.", "average.weights."
"""What the paths of weights begin with in a state, and those of their averages."""
# What a model may be trained on with; the tokens are compared by the shape of the table.
_MAY_DIFFER = (
    "seqLen",
    "vocabSize",
    "ropeTheta",
    "localRopeTheta",
    "ropeScaling",
    "slidingWindow",
    "slidingWindowPattern",
    "attentionSoftcap",
    "logitSoftcap",
    "normEpsilon",
    "initStd",
    "dropout",
    "experts.balance",
    "experts.biasRate",
)


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The checkpoints that a run begins from: its own, or another run's."""

    root: str
    step: int | None
    """The checkpoint that was asked for; None is the newest that is whole."""
    partial: bool
    """Whether arrays that it lacks are made anew."""
    is_own: bool
    identity: Mapping[str, Any]
    """What the run that begins is (`shardwise.job.identity`)."""
    weights_only: bool = False

    def takes(self, path: str) -> bool:
        """Return whether the array of a state comes from the checkpoint, if it has it."""
        return not self.weights_only or path.startswith(PARAMS)


def newest_manifest(root: str, peers: Peers, only: int | None = None) -> Manifest | None:
    """Return the newest manifest, or that of the step `only`, that rank 0 can read; None if it finds none."""
    found = _newest_readable(root, only) if peers.writes else None
    step = peers.exchange("newest", "" if found is None else str(found.step))[0]
    if found is not None or not step:
        return found
    return read_manifest(root, int(step))


def _newest_readable(root: str, only: int | None) -> Manifest | None:
    for step in reversed(steps(root)) if only is None else [only]:
        try:
            return read_manifest(root, step)
        except CheckpointError:  # reported when the state is restored
            continue
    return None


def origin_of(
    job: TrainingJob, root: str, identity: Mapping[str, Any], newest: Manifest | None, orders: Orders, peers: Peers
) -> Origin:
    """Return what the run begins from, the same on every process.

    What is below `root` goes first, also if it is damaged: a run never begins anew beside its own checkpoints.
    `newest` is what is newest there.

    Raises:
        CheckpointError: a run that trains a model's weights would begin from adapters, or from the whole state of a run
            in another precision or of another optimizer; or one that trains adapters would go back from the weights
            that they are for.

    """
    _refuse_to_go_back_from_base(job, root, orders)
    origin = _origin_of(job, root, identity, newest, orders, peers)
    is_newest = origin.is_own and origin.step is None
    held = newest if is_newest else newest_manifest(origin.root, peers, origin.step)
    if held is not None and job.spec.training.lora is None:
        refuse_adapters(origin.root, held)
    if not origin.is_own and not origin.weights_only:
        refuse_other_optimizer(origin, held)
    return origin


def _origin_of(
    job: TrainingJob, root: str, identity: Mapping[str, Any], newest: Manifest | None, orders: Orders, peers: Peers
) -> Origin:
    # Imported weights come without an optimizer's state, which is initialised as a fork's would be.
    partial = orders.fork or (newest is not None and newest.kind == "weights")
    own = Origin(root=root, step=orders.step, partial=partial, is_own=True, identity=identity)
    asked = job.spec.training.start_from
    if (
        asked is None
        or job.spec.training.lora is not None
        or newest is not None
        or orders.step is not None
        or orders.committed is not None
    ):
        return own
    saved = steps(root) if peers.writes else []
    if json.loads(peers.exchange("own checkpoints", json.dumps(saved))[0]):
        return own
    return Origin(
        root=checkpoints_at(asked.path),
        step=asked.step,
        partial=False,
        is_own=False,
        identity=identity,
        weights_only=asked.restore == "weights",
    )


def origin_below(job: TrainingJob, root: str) -> int | None:
    """Return the step that the job begins from if it lies below the run's own `root`, as imported weights do."""
    asked = job.spec.training.start_from
    # The launcher hands on the run directory without links, and the job may name it through one.
    return asked.step if asked and without_links(checkpoints_at(asked.path)) == without_links(root) else None


def checkpoints_at(path: str) -> str:
    """Return the folder of checkpoints that a path means: that of a run directory, or the path itself."""
    below = Path(path) / CHECKPOINTS
    return str(below) if "://" not in path and below.is_dir() else path


def refuse_adapters(root: str, manifest: Manifest) -> None:
    """Raise a CheckpointError if a checkpoint that is to give a model's weights holds adapters: all else was drawn."""
    if any(is_adapter(path) for path in manifest.arrays):
        raise CheckpointError(
            f"{root}: step {manifest.step} holds adapters, expected the weights of a model: write that run's model by "
            "shardwise export, make a checkpoint of it by shardwise import, and name that in training.startFrom"
        )


def _refuse_to_go_back_from_base(job: TrainingJob, root: str, orders: Orders) -> None:
    """Raise a CheckpointError if a fork would set aside, and later replace, weights that its own starts read."""
    training = job.spec.training
    base = origin_below(job, root) if training.lora or training.has_reference else None
    if base is not None and orders.step is not None and base > orders.step:
        raise CheckpointError(
            f"training.startFrom: given step {base} of {root}, which the run itself goes back from with --step "
            f"{orders.step}: it would set aside weights that each start reads again, and save over them. Fork from "
            f"them with --step {base}, or give the run a directory of its own by another --dir or checkpoint.path"
        )


def refuse_other_optimizer(origin: Origin, held: Manifest | None) -> None:
    """Raise a CheckpointError if all of a state is asked for whose optimizer is another, or has other weights.

    That of bfloat16 parameters has other arrays than that of float32 ones. Lion's momentum has the name of AdamW's.
    """
    for change in differences(held.identity, origin.identity) if held else []:
        what = _OF_OPTIMIZER.get(change.path)
        if what and held and change.path in held.identity:
            raise CheckpointError(
                f"{origin.root}: the whole state is asked for, and it is of another {what}: {change}. Set "
                f"{change.path.removeprefix('spec.training.')} to what it was, or training.startFrom.restore: weights, "
                "which begins with the weights alone"
            )


def refuse_other_model(origin: Origin, restored: Restored | None, show: Callable[[str], None]) -> None:
    """Raise a CheckpointError if another run's checkpoint is not there or is of another model; show what it gave."""
    if restored is None:
        raise CheckpointError(
            f"{origin.root} holds no checkpoint; expected those of a run or of imported weights: correct "
            "training.startFrom.path"
        )
    held = restored.manifest.identity
    shared = [change for change in differences(held, origin.identity) if change.path in held]
    changed = [change for change in shared if change.path.startswith(_MODEL)]
    names = {change: change.path.removeprefix(_MODEL) for change in changed}
    free = [change for change, name in names.items() if {name, name.split(".")[0]} & {*_MAY_DIFFER}]
    if wrong := [change for change in changed if change not in free]:
        lines = "\n".join(f"  {change}" for change in wrong)
        raise CheckpointError(
            f"{origin.root}: step {restored.step} is of another model than the job's:\n{lines}\n"
            "Change the job to what the checkpoint has, or training.startFrom to a checkpoint of this model."
        )
    what = "weights" if origin.weights_only else "state"
    show(f"beginning with the {what} of step {restored.step} of {origin.root}")
    for change in free:
        show(f"which differs from the job in {change}")
    for change in [] if origin.weights_only else other_order(held, origin.identity):
        show(f"and goes on with other batches than that run would have: {change}")
