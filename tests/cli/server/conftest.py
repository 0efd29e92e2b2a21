"""The model and the server that the tests of `shardwise serve` share."""

from collections.abc import Iterator

import pytest
from tests.cli.server.small import Server, Small, make_small, serving


@pytest.fixture(scope="session")
def small() -> Small:
    """Return a small model whose programs are compiled."""
    return make_small()


@pytest.fixture(scope="module")
def server(small: Small) -> Iterator[Server]:
    """Return a server of the small model, which the tests of a file share."""
    with serving(small.model, small.decoder) as made:
        yield made
