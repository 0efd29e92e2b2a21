"""What a run says of its devices: also what a step works with, which is most of a small model's memory."""

from io import StringIO

import pytest
from rich.console import Console
from tests.train.conftest import MakeProgram

from shardwise.train import memory
from shardwise.train.memory import device_memory
from shardwise.train.step import lower_step
from shardwise.train.view import memory_table


def test_a_device_holds_what_a_step_works_with(make_program: MakeProgram) -> None:
    """On CPUs the compiler's peak leaves it out. Twice the sequences are twice the activations, nearly."""
    rows = []
    for sequences in (16, 32):
        program = make_program(f"batch.sequences={sequences}", num_devices=2)
        rows.append(device_memory(program, lower_step(program).compile())[0])

    assert rows[0].temporary_bytes > 0.5 * rows[0].params_bytes
    assert rows[1].temporary_bytes == pytest.approx(2 * rows[0].temporary_bytes, rel=0.3)
    assert rows[0].total_bytes > rows[0].params_bytes + rows[0].optimizer_bytes + rows[0].temporary_bytes


def test_of_many_devices_a_few_are_named(make_program: MakeProgram, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start on thousands of devices, which all hold as much, prints and records no row for each."""
    monkeypatch.setattr(memory, "MOST_DEVICES", 2)
    program = make_program(num_devices=8)
    rows = device_memory(program, lower_step(program).compile())
    console = Console(file=StringIO(), width=100)
    console.print(memory_table(rows, 8))

    assert len(rows) == 2
    assert "so does each of the other 6 devices" in console.file.getvalue()  # type: ignore[attr-defined]
