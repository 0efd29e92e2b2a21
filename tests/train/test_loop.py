"""The step loop by itself: what processes ask for is done at the same step by all of them, whatever else is due."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import jax
import numpy as np
import pytest
from tests.train.conftest import SMALL

from shardwise.job.load import loads
from shardwise.job.resolve import resolve
from shardwise.protocol.contract import Control
from shardwise.train import batches
from shardwise.train.bad_steps import NO_PAST
from shardwise.train.control import Controls
from shardwise.train.evaluation import Programs
from shardwise.train.loop import Loop
from shardwise.train.step import Metrics
from shardwise.train.summary import Outcome


@dataclass
class _Process:
    """One of several processes that train together: its part is real, the steps and what they ask for are played.

    `asked` is the largest of the others' controls, by step. A step takes ten seconds.
    """

    folder: Path
    asked: Mapping[int, Control]
    rank: int = 0
    settings: Sequence[str] = ()
    save_every_seconds: float | None = None
    saved: list[int] = field(default_factory=list)
    now: float = 0.0
    step: int = 0

    def run(self) -> Outcome:
        """Train to the last step, or to a stop."""
        job = resolve(loads(SMALL, ["spec.hardware.topology=1x1", *self.settings]))
        training = job.spec.training
        mesh = jax.make_mesh((1,), ("device",), devices=jax.devices()[:1])
        control = jax.NamedSharding(mesh, jax.P("device"))
        layout = SimpleNamespace(mesh=mesh, control=control, replicated=jax.NamedSharding(mesh, jax.P()))
        start = SimpleNamespace(
            job=job,
            program=SimpleNamespace(training=training, config=SimpleNamespace(seq_len=32), layout=layout),
            data=SimpleNamespace(train=SimpleNamespace(rows=None)),
            state={"params": {}},
            first_step=0,
            own_step=None,
            past=NO_PAST,
            left_out=(),
            evaluation=Programs(),
            evaluated=(),
            completions=None,
            kept=None,
            steps={16: _Step(self)},
        )
        controls = Controls(lambda: self.now, save_every_seconds=self.save_every_seconds, stop_after_seconds=None)
        made = Loop(
            cast("Any", start),
            directory=cast("Any", SimpleNamespace(profile=lambda rank: self.folder / str(rank))),
            controls=controls,
            phases=cast("Any", _Phases()),
            report=cast("Any", SimpleNamespace(step=lambda *_: None, event=lambda _: None, evaluated=lambda *_: None)),
            saves=cast("Any", _Saves(self)),  # what is saved is another test's
            peers=cast("Any", SimpleNamespace(rank=self.rank)),
            mfu_of_one_token_a_second=0.0,
        )
        return made.run()


@dataclass
class _Step:
    process: _Process

    def __call__(self, state: Any, _batch: Any, own: jax.Array) -> tuple[Any, Metrics]:
        process = self.process
        process.step += 1
        process.now += 10.0
        asked = max(int(own[0]), process.asked.get(process.step, Control.NONE))
        numbers: dict[str, Any] = {name: np.float32(1.0) for name in Metrics._fields}
        return state, Metrics(**{**numbers, "control": np.int32(asked)})

    def as_text(self) -> str:
        return ""

    def memory_analysis(self) -> None:
        return None


class _Phases:
    def __init__(self) -> None:
        self.step, self.seconds = 0, dict[str, float]()

    def switch_to(self, _phase: object) -> None: ...

    def dispatched(self, _step: int) -> None: ...

    def beat(self) -> None: ...

    def completed(self, step: int, _seconds: float) -> None:
        self.step = step

    def entered(self, _phase: object) -> AbstractContextManager[None]:
        return nullcontext()


@dataclass
class _Saves:
    process: _Process

    def save(self, step: int, *_: object) -> None:
        self.process.saved.append(step)

    def save_last(self, _step: int, *_: object) -> None: ...

    def digest(self, _state: object) -> str:
        return ""


class _Loader:
    waited_seconds = 0.0

    def __init__(self, *_: object, **__: object) -> None: ...

    def of(self, *_: object, **__: object) -> None: ...

    def ahead(self, first: int, last: int) -> Iterator[Any]:
        return iter([SimpleNamespace(tokens=np.zeros((16, 32), np.int32))] * (last - first))


@pytest.fixture(autouse=True)
def played(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have neither data nor traces."""
    monkeypatch.setattr(batches, "Loader", _Loader)
    monkeypatch.setattr(jax.profiler, "start_trace", lambda *_, **__: None)
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: None)


@pytest.mark.parametrize("due", ["evaluation.everySteps", "checkpoint.everySteps"])
@pytest.mark.parametrize("every", [1, 2, 3])
def test_a_stop_is_heard_however_often_something_is_due(tmp_path: Path, due: str, every: int) -> None:
    """One step after the step that it was asked in."""
    data = ["spec.training.data.heldOut=0.1"] if due.startswith("evaluation") else []
    process = _Process(tmp_path, {5: Control.STOP}, settings=[f"spec.training.{due}={every}", *data])

    assert process.run().stopped
    assert process.step == 6
    assert process.saved[-1] == 6


def test_saves_by_the_clock_are_made_while_each_step_is_evaluated(tmp_path: Path) -> None:
    """One each hundred seconds, which are ten steps, and each once."""
    often = ["spec.training.evaluation.everySteps=1", "spec.training.data.heldOut=0.1", "spec.training.steps=40"]
    process = _Process(tmp_path, {}, settings=often, save_every_seconds=100.0)
    process.run()

    assert len(process.saved) == 3
    assert all(later - earlier >= 10 for earlier, later in zip(process.saved, process.saved[1:], strict=False))


@pytest.mark.parametrize("asked", [Control.SAVE, Control.STOP])
def test_a_process_that_traces_acts_at_the_steps_of_the_others(tmp_path: Path, asked: Control) -> None:
    """At whichever step it is asked for: a save of two steps would be one checkpoint of both, and a stop a hang."""
    profile = ["spec.training.profile={steps: [10, 12]}"]
    for step in range(6, 16):
        # The next step is dispatched before this one's control is read, and asks for the same.
        both = [_Process(tmp_path, {step: asked, step + 1: asked}, rank=rank, settings=profile) for rank in range(2)]
        ends = [process.run().steps for process in both]

        assert both[0].saved == both[1].saved == [step + 1]
        assert ends[0] == ends[1]


def test_a_stop_saves_before_all_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An evaluation and a trace that are due at its step may take longer than the machine has left."""
    done: list[str] = []
    monkeypatch.setattr(_Saves, "save", lambda _, step, *__: done.append(f"save {step}"))
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: done.append("trace"))
    monkeypatch.setattr(Loop, "_evaluate", lambda _, step: done.append(f"evaluate {step}"))
    due = ("evaluation.everySteps=4", "data.heldOut=0.1", "profile={steps: [2,4]}", "steps=8")
    outcome = _Process(tmp_path, {3: Control.STOP}, settings=[f"training.{word}" for word in due]).run()

    assert (outcome.steps, outcome.stopped) == (4, True)
    assert done == ["save 4", "trace", "evaluate 4"]
