"""The trace that a job asks for: of these steps, of these ranks, and with no effect on what is trained."""

import gzip
import json
from pathlib import Path

import pytest
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


def _traced_steps(trace: ProfileData) -> list[int]:
    events = [event for plane in trace.planes for line in plane.lines for event in line.events]
    return sorted(dict(event.stats)["step_num"] for event in events if event.name == "train")
