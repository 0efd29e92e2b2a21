"""A trace of some steps of this process, for xprof and Perfetto, with the compiled step and its memory beside it.

    DIR/profile/attempt-M/rank-N/plugins/profile/TIME/HOST.xplane.pb            for xprof, and for TensorBoard
    DIR/profile/attempt-M/rank-N/plugins/profile/TIME/perfetto_trace.json.gz    for ui.perfetto.dev
    DIR/profile/attempt-M/rank-N/step.hlo.txt                                   the step as XLA compiled it
    DIR/profile/attempt-M/rank-N/memory.json                                    bytes on one device, by use

A trace says what each device and each thread did, and when. It grows with the steps, so a job asks for few of them. It
is a convenience: where storage does not take it the run goes on without it.
"""

import json
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import jax
from jax.errors import JaxRuntimeError
from jax.stages import Compiled

from shardwise.job.spec import Profile
from shardwise.protocol.storage import may_pass

_REFUSED = re.compile(r"; (No space left on device|Disk quota exceeded|Input/output error|Stale file handle)$")
"""How the profiler's own errors of files end. Their code is also that of a device without memory."""
_USES = ("argument", "output", "alias", "temp", "generated_code")


class Profiler:
    """The profiler of one process.

    Args:
        profile: what the job asks for, if anything.
        folder: of this process's trace.
        rank: of this process.

    """

    def __init__(self, profile: Profile | None, folder: Path, *, rank: int) -> None:
        self._steps = range(0)
        if profile is not None and rank in profile.ranks:
            first, last = profile.steps
            self._steps = range(first, last + 1)
        self._folder = folder
        self._is_open = False

    @contextmanager
    def closing(self) -> Iterator[None]:
        """Write what has been traced, however the block ends."""
        try:
            yield
        finally:
            if self._is_open:
                self.stop()

    def starts_at(self, number: int) -> bool:
        """Return whether the trace begins with this step; a run that resumes in between begins with its first."""
        return number in self._steps and not self._is_open

    def stops_at(self, number: int) -> bool:
        """Return whether the trace ends with this step."""
        return self._is_open and number == self._steps[-1]

    def start(self, step: Compiled) -> bool:
        """Begin the trace, and write HLO and memory of the step; return whether that could be written."""
        return self._writes(partial(self._start, step))

    def stop(self) -> bool:
        """End the trace and write it, which takes longer the more there is in it; return whether it is written."""
        self._is_open = False
        return self._writes(jax.profiler.stop_trace)

    def _start(self, step: Compiled) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / "step.hlo.txt").write_text(step.as_text() or "", encoding="utf-8")
        if (memory := step.memory_analysis()) is not None:
            sizes = {use: getattr(memory, f"{use}_size_in_bytes") for use in _USES}
            (self._folder / "memory.json").write_text(json.dumps(sizes, indent=2) + "\n", encoding="utf-8")
        jax.profiler.start_trace(self._folder, create_perfetto_trace=True)
        self._is_open = True

    def _writes(self, write: Callable[[], None]) -> bool:
        """Return whether storage takes what is written; give the trace up, and say so, if it does not."""
        try:
            write()
        except (OSError, JaxRuntimeError) as error:
            if (reason := _of_storage(error)) is None:
                raise
            steps = f"{self._steps[0]} to {self._steps[-1]}"
            with suppress(OSError):  # the log may be on the same disk
                sys.stderr.write(
                    f"profile: no trace of steps {steps}, since it cannot be written ({reason}). Training goes on\n"
                )
            self._steps = range(0)  # JAX holds on to a trace that it could not write, and begins no other
            return False
        return True


def _of_storage(error: OSError | JaxRuntimeError) -> str | None:
    """Return why storage does not take a trace; None for any other error."""
    if isinstance(error, OSError):
        return (error.strerror or str(error)) if may_pass(error) else None
    found = _REFUSED.search(str(error))
    return found[1] if found else None
