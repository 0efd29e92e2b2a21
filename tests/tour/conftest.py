"""A file of tests has the name of its tour, and BROKEN, what to break in it."""

import pytest
from tests.tour.breaking import Outcomes


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Outcomes:
    """Return how the tour of this file ended, and each of its broken versions."""
    tour = request.path.stem.removeprefix("test_")
    return Outcomes(tour, request.module.BROKEN, tmp_path_factory.mktemp(tour))
