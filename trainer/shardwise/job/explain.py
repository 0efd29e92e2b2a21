"""The job file's reference as rows, for `shardwise check --explain` and the documentation. Prints nothing itself."""

from dataclasses import dataclass

from shardwise.job.document import shown
from shardwise.job.fields import Leaf, leaves
from shardwise.job.spec import FilledFrom, TrainingJob, Unit
from shardwise.protocol.strict_model import StrictModel


@dataclass(frozen=True, kw_only=True)
class FieldRow:
    """One field: its path, what it holds and means; `default` is "required" if it must be given."""

    path: str
    type: str
    default: str
    unit: str
    range: str
    description: str


def rows(model: type[StrictModel] = TrainingJob) -> list[FieldRow]:
    """Return every field of the job file, or of another group, in its order; list items are shown as `*`."""
    return [_row(leaf) for leaf in leaves(model)]


def _row(leaf: Leaf) -> FieldRow:
    units = [note.name for note in leaf.info.metadata if isinstance(note, Unit)]
    return FieldRow(
        path=leaf.name,
        type=leaf.kind.name,
        default=_default(leaf),
        unit=units[0] if units else "duration" if leaf.kind.name == "duration" else "",
        range=leaf.kind.range,
        description=leaf.info.description or "",
    )


def _default(leaf: Leaf) -> str:
    filled = [note.words for note in leaf.info.metadata if isinstance(note, FilledFrom)]
    if filled:
        return filled[0]
    if leaf.info.is_required():
        return "required"
    default = leaf.info.get_default(call_default_factory=True, validated_data={})
    if isinstance(default, str):
        return default
    return "none" if default in (None, {}, ()) else shown(default)
