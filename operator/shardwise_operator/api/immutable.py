"""What may change of a job that is there, in CEL, from the identity table of `shardwise.job.identity`.

Fields of a run's identity never change; what shapes the run changes only while it is suspended; `suspend`, `deadline`
and `ttlAfterFinished` change at any time.  CEL cannot tell null from a field that is left out: that change of
`clipNorm` is found by the trainer, when it compares the identity in the checkpoint.
"""

import json
from collections.abc import Iterator

from shardwise.job.fields import ITEM, Leaf, dotted, kind_of, leaves, named_fields, takes_null
from shardwise.job.identity import IDENTITY_FIELDS
from shardwise.job.spec import TrainingJob
from shardwise.job.spec.base import SpecModel
from shardwise_operator.api.cel import Rule

# A preset fills in sizes that are identity, so it is held too, though a file that writes all of them needs none.
_HELD = IDENTITY_FIELDS | {"spec.training.model.preset"}
# Where the tokenizer's file lies may change, as on a laptop; its contents are part of the data's fingerprint.
_TOKENIZER = "spec.training.data.tokenizer"


def immutability() -> Iterator[Rule]:
    """The transition rules of a job."""
    yield Rule(
        at="spec",
        holds="has(self.managedBy) == has(oldSelf.managedBy) "
        "&& (!has(self.managedBy) || self.managedBy == oldSelf.managedBy)",
        message="managedBy never changes; delete the job and create it anew",
        field=".managedBy",
    )
    yield Rule(
        at="spec",
        holds="(self.training.data.?tokenizer.orValue('byte') == 'byte') "
        "== (oldSelf.training.data.?tokenizer.orValue('byte') == 'byte')",
        message="the tokenizer is part of what the run is; create a job of another name",
        field=".training.data.tokenizer",
    )
    for leaf in leaves(TrainingJob):
        if leaf.name in _HELD and leaf.name != _TOKENIZER:
            yield _held(leaf)
    yield _while_suspended()


def _held(leaf: Leaf) -> Rule:
    held = leaf.name.removeprefix("spec.")
    at, name = _hung(leaf)
    message = f"{held} is part of what the run is and never changes; create a job of another name"
    if ITEM in leaf.path:
        group, _, item = name.partition(f".{ITEM}.")
        value = _value("item", item, leaf)
        holds = f"self.{group}.map(item, {value}) == oldSelf.{group}.map(item, {value})"
        return Rule(at=at, holds=holds, message=message, field=f".{group}")
    return Rule(at=at, holds=_same(name, leaf), message=message, field=f".{name}")


def _hung(leaf: Leaf) -> tuple[str, str]:
    """The innermost group of a field that every job has, and the field's name in it.

    Each write of a status checks all rules, and each step of a path costs the API server a copy of its group's types.
    """
    groups = list[str]()
    model: type[SpecModel] = TrainingJob
    for part in map(str, leaf.path):
        info = named_fields(model)[part]
        inner = kind_of(info).model
        if inner is None or not info.is_required():
            break
        groups.append(part)
        model = inner
    return ".".join(groups), dotted(leaf.path[len(groups) :])


def _same(name: str, leaf: Leaf) -> str:
    """Whether a field stays what it was; left out it has its default, where the models have a plain one."""
    new, old = _value("self", name, leaf), _value("oldSelf", name, leaf)
    if _default(leaf) or leaf.info.is_required():
        return f"{new} == {old}"
    is_there, was_there = present("self", name), present("oldSelf", name)
    return f"({is_there}) == ({was_there}) && (!({is_there}) || self.{name} == oldSelf.{name})"


def _value(root: str, name: str, leaf: Leaf) -> str:
    default = _default(leaf)
    return f"({present(root, name)} ? {root}.{name} : {default})" if default else f"{root}.{name}"


def _default(leaf: Leaf) -> str:
    """The default of a field as CEL writes it; empty where there is none, or where null is another value."""
    default = None if leaf.info.is_required() or takes_null(leaf.info) else leaf.info.default
    return "" if default is None else json.dumps(default)


def present(root: str, name: str) -> str:
    """Whether a field is there, with all groups around it."""
    parts = name.split(".")
    return " && ".join(f"has({root}.{'.'.join(parts[:depth])})" for depth in range(1, len(parts) + 1))


def _while_suspended() -> Rule:
    same = " && ".join(
        f"has(self.{group}) == has(oldSelf.{group}) && (!has(self.{group}) || self.{group} == oldSelf.{group})"
        for group in ("hardware", "training", "recovery", "pod")
    )
    suspended = " || ".join(f"has({root}.suspend) && {root}.suspend" for root in ("self", "oldSelf"))
    return Rule(
        at="spec",
        holds=f"{suspended} || ({same})",
        message="only suspend, deadline and ttlAfterFinished change while the job runs; set suspend: true first",
    )
