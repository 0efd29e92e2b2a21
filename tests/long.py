"""Which cases of a test are left to `make test-long`."""

from collections.abc import Iterable, Sequence

import pytest


def all_but(short: Iterable[str], names: Iterable[str]) -> Sequence[object]:
    """Return the names as cases, all of them long but those that `make test` takes too."""
    taken = set(short)
    return [pytest.param(name, marks=[] if name in taken else [pytest.mark.long]) for name in names]
