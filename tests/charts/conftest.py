"""Fixtures of the tests of the charts."""

import pytest
from tests.charts.helm import Helm


@pytest.fixture(scope="session")
def helm() -> Helm:
    """Return Helm without a cluster."""
    return Helm()
