"""What an error of the store says: whether the checkpoint is damaged, or only cannot be read now."""

import pytest

from shardwise.train.checkpoint import zarr


@pytest.mark.parametrize("code", ["UNAVAILABLE", "DEADLINE_EXCEEDED", "ABORTED", "PERMISSION_DENIED"])
def test_out_of_reach(code: str) -> None:
    """A store that does not answer, gives up or refuses says nothing of what it holds."""
    assert zarr.is_out_of_reach(ValueError(f'{code}: Error opening "zarr3" driver'))


@pytest.mark.parametrize("words", ["NOT_FOUND: no such key", "DATA_LOSS: checksum", "the reading was ABORTED: no"])
def test_damage(words: str) -> None:
    """A file that is missing or wrong is damage, whatever words come later in the message."""
    assert not zarr.is_out_of_reach(ValueError(words))
