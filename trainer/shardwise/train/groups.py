"""Groups of parameters with a learning rate or a weight decay of their own (`optimizer.groups` in a job)."""

from collections.abc import Iterable
from fnmatch import fnmatchcase

import optax

from shardwise.job.document import wrong
from shardwise.job.spec import Optimizer, ParameterGroup
from shardwise.protocol.errors import JobError


def groups_of(settings: Optimizer, names: Iterable[str], fixed: Iterable[str]) -> dict[str, ParameterGroup]:
    """Return the group of each parameter that has one, by path; `fixed` are parameters that no step changes.

    Raises:
        JobError: a group is of no parameter that is trained, or of none that has no group yet.

    """
    found: dict[str, ParameterGroup] = {}
    for index, group in enumerate(settings.groups):
        matched = [path for path in names if fnmatchcase(path, group.match)]
        if not matched or found.keys() >= set(matched):
            if matched:
                expected = "parameters that no group before it has"
            elif any(fnmatchcase(path, group.match) for path in fixed):
                expected = "a parameter that is trained"
            else:
                expected = "a parameter of this model"
            paths = f"they are {', '.join(sorted(names))}"
            raise JobError([wrong(f"spec.training.optimizer.groups.{index}.match", group.match, expected, paths)])
        found = dict.fromkeys(matched, group) | found
    return found


def scaled(rate: optax.Schedule, group: ParameterGroup | None) -> optax.Schedule:
    """Return a learning rate as the group of a parameter has it; as it is without a group."""
    if group is None or group.rate_factor == 1:
        return rate
    factor = group.rate_factor
    return lambda step: factor * rate(step)
