"""The trace that a job asks for: of these steps, of these ranks, and with no effect on what is trained."""

import errno
import gzip
import json
from collections.abc import Callable
from pathlib import Path

import jax
import pytest
from jax.errors import JaxRuntimeError
from jax.profiler import ProfileData
from tests.train.conftest import run_here

from shardwise.protocol.contract import ExitCode
from shardwise.train.metrics import records


def _train(folder: Path, *overrides: str) -> list[dict[str, object]]:
    text = folder.parent / "text.txt"
    text.write_text("all work and no play " * 2000)
    (folder / "logs").mkdir(parents=True)
    small = ["training.model.layers=1", "training.steps=6", f"training.data.train.0.paths=[{text}]"]
    assert run_here(folder, *small, *overrides) == ExitCode.OK
    return list(records(folder / "metrics.jsonl"))


@pytest.mark.usefixtures("as_a_trainer")
def test_the_steps_asked_for_are_traced(tmp_path: Path) -> None:
    """The trace has steps 3 and 4 alone, opens in both tools, and the run's last state is the one without a trace."""
    plain = _train(tmp_path / "plain")
    traced = _train(tmp_path / "traced", "training.profile={steps: [3, 4]}")

    folder = tmp_path / "traced" / "profile" / "attempt-0" / "rank-0"
    (session,) = (folder / "plugins" / "profile").iterdir()
    (xplane,) = session.glob("*.xplane.pb")
    assert _traced_steps(ProfileData.from_file(str(xplane))) == [3, 4]
    perfetto = json.loads(gzip.decompress((session / "perfetto_trace.json.gz").read_bytes()))
    assert perfetto["traceEvents"]
    assert (folder / "step.hlo.txt").read_text().startswith("HloModule")
    assert json.loads((folder / "memory.json").read_text())["argument"] > 0
    assert [event["step"] for event in traced if event.get("event") == "profiled"] == [4]
    assert plain[-1]["digest"] == traced[-1]["digest"]
    assert not (tmp_path / "plain" / "profile").exists()


@pytest.mark.usefixtures("as_a_trainer")
def test_a_disk_that_is_full_where_a_trace_begins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The run goes on without its trace and says so in one line, and no event claims that the trace is written."""
    folder = tmp_path / "run" / "profile" / "attempt-0" / "rank-0"
    folder.mkdir(parents=True)
    (folder / "step.hlo.txt").symlink_to("/dev/full")
    recorded = _train(tmp_path / "run", "training.profile={steps: [3, 4]}")

    assert [record["step"] for record in recorded if "loss" in record] == [1, 2, 3, 4, 5, 6]
    assert not [record for record in recorded if record.get("event") == "profiled"]
    lines = [line for line in capsys.readouterr().err.splitlines() if "trace" in line]
    assert lines == [
        "profile: no trace of steps 3 to 4, since it cannot be written (No space left on device). Training goes on"
    ]


@pytest.mark.usefixtures("as_a_trainer")
@pytest.mark.parametrize(
    "error",
    [
        JaxRuntimeError("RESOURCE_EXHAUSTED: /run/HOST.xplane.pb; No space left on device"),
        JaxRuntimeError("RESOURCE_EXHAUSTED: /run/HOST.xplane.pb; Disk quota exceeded"),
        OSError(errno.ENOSPC, "No space left on device"),
    ],
)
def test_a_disk_that_is_full_where_a_trace_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    """The profiler has a text for it that is that of a full memory, too: the run goes on, and is complete."""
    end: Callable[[], None] = jax.profiler.stop_trace

    def full() -> None:
        end()
        raise error

    monkeypatch.setattr(jax.profiler, "stop_trace", full)
    recorded = _train(tmp_path / "run", "training.profile={steps: [3, 4]}")

    assert recorded[-1]["event"] == "complete"
    assert not [record for record in recorded if record.get("event") == "profiled"]
    assert capsys.readouterr().err.count("profile: no trace of steps 3 to 4") == 1


@pytest.mark.usefixtures("as_a_trainer")
def test_a_trace_that_fails_by_itself_is_no_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is wrong with the profiler or a device is not passed over."""
    end: Callable[[], None] = jax.profiler.stop_trace

    def wrong() -> None:
        end()
        raise JaxRuntimeError("INTERNAL: the profiler is broken")

    monkeypatch.setattr(jax.profiler, "stop_trace", wrong)
    with pytest.raises(JaxRuntimeError, match="the profiler is broken"):
        _train(tmp_path / "run", "training.profile={steps: [3, 4]}")


def _traced_steps(trace: ProfileData) -> list[int]:
    events = [event for plane in trace.planes for line in plane.lines for event in line.events]
    return sorted(dict(event.stats)["step_num"] for event in events if event.name == "train")
