"""shardwise.launcher.leader.page: the page of a live run is made when it is asked for, and not too often."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.page.building import lines, make_run, step

from shardwise.launcher.leader import page
from shardwise.launcher.leader.page import PageMaker
from shardwise.protocol.run_status import RunStatus

STATUS = RunStatus(phase="running", name="quickstart", ray_session=0, hosts=())


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Return a function that lets seconds pass; no other second does."""
    now = [100.0]
    monkeypatch.setattr("shardwise.launcher.leader.page.time.monotonic", lambda: now[0])

    def passes(seconds: float) -> None:
        now[0] += seconds

    return passes


def test_page_is_kept_for_a_while(tmp_path: Path, clock: Callable[[float], None]) -> None:
    """Whoever asks within five seconds gets the same page; later it has what has been written since."""
    directory = make_run(tmp_path / "run")
    (directory / "summary.json").write_text(json.dumps({"status": "running"}), encoding="utf-8")
    maker = PageMaker(directory, None)
    first = maker.made(STATUS)
    assert b'"status":"running","live":true,"phase":"running"' in first
    with (directory / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(lines([step(7, 1234.5)]))
    clock(4.9)
    assert maker.made(STATUS) is first
    clock(0.2)
    assert b"1234.5" in maker.made(STATUS)


def test_page_that_takes_long_is_kept_for_longer(
    tmp_path: Path, clock: Callable[[float], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that takes a second to make takes no more than a 500th of a processor."""
    made: list[str] = []

    def render(document: object) -> str:
        clock(1.0)
        made.append(str(document))
        return str(len(made))

    monkeypatch.setattr(page, "render", render)
    maker = PageMaker(make_run(tmp_path / "run"), None)
    assert maker.made(STATUS) == b"1"
    clock(499.0)
    assert maker.made(STATUS) == b"1"
    clock(1.5)
    assert maker.made(STATUS) == b"2"
