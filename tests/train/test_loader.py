"""Batches on devices: the same rows on any mesh, in the order of their numbers, one step ahead."""

from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from tests.train.grids import layout_over

from shardwise.job.spec.batch import RampUp
from shardwise.train.data.sequences import Batch as Rows
from shardwise.train.loader import Loader

SEQUENCES, LENGTH = 8, 4


class Numbered:
    """Rows that hold their own sample number; it remembers which were asked for."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __call__(self, numbers: np.ndarray) -> Rows:
        """Return the rows with these numbers."""
        self.asked += numbers.tolist()
        whole = np.repeat(numbers[:, None], LENGTH, axis=1).astype(np.int32)
        return Rows(tokens=whole, targets=whole + 1, weights=np.ones(whole.shape, np.float32), segments=0 * whole)


def _batches(loader: Loader, start: int, stop: int) -> Iterator[np.ndarray]:
    for batch in loader.ahead(start, stop):
        yield np.asarray(batch.tokens)[:, 0]


@pytest.mark.parametrize(
    "mesh", [{}, {"outer": 4, "tensor": 2}, {"replica": 2, "outer": 2, "inner": 2}, {"tensor": 8}], ids=str
)
def test_rows_are_numbered_through_the_run_on_any_mesh(mesh: dict[str, int]) -> None:
    """Step n holds samples n x sequences onwards, however they are spread; a run that starts later gets the same."""
    loader = Loader(Numbered(), layout_over(**mesh), sequences=SEQUENCES, seq_len=LENGTH)

    expected = np.arange(16, 40).reshape(3, SEQUENCES)
    np.testing.assert_array_equal(list(_batches(loader, 2, 5)), expected)


def test_the_first_batches_of_a_ramp_have_fewer_rows() -> None:
    """They take up the samples one after the other all the same, and whoever starts later, or leaves some out, too."""
    ramp_up = [RampUp(until_step=2, sequences=4)]

    def ramped(**more: Any) -> Loader:
        return Loader(Numbered(), layout_over(outer=4), sequences=8, seq_len=LENGTH, ramp_up=ramp_up, **more)

    rows = [batch.tolist() for batch in _batches(ramped(), 0, 4)]
    assert rows == [[*range(4)], [*range(4, 8)], [*range(8, 16)], [*range(16, 24)]]
    assert [batch.tolist() for batch in _batches(ramped(), 1, 3)] == rows[1:3]
    assert [batch.tolist() for batch in _batches(ramped(left_out={1}), 0, 3)] == [rows[0], *rows[2:]]
    assert [len(batch) for batch in _batches(ramped().of(Numbered()), 0, 2)] == [8, 8], "other rows have no ramp"


def test_context_gives_each_device_the_front_and_back_of_its_rows() -> None:
    """The host brings every field into this order, so that no step moves a token."""

    def rows(numbers: np.ndarray) -> Rows:
        whole = (10 * numbers[:, None] + np.arange(LENGTH)).astype(np.int32)
        return Rows(tokens=whole, targets=whole + 1, weights=whole.astype(np.float32), segments=whole // 2)

    layout = layout_over(outer=4, context=2)
    batch = Loader(rows, layout, sequences=SEQUENCES, seq_len=LENGTH).batch(0)
    parts = {shard.device: np.asarray(shard.data) for shard in batch.tokens.addressable_shards}

    first, second = layout.mesh.devices[0, 1, 0, :, 0, 0]
    np.testing.assert_array_equal(parts[first], [[20, 23], [30, 33]])
    np.testing.assert_array_equal(parts[second], [[21, 22], [31, 32]])
    for field, expected in rows(np.arange(SEQUENCES)).__dict__.items():
        np.testing.assert_array_equal(getattr(batch, field), expected[:, [0, 3, 1, 2]], err_msg=field)


def test_each_row_is_read_once_a_batch() -> None:
    """Devices that hold the same rows (tensor) or parts of them (context) share one read, for all fields."""
    rows = Numbered()
    batch = Loader(rows, layout_over(outer=2, context=2, tensor=2), sequences=SEQUENCES, seq_len=LENGTH).batch(0)

    assert sorted(rows.asked) == list(range(SEQUENCES))
    assert {field.name for field in fields(Rows)} == {name for name, x in batch._asdict().items() if x is not None}


def test_an_error_of_the_data_reaches_the_loop() -> None:
    """What goes wrong while reading ahead is raised where the batch is wanted, not lost in a thread."""

    def broken(_: np.ndarray) -> Rows:
        raise OSError("gone")

    loader = Loader(broken, layout_over(), sequences=SEQUENCES, seq_len=LENGTH)
    with pytest.raises(OSError, match="gone"):
        next(loader.ahead(0, 2))
