"""A job that learns from rewards is the same run on one host and on two, of which one is killed and a judge dies."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.cli.running import Run
from tests.cli.shell import Shell
from tests.hosts.disturbing import disturb, in_phase, trainer

from shardwise.protocol.contract import ExitCode, Phase

STEPS = 6
TOLERANCE = 2e-6
"""Of losses near 0 and entropies near 5: the order in which sums are added differs with the hosts."""
NAMES = ("reward", "completionTokens", "cutCompletions", "sameRewards")
JUDGE = """
import json, os, sys
for number, line in enumerate(sys.stdin):
    if number == 20 and len(sys.argv) > 1 and not os.path.exists(sys.argv[1]):
        open(sys.argv[1], "w").close()
        sys.exit(3)
    given = json.loads(line)
    print("no idea" if given["wrong"] else sum(c < "a" for c in given["completion"]), flush=True)
"""


@pytest.fixture
def shell(tmp_path: Path) -> Any:
    """A folder with prompts and judges; after the test nothing of its runs may remain, and so no judge."""
    lines = [{"prompt": f"what is {n}? ", "wrong": n == 77} for n in range(70)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    lines = [{"prompt": f"what is {n}? ", "wrong": n % 4 == 1} for n in range(70)]
    (tmp_path / "wrong.jsonl").write_text("".join(json.dumps(each) + "\n" for each in lines))
    (tmp_path / "judge.py").write_text(JUDGE)
    changes = (
        "training.data={train: [{name: asked, paths: [prompts.jsonl], prompts: true}]}",
        "training.model.seqLen=32",
        "training.batch.sequences=16",
        "training.reinforcement={samples: 4, maxTokens: 6, reward: {within: 30s}}",
        f"training.reinforcement.reward.command=[{sys.executable}, judge.py]",
        f"training.steps={STEPS}",
        "training.checkpoint={everySteps: 2, keep: {last: 9}}",
    )
    with Shell(tmp_path, tmp_path / "cache", changes) as made:
        yield made
        made.close()
        assert made.remains() == []


def test_two_hosts_find_what_one_finds(shell: Shell) -> None:
    """Each host asks about its part; a judge that dies and a host that is killed as it samples change no number."""
    one = shell.begin("one", "hardware.topology=1x4")
    one.finish()
    two = shell.begin(
        "two", "hardware.topology=2x2", f"training.reinforcement.reward.command=[{sys.executable}, judge.py, died]"
    )
    disturb(two, trainer(in_phase(Phase.SAMPLE, rank=1)))
    summary = two.finish()
    found, expected = _by_step(two), _by_step(one)

    assert (shell.folder / "died").exists()
    assert sum(summary["restarts"].values()) >= 2
    assert "has ended (exit code 3) after" in "".join(
        path.read_text() for path in (two.directory / "logs").rglob("host-*.log")
    )
    assert list(found) == list(expected) == list(range(1, STEPS + 1))
    for step, record in found.items():
        assert [record[name] for name in NAMES] == [expected[step][name] for name in NAMES]
        assert record["loss"] == pytest.approx(expected[step]["loss"], abs=TOLERANCE)
        assert record["entropy"] == pytest.approx(expected[step]["entropy"], abs=1e-5)


@pytest.mark.long  # one host's part is in tests/train/test_rewards.py
def test_what_one_host_is_told_ends_both(shell: Shell) -> None:
    """An answer that is no number is bad input, whichever host it was given on, and is not tried again."""
    run = shell.begin(
        "wrong", "hardware.topology=2x2", "training.data.train=[{name: odd, paths: [wrong.jsonl], prompts: true}]"
    )
    assert run.wait() == ExitCode.BAD_INPUT
    assert "has answered line" in run.output
    assert "with 'no idea'; expected a number such as 0.5" in run.output
    assert "host " in run.output


def _by_step(run: Run) -> dict[int, dict[str, Any]]:
    return {record["step"]: record for record in run.records()}
