"""A job on conversations is the same run on one host and on two."""

import json
from pathlib import Path

import pytest
from tests.cli.shell import Shell

STEPS = 4
TOLERANCE = 2e-6
"""Of float32 losses near 5: the order in which sums are added differs with the hosts."""


@pytest.mark.long  # two hosts that read text are in test_same_run.py, conversations in tests/train/test_chat_run.py
def test_conversations_on_two_hosts(tmp_path: Path) -> None:
    """Each host finds the same sequences and answers, and trains on its own: losses are equal, of questions too."""
    with Shell(
        tmp_path,
        tmp_path / "cache",
        (
            "training.data.train=[{name: chat, paths: [chat.jsonl], chatTemplate: chatml}]",
            "training.data.attendAcross=document",
            "training.evaluation.sets.0={name: asked, paths: [chat.jsonl], chatTemplate: chatml, batches: 99}",
            "training.evaluation.sets.1={name: chosen, paths: [choices.jsonl], chatTemplate: chatml, questions: true}",
            "training.evaluation.everySteps=2",
            "training.model.seqLen=128",
            "training.batch.sequences=8",
            f"training.steps={STEPS}",
        ),
    ) as shell:
        lines = []
        for number in range(120):
            contents = (("user", f"what is {number} + 1?"), ("assistant", str(number + 1) * (1 + number % 7)))
            messages = [{"role": role, "content": content} for role, content in contents]
            lines.append(json.dumps({"messages": messages}) + "\n")
        (tmp_path / "chat.jsonl").write_text("".join(lines))
        questions = [{"prompt": f"what is {n} + 1?", "choices": ["7" * n, "8"], "answer": n % 2} for n in range(1, 9)]
        (tmp_path / "choices.jsonl").write_text("".join(json.dumps(each) + "\n" for each in questions))
        found = []
        for name, topology in (("one", "1x4"), ("two", "2x2")):
            run = shell.begin(name, f"hardware.topology={topology}")
            run.finish()
            losses = [record["loss"] for record in run.records()]
            evaluated = [event["sets"] for event in run.records("evaluated")]
            found.append(losses + [sets[name]["loss"] for sets in evaluated for name in ("asked", "chosen")])
            assert [sets["chosen"]["questions"] for sets in evaluated] == [8, 8]
            tokens = [event["sets"]["asked"]["tokens"] for event in run.records("evaluated")]
            assert tokens == [sum(len(str(n + 1)) * (1 + n % 7) + len("<|im_end|>") for n in range(120))] * 2

    assert len(found[0]) == STEPS + 4
    assert found[0] == pytest.approx(found[1], abs=TOLERANCE)
