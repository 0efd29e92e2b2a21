"""The parts of `make bench` run, at toy size: that they measure, not what they measure."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))

from benchmarks.aims import aims  # noqa: E402  the folder is a script's, found by path
from benchmarks.checkpoint import SAVERS  # noqa: E402
from benchmarks.document import merged  # noqa: E402
from benchmarks.pages import Table, tables  # noqa: E402
from benchmarks.sizes import SMALL, Case, Size  # noqa: E402
from benchmarks.step import AGAIN, LEVANTER, LIMIT, SHARDWISE, TUNED  # noqa: E402
from benchmarks.tokenising import write_text  # noqa: E402
from benchmarks.turns import Spread, Worker, WorkerError, ratios, take_turns  # noqa: E402

TOY = Size(name="toy", layers=1, heads=2, embed=32, mlp=128, seq_len=16, vocab=512, sequences=8, steps=1)
MACHINE = {"date": "2026-01-01", "cores": 2, "processor": "any", "memory_gib": 1, "load": 0, "python": "3", "jax": "0"}


def test_ratios_are_taken_within_a_round() -> None:
    """A machine that slows down between two rounds does not change a ratio."""
    spread = ratios([{"limit": 100.0, "ours": 90.0}, {"limit": 10.0, "ours": 9.0}], "limit")["ours"]

    assert spread == Spread(median=0.9, low=0.9, high=0.9)


@pytest.mark.parametrize("kv_heads", [None, 2], ids=["GPT-2", "Llama"])
def test_step_workers_take_turns(kv_heads: int | None) -> None:
    """The limit and Shardwise compile the same case, answer with a rate each turn, and hold as many bytes of state."""
    case = Case(size=replace(TOY, heads=4, kv_heads=kv_heads), data=1, tensor=2).dumps()
    with Worker(sys.executable, "limit_step", case) as limit, Worker(sys.executable, "shardwise_step", case) as ours:
        results = take_turns({LIMIT: limit, SHARDWISE: ours}, rounds=2, deadline=0)

        assert len(results) == 2
        assert all(rate > 0 for rates in results for rate in rates.values())
        assert ours.facts["argument_bytes"] == pytest.approx(limit.facts["argument_bytes"], rel=0.1)


def test_texts_are_made_by_hand_by_the_command_and_by_a_server() -> None:
    """Each makes all tokens of two texts, and answers with a rate."""
    case = Case(size=TOY, data=1, tensor=1).dumps()
    for module in ("limit_generate", "shardwise_generate", "shardwise_served"):
        with Worker(sys.executable, module, case, "2") as worker:
            assert worker.turn()["rate"] > 0


def test_saver_brings_back_what_it_saved(tmp_path: Path) -> None:
    """A tree saved over data 4 x tensor 2 is restored, and compared, on data 2 x tensor 4."""
    saver = "Shardwise"
    with Worker(sys.executable, "checkpoint", saver, "save", "toy", str(tmp_path), "4", "2") as saved:
        assert saved.facts["disk_bytes"] >= 2 * saved.facts["tree_bytes"]
    with Worker(sys.executable, "checkpoint", saver, "restore", "toy", str(tmp_path), "2", "4") as restored:
        assert restored.facts["seconds"] > 0


def test_the_same_text_is_tokenised_by_library_and_command(tmp_path: Path) -> None:
    """Both answer each turn with a rate, and so does arithmetic; a turn of the command leaves no store behind."""
    write_text(tmp_path, 100_000)
    for peer, processes in (("plain", "1"), ("shardwise", "1"), ("arithmetic", "2")):
        with Worker(sys.executable, "tokenise", str(tmp_path), peer, processes) as worker:
            assert worker.turn()["rate"] > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["text.jsonl", "tokenizer.json"]


def test_worker_that_fails_says_why() -> None:
    """What a worker wrote before it ended is in the error."""
    with pytest.raises(WorkerError, match="no_such_worker"):
        Worker(sys.executable, "no_such_worker")


def test_page_names_a_missed_aim() -> None:
    """The page holds every part's tables, and an aim that was missed is said to be."""
    page = merged("", tables({"step": _step_results(slow=0.5), "checkpoint": _checkpoint_results()}))

    assert "| speed of the limit, small, data 4 x tensor 2 | >= 0.97 | 0.50 (0.50 - 0.50) | **no** |" in page
    assert all(name in page for name in (*SAVERS, LEVANTER, TUNED, AGAIN))
    assert all(aim.met for aim in aims({"step": _step_results(slow=1.3)}))


def test_what_is_measured_alone_leaves_the_rest_of_the_page() -> None:
    """A table takes the place of the one with its title, and an aim that of the one with its name; others stay."""
    aim = "| speed of the limit, small, data 4 x tensor 2 | >= 0.97 | {} (1.50 - 1.50) | yes |"
    other = Table(title="Another part", columns=["", "s"], rows=[["first", "1"]], notes=["By hand."])
    before = merged("", [*tables({"step": _step_results(slow=1.3), "checkpoint": _checkpoint_results()}), other])
    after = merged(before, tables({"step": _step_results(slow=1.5)}))

    assert merged(after, []) == after
    assert aim.format("1.50") in after
    assert after.count("speed of the limit, small, data 4") == before.count("speed of the limit, small, data 4")
    assert "| save blocks, times a host copy |" in after
    assert other.markdown() in after


def _spread(value: float) -> dict[str, float]:
    return {"median": value, "low": value, "high": value}


def _step_results(*, slow: float) -> dict[str, object]:
    figures = {
        "tokens_per_second": _spread(1),
        "ratio": _spread(slow),
        "mfu": 0.4,
        "argument_bytes": 1,
        "temporary_bytes": 1,
        "peak_resident_bytes": 1,
    }
    case = {
        "rounds": 2,
        "peers": dict.fromkeys((LIMIT, SHARDWISE, LEVANTER, TUNED, AGAIN), figures),
        "against": {LEVANTER: _spread(slow), TUNED: _spread(slow)},
    }
    return {"machine": MACHINE, "cases": {Case(size=SMALL, data=4, tensor=2).name: case}}


def _checkpoint_results() -> dict[str, object]:
    times = ("blocked_seconds", "held_seconds", "durable_seconds", "restore_seconds", "other_mesh_seconds")
    memory = ("grown_bytes", "left_bytes", "restore_grown_bytes", "other_mesh_grown_bytes", "tree_bytes", "files")
    figures = {key: _spread(1) for key in (*times, *memory)} | {"ratio": {key: _spread(1) for key in times}}
    soak = {"saves": 100, "tree_bytes": 1, "early_bytes": 1, "last_bytes": 1}
    return {"machine": MACHINE, "rounds": 2, "savers": dict.fromkeys(SAVERS, figures), "soak": soak}
