"""shardwise.cli.evaluate: the sets of a run, or others, on its checkpoints, each to its last token."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.conftest import Command
from tests.train.conftest import run_here, runs_here

from shardwise.protocol.contract import ExitCode
from shardwise.protocol.evaluated import results
from shardwise.train.metrics import records

BOOKS = "call me Ishmael, some years ago, never mind how long precisely"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run of 2 steps on 8 devices, evaluated on all of its sets after each."""
    folder = tmp_path_factory.mktemp("evaluate")
    (folder / "text.jsonl").write_text("".join(f'{{"text": "{n} green bottles, and no more."}}\n' for n in range(300)))
    (folder / "books.txt").write_text(BOOKS)
    directory = folder / "run"
    (directory / "logs").mkdir(parents=True)
    (directory / ".lock").touch()
    words = [
        f"training.data={{train: [{{name: text, paths: [{folder}/text.jsonl]}}], heldOut: 0.2}}",
        f"training.evaluation={{everySteps: 1, batches: 99, sets: [{{name: books, paths: [{folder}/books.txt]}}]}}",
        "training.mesh.tensor=2",
        "training.model.layers=1",
        "training.checkpoint.everySteps=1",
        "training.optimizer={learningRate: 1e-2, average: {decay: 0.5}}",
        "training.steps=2",
    ]
    with runs_here(folder):
        assert run_here(directory, *words) == ExitCode.OK
        yield directory


def test_a_checkpoint_is_evaluated_as_in_training(run: Path, process: Command, tmp_path: Path) -> None:
    """On one device as on the run's eight: the loss of each checkpoint on each set is that of its step."""
    in_training = {
        record["step"]: results(record)
        for record in records(run / "metrics.jsonl")
        if record.get("event") == "evaluated"
    }
    for step in (1, 2):
        ended = process("evaluate", str(run), "--step", str(step), "--json", folder=tmp_path)
        assert ended.code == 0
        assert "evaluating books: 1 batches" in ended.error
        known = json.loads(ended.out)
        assert (known["step"], list(known["sets"])) == (step, ["heldOut", "books"])
        books, trained = known["sets"]["books"], in_training[step]["books"]
        assert books["tokens"] == trained["tokens"] == len(BOOKS)
        assert books["loss"] == pytest.approx(trained["loss"], rel=1e-5)
        assert books["accuracy"] == trained["accuracy"]
        assert books["perplexity"] == pytest.approx(2.718281828459045 ** books["loss"])
        # Training leaves out what is left behind the last whole sequence; here it counts.
        held_out, of_training = known["sets"]["heldOut"], in_training[step]["heldOut"]["tokens"]
        assert of_training
        assert of_training < held_out["tokens"] < of_training + 32


def test_the_average_of_the_weights_is_evaluated_when_it_is_asked_for(
    run: Path, process: Command, tmp_path: Path
) -> None:
    """As in training; and refused for a job that keeps none."""
    [*_, last] = [results(each) for each in records(run / "metrics.jsonl") if each.get("event") == "evaluated"]
    ended = process("evaluate", str(run), "--average", "--json", folder=tmp_path)
    assert ended.code == 0, ended.error
    books = json.loads(ended.out)["sets"]["books"]
    assert books["loss"] == pytest.approx(last["average/books"]["loss"], rel=1e-5)
    assert books["loss"] != pytest.approx(last["books"]["loss"], rel=1e-4)

    (tmp_path / "without" / "logs").mkdir(parents=True)
    (tmp_path / "without" / ".lock").touch()
    job = (run / "job.yaml").read_text()
    assert "average:" in job
    (tmp_path / "without" / "job.yaml").write_text(re.sub(r" *average:\n? *(\{.*\}|decay: .*)\n", "", job))
    for words in (["evaluate"], ["generate"], ["export"]):
        out = ["out.safetensors"] if words == ["export"] else []
        refused = process(*words, "without", *out, "--average", folder=tmp_path)
        assert refused.code == ExitCode.USAGE, refused.error
        assert "keeps no average of its weights" in " ".join(refused.error.split())


def _preferred(tmp_path: Path, *words: str) -> dict[str, Any]:
    """Learn 90 pairs by these words, in the folder `preferred`, and return what it evaluated."""
    pairs = ({"prompt": f"say {n}", "chosen": f"it is {n % 7}", "rejected": f"no {n % 5}"} for n in range(90))
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(each) + "\n" for each in pairs))
    (tmp_path / "text.txt").write_text(BOOKS * 99)
    for name in ("base", "preferred"):
        (tmp_path / name / "logs").mkdir(parents=True)
        (tmp_path / name / ".lock").touch()
    shape = ["training.model.seqLen=256", "training.model.layers=1", "training.steps=1"]
    asked = [{"prompt": f"say {n}", "choices": [f"it is {n}", f"no {n}"], "answer": n % 2} for n in range(8)]
    (tmp_path / "asked.jsonl").write_text("".join(json.dumps(each) + "\n" for each in asked))
    questions = f"{{name: asked, paths: [{tmp_path}/asked.jsonl], chatTemplate: chatml, questions: true}}"
    said = [[{"role": "user", "content": f"say {n}"}, {"role": "assistant", "content": f"it is {n}"}] for n in range(9)]
    (tmp_path / "said.jsonl").write_text("".join(json.dumps({"messages": each}) + "\n" for each in said))
    beside = f"{{name: text, paths: [{tmp_path}/text.txt], batches: 2}}, "
    beside += f"{{name: said, paths: [{tmp_path}/said.jsonl], chatTemplate: chatml}}"
    source = f"paths: [{tmp_path}/pairs.jsonl], chatTemplate: chatml, preferences: true"
    learns = [
        *shape,
        f"training.data={{train: [{{name: pairs, {source}}}], attendAcross: document, heldOut: 0.3}}",
        f"training.evaluation={{everySteps: 2, batches: 99, sets: [{{name: again, {source}}}, {questions}, {beside}]}}",
        f"training.startFrom={{path: {tmp_path}/base, step: 1}}",
        "training.optimizer={name: adamw, learningRate: 1e-2}",
        "training.steps=2",
        *words,
    ]
    with runs_here(tmp_path):
        text = f"training.data.train.0.paths=[{tmp_path}/text.txt]"
        assert run_here(tmp_path / "base", *shape, text) == ExitCode.OK
        assert run_here(tmp_path / "preferred", *learns) == ExitCode.OK
    (event,) = [each for each in records(tmp_path / "preferred/metrics.jsonl") if each.get("event") == "evaluated"]
    return results(event)


@pytest.mark.parametrize("lora", [("training.lora={rank: 4}",), ()], ids=["adapters", "all weights"])
def test_preferences_are_evaluated_as_in_training(lora: tuple[str, ...], tmp_path: Path, process: Command) -> None:
    """Beside the weights that they are compared with, pair by pair; what the run begins from has learned none yet.

    Questions are answered beside them, and text and conversations have their loss a token, by the model alone.
    """
    in_training = _preferred(tmp_path, *lora)
    ended = process("evaluate", "preferred", "--json", folder=tmp_path)
    assert ended.code == 0, ended.error
    found = json.loads(ended.out)["sets"]
    assert found["again"]["pairs"] == in_training["again"]["tokens"] == 90
    assert found["again"]["loss"] == pytest.approx(in_training["again"]["loss"], rel=1e-5) != pytest.approx(np.log(2))
    assert found["again"]["accuracy"] == in_training["again"]["accuracy"]
    assert found["asked"] == pytest.approx(in_training["asked"], rel=1e-5)
    assert found["asked"]["questions"] == 8
    assert found["said"]["loss"] == pytest.approx(in_training["said"]["loss"], rel=1e-5)
    assert (
        found["said"]["tokens"] == in_training["said"]["tokens"] == sum(len(f"it is {n}<|im_end|>") for n in range(9))
    )
    assert found["text"]["perplexity"] == pytest.approx(np.exp(found["text"]["loss"]))
    shown = process("evaluate", "preferred", folder=tmp_path)
    assert "means over pairs" in shown.out
    assert "means over tokens" in shown.out
    none = ("--set=training.data.heldOut=0", "--set=training.evaluation={}")
    asked = process("evaluate", "preferred", *none, folder=tmp_path)
    named = "{name: pairs, paths: [pairs.jsonl], chatTemplate: chatml, preferences: true}"
    assert asked.code == ExitCode.USAGE
    assert f"name pairs of answers to evaluate on: --set 'training.evaluation.sets=[{named}]'" in asked.error
    refused = process(
        "evaluate", "preferred", f"--set=training.checkpoint.path={tmp_path}/base/checkpoints", folder=tmp_path
    )
    assert refused.code == ExitCode.BAD_INPUT
    assert "holds what the run begins from" in " ".join(refused.error.split())


def test_preferences_without_a_reference_are_evaluated_as_in_training(tmp_path: Path, process: Command) -> None:
    """By the model with its adapters alone."""
    simpo = ("training.lora={rank: 4}", "training.loss={preferences: simpo, beta: 2, margin: 0.5}")
    in_training = _preferred(tmp_path, *simpo)
    ended = process("evaluate", "preferred", "--json", folder=tmp_path)
    assert ended.code == 0, ended.error
    found = json.loads(ended.out)["sets"]["again"]
    assert found["pairs"] == in_training["again"]["tokens"] == 90
    assert found["loss"] == pytest.approx(in_training["again"]["loss"], rel=1e-5)
    assert found["accuracy"] == in_training["again"]["accuracy"]


def test_answers_are_evaluated_as_in_training(tmp_path: Path, process: Command) -> None:
    """Each pair gives two of KTO; how far the model has moved is of a batch, and here another number of rows is one."""
    kto = ["training.lora={rank: 4}", "training.loss={preferences: kto, beta: 0.5}"]
    kto += ["training.optimizer.average.decay=0.5"]
    in_training = _preferred(tmp_path, *kto)
    ended = process("evaluate", "preferred", "--json", folder=tmp_path)
    assert ended.code == 0, ended.error
    found = json.loads(ended.out)["sets"]["again"]
    assert found["answers"] == in_training["again"]["tokens"] == 180
    assert found["loss"] == pytest.approx(in_training["again"]["loss"], rel=2e-2) != 0.5
    assert found["loss"] < 0.5

    ended = process("evaluate", "preferred", "--average", "--json", folder=tmp_path)
    assert ended.code == 0, ended.error
    averaged, expected = json.loads(ended.out)["sets"]["said"], in_training["average/said"]
    assert averaged["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    assert averaged["loss"] != pytest.approx(in_training["said"]["loss"], rel=1e-4)


def test_other_text_is_named_on_the_command_line(run: Path, process: Command, tmp_path: Path) -> None:
    """Sets that --set gives take the place of the job's; what is shown is a table."""
    (tmp_path / "web.txt").write_text("buy this " * 20)
    words = ["--set=training.data.heldOut=0", "--set=training.evaluation.sets=[{name: web, paths: [web.txt]}]"]
    ended = process("evaluate", str(run), *words, folder=tmp_path)
    assert ended.code == 0
    (row,) = [line.split() for line in ended.out.splitlines() if "web" in line]
    assert row[-2] == "180"
    assert "books" not in ended.out


def test_questions_have_a_table_of_their_own(run: Path, process: Command, tmp_path: Path) -> None:
    """Beside that of text, or alone; a job without a single text needs none."""
    asked = [{"prompt": "2 green", "choices": [" bottles", f" b{n}"], "answer": 0} for n in range(6)]
    (tmp_path / "asked.jsonl").write_text("".join(json.dumps(each) + "\n" for each in asked))
    word = "--set=training.evaluation.sets=[{name: asked, paths: [asked.jsonl], questions: true}]"
    both = process("evaluate", str(run), word, folder=tmp_path)
    assert both.code == 0, both.error
    assert "evaluation set asked: 6 questions" in both.error
    assert "evaluating asked: 3 batches" in both.error  # of four rows: positions are learned, so each has its own
    titles = [line.strip() for line in both.out.splitlines() if "means over" in line]
    assert titles == ["step 2, means over tokens", "step 2, means over questions"]
    alone = process("evaluate", str(run), word, "--set=training.data.heldOut=0", "--json", folder=tmp_path)
    assert alone.code == 0, alone.error
    (found,) = json.loads(alone.out)["sets"].values()
    (row,) = [line.replace("│", " ").split() for line in both.out.splitlines() if "asked" in line]
    assert row == [
        "asked",
        f"{found['loss']:.4f}",
        *(f"{found[k]:.2%}" for k in ("accuracy", "accuracyNorm")),
        "48",
        "6",
    ]


def test_there_must_be_text(run: Path, command: Command) -> None:
    """Without sets, and where their files are not there, it is said what to give."""
    ended = command("evaluate", str(run), "--set=training.data.heldOut=0", "--set=training.evaluation={}")
    assert ended.code == 2
    assert "--set 'training.evaluation.sets=[{name: books, paths: [books.txt]}]'" in ended.error
    ended = command("evaluate", str(run), "--set=training.evaluation.sets=[{name: x, paths: [nothing.txt]}]")
    assert ended.code == ExitCode.BAD_INPUT
    assert "nothing.txt" in ended.error


def test_of_rewards_all_is_evaluated_as_in_training(tmp_path: Path, process: Command) -> None:
    """Held-out prompts and sets of them have what the run has recorded of that step, and so has text beside them."""
    lines = (json.dumps({"prompt": f"say {number}: ", "answer": ""}) for number in range(40))
    (tmp_path / "asked.jsonl").write_text("\n".join(lines) + "\n")
    (tmp_path / "books.txt").write_text(BOOKS)
    prompts = f"name: asked, paths: [{tmp_path}/asked.jsonl], prompts: true"
    sets = f"sets: [{{name: books, paths: [{tmp_path}/books.txt]}}, {{{prompts}}}]"
    directory = tmp_path / "run"
    (directory / "logs").mkdir(parents=True)
    (directory / ".lock").touch()
    words = [
        f"training.data={{train: [{{{prompts}}}], heldOut: 0.2}}",
        f"training.evaluation={{everySteps: 2, batches: 99, {sets}}}",
        "training.reinforcement={samples: 4, maxTokens: 4, reward: {pattern: '[ -Z]()'}}",
        "training.model.layers=1",
        "training.steps=2",
    ]
    with runs_here(tmp_path):
        assert run_here(directory, *words) == ExitCode.OK
    (record,) = (line for line in records(directory / "metrics.jsonl") if line.get("event") == "evaluated")
    ended = process("evaluate", str(directory), "--json", folder=tmp_path)
    assert ended.code == 0, ended.error
    found = json.loads(ended.out)["sets"]
    recorded = results(record)
    assert list(found) == ["heldOut", "books", "asked"]
    assert found["books"]["loss"] == pytest.approx(recorded["books"]["loss"], rel=1e-5)
    assert found["asked"]["prompts"] == 40
    assert 0 < found["asked"]["reward"] < 1
    for name in ("heldOut", "asked"):
        assert found[name] == {key: recorded[name][key] for key in found[name]}
        assert set(found[name]) == {"reward", "completionTokens", "cutCompletions", "prompts"}

    judge = "print(float(any(' ' <= each <= 'Z' for each in json.loads(line)['completion'])), flush=True)"
    (tmp_path / "judge.py").write_text(f"import json, sys\nfor line in sys.stdin:\n    {judge}\n")
    words = [
        f"training.evaluation.sets=[{{{prompts}}}]",
        "training.data.heldOut=0",
        f"training.reinforcement.reward={{command: [{sys.executable}, judge.py]}}",
    ]
    ended = process("evaluate", str(directory), *(f"--set={word}" for word in words), folder=tmp_path)
    assert ended.code == 0, ended.error
    assert "evaluating asked: 40 prompts" in ended.error
    assert "step 2, means over prompts" in ended.out
    assert re.search(rf"asked +│ +{found['asked']['reward']:.4f} │", ended.out)
