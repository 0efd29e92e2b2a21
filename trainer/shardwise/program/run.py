"""A run of an own program: one process's part in it, from `init()` to the end of the script."""

import os
import signal
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental import mesh_utils
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from pydantic.alias_generators import to_camel

from shardwise.program import endings, exits
from shardwise.program.agreement import Agreement
from shardwise.program.checkpoints import Checkpoints, tell
from shardwise.program.record import Record, check_names
from shardwise.protocol.contract import WORK_LIMIT_HANGS, Control, ExitCode, Phase
from shardwise.protocol.errors import UsageError
from shardwise.protocol.program import Place
from shardwise.train.control import Controls
from shardwise.train.peers import Peers
from shardwise.train.phases import Phases
from shardwise.train.run_directory import RunDirectory
from shardwise.train.stacks import write_stacks_when_asked


class Run:
    """One process's part in a run.

    `rank` is which process this is, of `num_processes`; `directory` is the run directory; `attempt` counts the starts
    of the processes before this one.
    """

    def __init__(
        self,
        place: Place,
        stack: ExitStack,
        *,
        alone: bool,
        steps: int | None,
        save_every_seconds: float | None,
        keep: int,
    ) -> None:
        """Join the other processes; what is entered on `stack` ends with the run."""
        self.name, self.directory, self.attempt = place.job, Path(place.directory), place.attempt
        self.rank, self.num_processes = place.rank, place.num_processes
        self._alone, self._stack = alone, stack
        self._controls = Controls(
            time.monotonic, save_every_seconds=save_every_seconds, stop_after_seconds=place.deadline_seconds
        )
        stack.enter_context(self._controls.signals())
        if alone:
            signal.signal(signal.SIGINT, signal.default_int_handler)  # no command turns a Ctrl-C into a stop
        else:
            write_stacks_when_asked(Path(place.stacks))
        self._phases = Phases(Path(place.progress), attempt=place.attempt, rank=place.rank, pid=os.getpid())
        with self._phases.entered(Phase.JOIN):
            self._peers = Peers.join(place, limit_seconds=WORK_LIMIT_HANGS * place.hang_after_seconds)
        self._phases.switch_to(Phase.INIT)
        if self._peers.count > 1 and jax.default_backend() == "cpu":
            _introduce_devices()
        files = RunDirectory(self.directory, place.attempt)
        self._record = Record(files, self.name, of=steps, writes=self._peers.writes)
        self.checkpoints = Checkpoints(
            self.name, files, self._peers, self._phases, self._record, keep=keep, root=place.checkpoints
        )
        self._agreement = Agreement(self._peers)
        self._agreed = Control.NONE
        self._stopped = False
        self._waiting: tuple[int, Mapping[str, Any]] | None = None
        self._reported = 0
        self._completed_at = self._own_time()

    def mesh(self, **axes: int | None) -> Mesh:
        """Return a mesh of all devices of the run with these axes, the last one on neighbours; one may be None.

        That one takes the devices that the others leave: `mesh(data=None, tensor=2)`.

        Raises:
            UsageError: the axes do not divide the devices.

        """
        devices = jax.devices()
        given = [size for size in axes.values() if size is not None]
        left, rest = divmod(len(devices), int(np.prod(given, dtype=np.int64)) or 1)
        shape = [left if size is None else size for size in axes.values()]
        if rest or len(given) < len(axes) - 1 or np.prod(shape) != len(devices) or min(shape, default=0) < 1:
            asked = ", ".join(f"{name}={size}" for name, size in axes.items())
            raise UsageError(
                f"mesh({asked}): expected axes whose sizes multiply to the run's {len(devices)} devices; "
                "one of them may be None, and takes the devices that the others leave"
            )
        grid = mesh_utils.create_device_mesh(shape, devices, allow_split_physical_axes=True)
        return Mesh(grid, tuple(axes), axis_types=(AxisType.Auto,) * len(axes))

    def report(self, step: int, values: Mapping[str, Any]) -> None:
        """Do what `shardwise.report` does."""
        self._check(step, values)
        exits.went_on()
        if self._reported == 0:
            self._begin(step)
        self._reported = step
        self._phases.dispatched(step)
        # The devices work on this step while the one before it is waited for.
        self.complete()
        self._waiting = (step, values)
        self._agreed = self._agreement.receive()
        self._controls.done(self._agreed)
        self._agreed = max(self._agreed, self._agreement.exchange(self._controls.due()))
        if self._peers.count == 1:
            self._controls.done(self._agreed)
        if not any(isinstance(value, jax.Array) for value in values.values()):
            self.complete()

    @property
    def saves(self) -> bool:
        """Whether the processes have agreed to save after the step that was reported last."""
        return self._agreed >= Control.SAVE

    @property
    def stops(self) -> bool:
        """Whether they have agreed to save and to end."""
        self._stopped = self._stopped or self._agreed == Control.STOP
        return self._agreed == Control.STOP

    def ask_to_save(self) -> None:
        """Ask all processes to save."""
        self._controls.request(Control.SAVE)

    def end(self) -> None:
        """End the run at the end of the script: all that was saved is committed, or the exit code says why not."""
        error = exits.given()
        if error and exits.code_of(error) not in self._good_codes:
            self._note(error)
            if self._peers.count > 1:
                endings.leave(exits.code_of(error))
            return
        try:
            self.complete()
            self.checkpoints.close()
            if self._stopped and self._reported > (self.checkpoints.step or 0):
                tell(f"stopped after step {self._reported}, which no checkpoint has: save when should_save() says so")
            if not self._stopped:
                self._phases.switch_to(Phase.DONE)
            self._record.ended(self._status, self.checkpoints.digest)
            self._record.close()
            self._stack.close()
            self._peers.leave()
        except BaseException as error:  # noqa: BLE001  the exit code carries it on
            self.fail(error)
        if self._stopped:
            endings.end_with(ExitCode.SAVED)

    @property
    def _good_codes(self) -> tuple[int, ...]:
        """Return the codes by which the script may say itself that it ends well."""
        return (ExitCode.OK, ExitCode.SAVED) if self._stopped else (ExitCode.OK,)

    @property
    def _status(self) -> str:
        """Return the final status; under an agent the leader writes it later."""
        if not self._alone:
            return "running"
        return "stopped" if self._stopped else "complete"

    def fail(self, error: BaseException) -> None:
        """End the process by an error that nothing has caught."""
        endings.show(error)
        self._note(error)
        endings.leave(endings.code_of(error))

    def _note(self, error: BaseException) -> None:
        """Commit what was saved, and record how the process ends; the error itself is what counts."""
        with suppress(Exception):
            self.checkpoints.close()
        with suppress(Exception):  # a full disk has no room for the summary
            if endings.code_of(error) != ExitCode.SAVED:
                self._record.failed(error)

    def _check(self, step: int, values: Mapping[str, Any]) -> None:
        if step <= self._reported:
            raise UsageError(
                f"report(step={step}): expected the number of steps that are complete, from 1 on and each time more"
                + (f"; the last was {self._reported}" if self._reported else "")
            )
        check_names(values)

    def _begin(self, step: int) -> None:
        self._controls.stepping()
        self._phases.switch_to(Phase.STEP)
        self._phases.step = step - 1
        self._record.started(step - 1, self.checkpoints.saved_at)

    def complete(self) -> None:
        """Wait for the last step's numbers, and record them."""
        if self._waiting is None:
            return
        (step, values), self._waiting = self._waiting, None
        numbers = {to_camel(name): _number(name, value) for name, value in values.items()}
        now = self._own_time()
        seconds, self._completed_at = now - self._completed_at, now
        self._phases.completed(step, seconds)
        self._record.step(step, {**numbers, "stepSeconds": seconds})

    def _own_time(self) -> float:
        """Return a clock that stands still in saves and restores: no step is charged for them."""
        return time.perf_counter() - sum(s for name, s in self._phases.seconds.items() if name != Phase.STEP)


def _number(name: str, value: Any) -> float:
    """Return a reported value. An exchange with another process that fails is that process's error, and passes."""
    shape = getattr(value, "shape", "")
    wrong = UsageError(
        f"report({name}=...): given {type(value).__name__}{shape}, expected a number that every process holds whole"
    )
    if isinstance(value, jax.Array):
        if not (value.is_fully_replicated or value.is_fully_addressable):
            raise wrong
        value = value.addressable_data(0) if value.is_fully_replicated else value
    try:
        return float(np.asarray(value))
    except (TypeError, ValueError) as error:
        raise wrong from error


def _introduce_devices() -> None:
    """Have the simulated devices of different processes meet now, when every process is here.

    gloo opens the connections of a group of devices at the first exchange in it, and gives up if one process comes 30
    seconds before another (https://github.com/jax-ml/jax/issues/40831). One that loads data or compiles may be later.
    """
    grid = np.array(jax.devices()).reshape(jax.process_count(), -1)
    mesh, split = Mesh(grid, ("process", "device")), P("process", "device")
    ones = jax.make_array_from_callback(grid.shape, NamedSharding(mesh, split), lambda _: np.ones((1, 1), np.float32))
    for axes, left in (("process", P(None, "device")), (("process", "device"), P())):
        total = jax.shard_map(partial(jax.lax.psum, axis_name=axes), mesh=mesh, in_specs=split, out_specs=left)
        jax.jit(total)(ones).block_until_ready()
