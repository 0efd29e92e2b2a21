"""What a person sees of a running job: one live line on a terminal, a line every few seconds in a log."""

import time
from collections import deque
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from shardwise.job.batch_sizes import steps_left
from shardwise.job.spec import Training
from shardwise.protocol.eta import RECENT_STEPS, clock, eta_seconds
from shardwise.protocol.evaluated import HELD_OUT, results
from shardwise.protocol.text import MIB
from shardwise.train.memory import DeviceMemory

_LOG_EVERY_SECONDS = 10.0


class View:
    """The progress line of a run; a context manager, which ends the live line."""

    def __init__(self, console: Console, training: Training, *, first_step: int) -> None:
        """Show nothing yet."""
        self._console, self._training, self._first_step = console, training, first_step
        self._steps = training.steps
        self._live = Live(console=console, refresh_per_second=8, transient=False) if console.is_terminal else None
        self._saved: int | None = None
        self._losses: dict[str, float | None] = {}
        self._recent_seconds = deque[float](maxlen=RECENT_STEPS)
        self._logged = time.monotonic()

    def __enter__(self) -> Self:
        """Begin the live line."""
        if self._live:
            self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End the live line."""
        if self._live:
            self._live.__exit__(kind, error, trace)

    def step(self, number: int, record: Mapping[str, float]) -> None:
        """Show a complete step."""
        self._recent_seconds.append(record["stepSeconds"])
        line = self._line(number, record)
        if self._live:
            self._live.update(Text(line))
            return
        now = time.monotonic()
        if number in (self._first_step + 1, self._steps) or now - self._logged >= _LOG_EVERY_SECONDS:
            self._logged = now
            self._console.print(line, highlight=False, soft_wrap=True)

    def evaluated(self, record: Mapping[str, Any]) -> None:
        """Show the losses of an evaluation, or rewards, from the next line on."""
        self._losses = {name: values.get("loss", values.get("reward")) for name, values in results(record).items()}

    def show(self, text: str) -> None:
        """Print a line that stays."""
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def saved(self, number: int) -> None:
        """Show this step as the newest committed checkpoint from the next line on."""
        self._saved = number

    def _line(self, number: int, record: Mapping[str, float]) -> str:
        left = eta_seconds(steps_left(self._training, number, self._steps), self._recent_seconds) or 0.0
        parts = [
            f"step {number}/{self._steps}",
            f"loss {record['loss']:.4f}",
            f"lr {record['learningRate']:.2e}",
            f"grad {record['gradNorm']:.3f}",
            f"{record['tokensPerSecond']:,.0f} tokens/s",
            f"MFU {record['mfu']:.1%}",
            f"ETA {clock(left, hours=False)}",
        ]
        parts += [
            f"{'held-out' if name == HELD_OUT else name} {loss:.4f}"
            for name, loss in self._losses.items()
            if loss is not None
        ]
        if self._saved is not None:
            parts.append(f"checkpoint {self._saved}")
        return "  ".join(parts)


def memory_table(rows: list[DeviceMemory], num_devices: int) -> Table:
    """Return the table of what each device holds; of so many, those that have no row hold the same."""
    table = Table(title="what each device holds (MiB)", title_justify="left")
    for column in ("device", "params", "optimizer", "batch", "temporaries", "total"):
        table.add_column(column, justify="left" if column == "device" else "right")
    for row in rows:
        sizes = (row.params_bytes, row.optimizer_bytes, row.batch_bytes, row.temporary_bytes, row.total_bytes)
        table.add_row(row.device, *(f"{size / MIB:.2f}" for size in sizes))
    if num_devices > len(rows):
        table.caption, table.caption_justify = f"so does each of the other {num_devices - len(rows):,} devices", "left"
    return table
