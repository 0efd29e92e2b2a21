"""What may change of an existing job, in CEL, from the identity table of `shardwise.job.identity`.

Fields of a run's identity never change; what shapes the run changes only while it is suspended; `suspend`,
`preflight`, `deadline` and `ttlAfterFinished` change at any time. CEL cannot tell null from a field that is left out:
that change of `clipNorm` is found by the trainer, when it compares the identity in the checkpoint.

All of it is one rule, since each write of a status checks it too, on an unchanged spec: that costs one comparison. Only
if the spec changed are the fields compared one by one, and the message names those that may not change.
"""

import json
from collections.abc import Iterator

from shardwise.job.fields import ITEM, Leaf, kind_of, leaves, named_fields, takes_null
from shardwise.job.flags import SCHEDULES
from shardwise.job.identity import IDENTITY_FIELDS, TOKENIZER, XLA_FLAGS
from shardwise.job.spec import TrainingJob
from shardwise.job.spec.job import JobSpec
from shardwise.protocol.strict_model import StrictModel
from shardwise_operator.api.cel import Rule

# A preset fills in sizes that are identity, so it is held too, though a file that writes all of them needs none.
_HELD = IDENTITY_FIELDS | {"spec.training.model.preset"}
# A list that may be left out is compared as a whole.
_PHASES = "training.data.phases"
# What resolving a job fills in, or a value that nobody may give.
_ITEM_DEFAULTS = {"spec.training.data.train.*.weight": "1.0", "spec.training.data.train.*.epochs": "0.0"}
_SHAPE = ("hardware", "training", "program", "recovery", "pod")
# A job is of the trainer or of a program for good. Of a program nothing else is part of what the run is.
_KIND = "has(self.training) == has(oldSelf.training)"
_TRAINS = "has(self.training) && has(oldSelf.training)"
_ROOTS = ("self", "oldSelf")

_MANAGED_BY = "managedBy never changes; delete the job and create it anew"
_OF_THE_RUN = "is part of what the run is and never changes; create a job of another name"
_WHILE_SUSPENDED = (
    "only suspend, preflight, deadline and ttlAfterFinished change while the job runs; set suspend: true first"
)


def immutability() -> Rule:
    """Return the transition rule of a job."""
    held = {leaf.name.removeprefix("spec."): _same(leaf) for leaf in leaves(TrainingJob) if leaf.name in _HELD}
    managed_by = _same_group("managedBy")
    suspended = " || ".join(f"has({root}.suspend) && {root}.suspend" for root in _ROOTS)
    shape = " && ".join(map(_same_group, _SHAPE))
    changed = ", ".join(f"{same} ? '' : '{name}'" for name, same in held.items())
    same = f"{_KIND} && (!({_TRAINS}) || {' && '.join(held.values())})"
    names = f"!({_KIND}) ? ['training'] : {_TRAINS} ? [{changed}].filter(name, name != '') : []"
    return Rule(
        at="spec",
        holds=f"self == oldSelf || {managed_by} && ({suspended} || {shape}) && {same}",
        message=f"!({managed_by}) ? '{_MANAGED_BY}' : [{names}]"
        f".map(names, names.size() == 0 ? '{_WHILE_SUSPENDED}' : names.join(', ') + ' {_OF_THE_RUN}')[0]",
        shows=True,
    )


def _same(leaf: Leaf) -> str:
    """Return whether a field is unchanged; a field left out has its default, if the models have a plain one."""
    name, default = leaf.name.removeprefix("spec."), _default(leaf)
    if leaf.name == TOKENIZER:
        return " == ".join(f"(!has({root}.{name}) || {root}.{name} == 'byte')" for root in _ROOTS)
    if leaf.name == XLA_FLAGS:
        now, before = (f"{root}.{name}" for root in _ROOTS)
        return f"{_holds(now, before)} && {_holds(before, now)}"
    if ITEM in leaf.path:
        return _same_items(leaf)
    if leaf.info.is_required() and not any(_optional(leaf)):
        return f"self.{name} == oldSelf.{name}"
    there = [" && ".join(f"has({root}.{part})" for part in _optional(leaf)) for root in _ROOTS]
    if default:
        return " == ".join(
            f"({is_there} ? {root}.{name} : {default})" for root, is_there in zip(_ROOTS, there, strict=True)
        )
    return _same_if_there(name, *there)


def _same_items(leaf: Leaf) -> str:
    """Return whether a field is unchanged in all items of a list."""
    group, _, _ = leaf.name.removeprefix("spec.").partition(f".{ITEM}.")
    if group == _PHASES:
        return _same_group(group)
    default = _default(leaf) or _ITEM_DEFAULTS.get(leaf.name, "")
    return " == ".join(_items(root, leaf, default) for root in _ROOTS)


def _items(root: str, leaf: Leaf, default: str) -> str:
    """Return the values of a field in all items of a list; one without a value or a default is an empty list."""
    group, _, item = leaf.name.removeprefix("spec.").partition(f".{ITEM}.")
    value = f"item.{item}"
    if not leaf.info.is_required():
        value = f"(has({value}) ? {value} : {default})" if default else f"(has({value}) ? [{value}] : [])"
    values = f"{root}.{group}.map(item, {value})"
    is_there = [f"has({root}.{part})" for part in _optional(leaf)]
    return f"({' && '.join(is_there)} ? {values} : [])" if is_there else values


def _holds(flags: str, others: str) -> str:
    """Return whether the options that change bits are among `others`; comparing filtered lists has no known cost."""
    free = f"flag.matches('^--({'|'.join(SCHEDULES)})')"
    return f"(!has({flags}) || {flags}.all(flag, {free} || (has({others}) && flag in {others})))"


def _same_group(name: str) -> str:
    return _same_if_there(name, *(f"has({root}.{name})" for root in _ROOTS))


def _same_if_there(name: str, is_there: str, was_there: str) -> str:
    return f"({is_there}) == ({was_there}) && (!({is_there}) || self.{name} == oldSelf.{name})"


def _optional(leaf: Leaf) -> Iterator[str]:
    """Yield the field, or the list that it is in, and the groups around it that a job may leave out; below the spec."""
    model: type[StrictModel] | None = JobSpec
    for depth, part in enumerate(map(str, leaf.path[1:]), start=2):
        if part == ITEM:
            return
        assert model is not None
        info = named_fields(model)[part]
        model = kind_of(info).model
        if not info.is_required() and depth > 2:  # that there is a training section is known
            yield ".".join(map(str, leaf.path[1:depth]))


def _default(leaf: Leaf) -> str:
    """Return the default of a field as CEL, or "" if it has none or if null is another value."""
    default = None if leaf.info.is_required() or takes_null(leaf.info) else leaf.info.default
    return "" if default is None else json.dumps(default)
