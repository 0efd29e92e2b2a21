"""shardwise.launcher.system.lines: what follows a file sees of a line that does not end, and of a file that shrinks."""

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from shardwise.launcher.system import lines
from shardwise.launcher.system.lines import GrowingFile, GrowingLog
from shardwise.protocol.bounded_log import content_of

BAR = " 12%|####      | 120/1000 [00:12<01:28, 9.9it/s]\r"


def test_a_line_without_an_end_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bar of progress writes over itself for hours: it is handed out in pieces, and not read anew at each look."""
    path, read = tmp_path / "host-0.log", 0

    def counted(*given: Any) -> bytes:
        """Return what is read, and count it."""
        nonlocal read
        content = content_of(*given)
        read += len(content)
        return content

    monkeypatch.setattr(lines, "content_of", Mock(side_effect=counted))
    log, text, seen = GrowingLog(path), "", list[str]()
    for _ in range(100):
        text += BAR * 200
        path.write_text(text)
        seen += log.lines()
    path.write_text(f"{text}done\nnext\n")
    seen += log.lines()

    assert read < 5 * len(text)
    assert "".join(seen) == f"{text}donenext"
    assert seen[-1] == "next"
    assert log.rest() == ""


def test_a_line_that_is_cut_up_keeps_its_letters(tmp_path: Path) -> None:
    """A letter of several bytes, of which only some are written, comes whole in the next piece."""
    path = tmp_path / "host-0.log"
    log, written = GrowingLog(path), ("\u00e9" * 100_000).encode()
    path.write_bytes(written[:-1])
    seen = log.lines()
    path.write_bytes(written + b"\n")
    seen += log.lines()

    assert len(seen) == 2
    assert "".join(seen) == "\u00e9" * 100_000


def test_a_short_rest_is_kept_for_its_line(tmp_path: Path) -> None:
    """What has not ended yet is part of the line to come."""
    path = tmp_path / "host-0.log"
    log = GrowingLog(path)
    path.write_text("one\ntw")
    assert (log.lines(), log.rest()) == (["one"], "tw")
    path.write_text("one\ntwo\n")
    assert (log.lines(), log.rest()) == (["two"], "")


def test_a_file_that_a_hand_makes_shorter(tmp_path: Path) -> None:
    """What is appended from then on is read, not only what comes after as many bytes as there were."""
    path = tmp_path / "metrics.jsonl"
    path.write_text("first\nsecond\nthird\n")
    file = GrowingFile(path)
    assert file.lines() == ["first", "second", "third"]
    path.write_text("first\n")
    assert file.lines() == []
    with path.open("a") as more:
        more.write("fourth\nfif")
    assert (file.lines(), file.rest()) == (["fourth"], "fif")


def test_a_file_that_is_gone_for_a_while(tmp_path: Path) -> None:
    """As on a volume that is not mounted: nothing of it is read twice."""
    path, away = tmp_path / "metrics.jsonl", tmp_path / "away"
    path.write_text("first\nsecond\n")
    file = GrowingFile(path)
    assert file.lines() == ["first", "second"]
    path.rename(away)
    assert file.lines() == []
    away.rename(path)
    assert file.lines() == []
    with path.open("a") as more:
        more.write("third\n")
    assert file.lines() == ["third"]
