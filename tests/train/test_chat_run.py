"""A run on conversations: the loss is of its answers, and it goes on as if it had never stopped."""

import json
import math
from pathlib import Path

import pytest
from tests.train.conftest import run_here

from shardwise.cli.run_files import read_overview
from shardwise.protocol.contract import ExitCode
from shardwise.train.metrics import records, steps


def conversation(question: str, answer: str) -> str:
    """A line of JSONL with a question and its answer."""
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return json.dumps({"messages": messages}) + "\n"


def directory_of(tmp_path: Path, name: str) -> Path:
    """Make the directory of a run."""
    (tmp_path / name / "logs").mkdir(parents=True)
    (tmp_path / name / ".lock").touch()
    return tmp_path / name


@pytest.mark.usefixtures("as_a_trainer")
def test_only_answers_are_learned(tmp_path: Path) -> None:
    """The model comes to know what is always answered, and nothing of what is asked; a stop changes no bit."""
    (tmp_path / "chat.jsonl").write_text("".join(conversation(f"{n * n}", "yes" * 10) for n in range(400)))
    (tmp_path / "asked.jsonl").write_text("".join(conversation(f"{n * n}", "yes" * 10) for n in range(400, 410)))
    (tmp_path / "text.txt").write_text("<|im_start|>user\n" * 50)
    sets = [
        f"{{name: asked, paths: [{tmp_path}/asked.jsonl], chatTemplate: chatml}}",
        f"{{name: headers, paths: [{tmp_path}/text.txt]}}",
    ]
    words = [
        f"training.data.train=[{{name: chat, paths: [{tmp_path}/chat.jsonl], chatTemplate: chatml}}]",
        "training.data.attendAcross=document",
        f"training.evaluation={{everySteps: 12, sets: [{', '.join(sets)}]}}",
        "training.model.layers=1",
        "training.model.seqLen=96",
        "training.optimizer.learningRate=3e-2",
    ]
    whole, parts = directory_of(tmp_path, "whole"), directory_of(tmp_path, "parts")
    assert run_here(whole, *words, "training.steps=12") == ExitCode.OK
    assert run_here(parts, *words, "training.steps=5") == ExitCode.OK
    assert run_here(parts, *words, "training.steps=12") == ExitCode.OK

    assert read_overview(whole).as_json()["digest"] == read_overview(parts).as_json()["digest"]
    losses = [[record["loss"] for record in steps(run / "metrics.jsonl")] for run in (whole, parts)]
    assert losses[0] == losses[1]
    (event,) = [record for record in records(whole / "metrics.jsonl") if record.get("event") == "evaluated"]
    asked, headers = event["sets"]["asked"], event["sets"]["headers"]
    assert asked["tokens"] == 10 * len("yes" * 10 + "<|im_end|>")
    assert asked["loss"] < 3.0
    assert headers["loss"] > math.log(257)  # never a target: a model that knows nothing would do better
