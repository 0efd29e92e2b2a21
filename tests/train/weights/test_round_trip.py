"""Random models that a job may have: each is refused by the exporter, or read out of its export as it was."""

from collections.abc import Iterable

import pytest
from tests.train.weights.random_sections import random_config
from tests.train.weights.test_recognise import shapes_of

from shardwise.protocol.errors import DataError
from shardwise.train.weights import check_exportable, recognise
from shardwise.train.weights.config_file import published_config
from shardwise.train.weights.families import FAMILIES, family_of


@pytest.mark.parametrize("seeds", [range(600), pytest.param(range(600, 6000), marks=pytest.mark.long)])
def test_what_is_exported_comes_back(seeds: Iterable[int]) -> None:
    """The names, shapes and config.json of an export are those of the same model; some models are of each family."""
    found = set()
    for seed in seeds:
        config = random_config(seed)
        family = family_of(config)
        if family is None:
            with pytest.raises(DataError, match="no published format holds this model"):
                check_exportable(config)
            continue
        assert recognise(shapes_of(config), published_config(family, config, "float32"), None) == config, seed
        found.add(family.name)
    assert found == {family.name for family in FAMILIES}
