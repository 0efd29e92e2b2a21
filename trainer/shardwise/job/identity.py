"""What a run *is*: the fields that must stay the same when it goes on, and those that may change.

The trainer keeps `identity` in each checkpoint's manifest and compares it before it resumes; `--fork` starts a new run
from the old weights instead. The table (`job/identity_table.py`) covers every leaf of the job file, which a test holds.

- Data is known by its fingerprint, which the trainer makes from the contents of the files and the tokenizer; where
  they lie may change.
- `steps` counts where a source has `epochs`: its share of each step follows from both.
- The schedule counts as written. With `decaySteps` left out a cosine or linear fall ends at the last step, so a run
  that goes on with more `steps` follows the longer curve from there.
- `attention`, `remat`, mesh and microbatches change the order of sums, and so the last bits, but not the run.
- `badSteps` says what happens when something is wrong, and a run that ended there may go on with another value. What
  it leaves out by itself is kept with the checkpoints; `data.leaveOut` is the author's.
- A `program` knows by itself what it goes on with: all of it is free.
- `xlaFlags` count where they may change bits; those that only schedule are free (`job/flags.py` knows them).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from shardwise.job.document import shown
from shardwise.job.fields import ITEM, Path, dotted, leaves
from shardwise.job.flags import changing_bits
from shardwise.job.identity_table import TABLE
from shardwise.job.load import as_data
from shardwise.job.presets import BYTE_TOKENIZER
from shardwise.job.resolve import resolve
from shardwise.job.spec import TrainingJob

Json = None | bool | int | float | str

FINGERPRINT = "dataFingerprint"
BASE_FINGERPRINT = "baseFingerprint"

# Where the tokenizer's file lies may change, as on a laptop; its contents are part of the data's fingerprint.
TOKENIZER = "spec.training.data.tokenizer"
# Of the compiler's options those may change that only schedule.
XLA_FLAGS = "spec.training.xlaFlags"
_MODEL = "spec.training.model"
_PHASES = "spec.training.data.phases."
_SEQUENCES = "spec.training.batch.sequences"
_RAMP_UP = "spec.training.batch.rampUp."
_LEAVE_OUT = "spec.training.data.leaveOut"
_GROUPS = "spec.training.optimizer.groups"
_AVERAGE = "spec.training.optimizer.average.decay"
_STEPS = "spec.training.steps"
# What says which sequences a batch has; without epochs the steps are in no identity.
_ORDER = (FINGERPRINT, "spec.training.seed", f"{_MODEL}.seqLen", _SEQUENCES, _STEPS)


def _names(column: int) -> frozenset[str]:
    return frozenset(
        f"{group}.{name}".lstrip(".") for group, columns in TABLE.items() for name in columns[column].split()
    )


IDENTITY_FIELDS = _names(0)
FREE_FIELDS = _names(1)
_DIGEST_OF = {FINGERPRINT: "the tokens of data", BASE_FINGERPRINT: "the weights that startFrom names"}
_IN_ORDER = tuple(leaf.name for leaf in leaves(TrainingJob) if leaf.name in IDENTITY_FIELDS)


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One field that shows that two runs are not the same run."""

    path: str
    old: Json
    new: Json

    def __str__(self) -> str:
        """Return one line: `path: was X, is now Y`, and what that is of where no field has this name."""
        what = f" (a digest of {_DIGEST_OF[self.path]})" if self.path in _DIGEST_OF else ""
        return f"{self.path}: was {shown(self.old)}, is now {shown(self.new)}{what}"


def identity(job: TrainingJob, *, data_fingerprint: str) -> dict[str, Json]:
    """Return what makes `job` the run it is: flat, by dotted path, JSON-ready, and equal for equal runs.

    `data_fingerprint` is a digest of the tokens that the job trains on. A tokenizer's file is held as "file": its
    content is part of the fingerprint, and its path may change.
    """
    result: dict[str, Json] = dict.fromkeys(name for name in _IN_ORDER if ITEM not in name)
    for path, value in _flat(as_data(resolve(job)), ()):
        # Of a map the values are there, one by one; a list of numbers is one value, below.
        if _general(path) in IDENTITY_FIELDS or (isinstance(path[-1], str) and _general(path[:-1]) in IDENTITY_FIELDS):
            result[dotted(path)] = value
    if result[TOKENIZER] != BYTE_TOKENIZER:
        result[TOKENIZER] = "file"
    result[XLA_FLAGS] = " ".join(changing_bits(job.spec.training.xla_flags)) or None
    result = without_younger_fields(result)
    groups = job.spec.training.optimizer.groups
    result[_GROUPS] = len(groups)  # so that a run without any is known to have none
    result |= {f"{_GROUPS}.{at}.weightDecay": group.weight_decay for at, group in enumerate(groups)}
    data = job.spec.training.data
    if any(source.epochs for source in data.train):
        result[_STEPS] = job.spec.training.steps
    left_out = {_LEAVE_OUT: data.leave_out}
    left_out |= {f"spec.training.data.train.{at}.leaveOut": source.leave_out for at, source in enumerate(data.train)}
    result |= {path: " ".join(map(str, sorted(numbers))) or None for path, numbers in left_out.items()}
    if scaling := job.spec.training.model.rope_scaling:
        factors = {"shortFactors": scaling.short_factors, "longFactors": scaling.long_factors}
        # In their order: each is a pair's.
        result |= {f"{_MODEL}.ropeScaling.{name}": " ".join(map(str, each)) or None for name, each in factors.items()}
    return {**result, FINGERPRINT: data_fingerprint}


def differences(old: Mapping[str, Json], new: Mapping[str, Json]) -> list[Difference]:
    """Return the fields in which two identities differ, in the order of the job file."""
    paths = [*new, *(path for path in old if path not in new)]
    return [
        Difference(path=path, old=old.get(path), new=new.get(path)) for path in paths if old.get(path) != new.get(path)
    ]


def recorded_differences(held: Mapping[str, Json], new: Mapping[str, Json]) -> list[Difference]:
    """Return the differences from an identity that some release has recorded: a field that it lacks is none.

    A phase of other data is named all the same: it was not there, since whoever knows phases records them. So are a
    part of a ramp, an average of the weights, and a field of a group of parameters, which was left out where it had no
    value.
    """
    has_other_data = FINGERPRINT in held and held[FINGERPRINT] != new.get(FINGERPRINT)
    return [
        change
        for change in differences(held, new)
        if change.path in held
        or (_SEQUENCES in held and change.path.startswith((_RAMP_UP, _AVERAGE)))
        or (has_other_data and change.path.startswith(_PHASES))
        or (_GROUPS in held and change.path.startswith(f"{_GROUPS}."))
    ]


def other_order(held: Mapping[str, Json], new: Mapping[str, Json]) -> list[Difference]:
    """Return why a batch of one number is another one in both runs, as far as `held` has recorded it."""
    changes = recorded_differences(held, new)
    return [change for change in changes if change.path in _ORDER or change.path.startswith(_RAMP_UP)]


def without_younger_fields(known: Mapping[str, Json]) -> dict[str, Json]:
    """Return an identity in which fields of the model that came later are None where they say what runs always did.

    So it equals that of a checkpoint from before those fields.
    """
    return {**known, **{path: None for path, value in _before(known).items() if known.get(path) == value}}


def _before(known: Mapping[str, Json]) -> dict[str, Json]:
    """Return what newer model fields mean in a run recorded before they existed."""
    heads, embed, rotary = (known[f"{_MODEL}.{name}"] for name in ("heads", "embed", "position"))
    assert isinstance(heads, int)
    assert isinstance(embed, int)
    values: dict[str, Json] = {
        "kvHeads": heads,
        "headSize": embed // heads,
        "norm": "layer",
        "preNorm": True,
        "postNorm": False,
        "qkNorm": False,
        "qkNormOver": "head",
        "activation": "gelu",
        "rotaryPairs": "interleaved" if rotary == "rotary" else None,
        "ropeTheta": 10_000.0 if rotary == "rotary" else None,
        "attentionOutBias": known[f"{_MODEL}.attentionBias"],
        "mlpBias": True,
        "queryPreAttnScalar": float(embed // heads),
        "scaleEmbedding": False,
        "embeddingFactor": 1.0,
        "residualFactor": 1.0,
        "logitDivisor": 1.0,
        "attentionSinks": False,
        "ropeScaling.truncate": True,
        "experts.routerBias": False,
    }
    return {f"{_MODEL}.{name}": value for name, value in values.items()}


def _general(path: Path) -> str:
    return dotted(ITEM if isinstance(part, int) else part for part in path)


def _flat(value: Any, path: Path) -> Iterator[tuple[Path, Json]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _flat(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _flat(item, (*path, index))
    else:
        yield path, value
