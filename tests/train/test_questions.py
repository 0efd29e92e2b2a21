"""Questions with choices: their scores on any mesh are those of each choice alone, in training and afterwards."""

import json
from collections.abc import Callable
from functools import partial
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.train.conftest import run_here
from tests.train.data.test_questions import encoded
from tests.train.small_gpt import forward_of, random_params, training_of
from tests.train.test_experts import MIXTURE
from tests.train.test_meshes import GEMMA, LLAMA
from tests.train.test_preferences import MESHES

from shardwise.page.gather import gather
from shardwise.protocol.contract import ExitCode
from shardwise.train.data.evaluation_sets import Evaluated
from shardwise.train.data.questions import QuestionSet, question_of
from shardwise.train.data.tokenizer import ByteTokenizer
from shardwise.train.evaluation import Evaluator, Programs
from shardwise.train.loader import Loader
from shardwise.train.metrics import records
from shardwise.train.run_data import evaluated_on
from shardwise.train.state import Program
from shardwise.train.step import lower_token_losses

MakeProgram = Callable[..., Program]
NUM_CHOICES = 4


def lines(count: int) -> list[dict[str, object]]:
    """Questions of several lengths, the answers of which are everywhere."""
    return [
        {
            "prompt": f"Which one is {number}?" + " Think." * (number % 3),
            "choices": [f" {'ab' * (1 + (number + i) % 3)}{i * number}" for i in range(2 + number % NUM_CHOICES)],
            "answer": number % 2,
        }
        for number in range(count)
    ]


def set_of(program: Program, count: int) -> QuestionSet:
    """So many questions in rows of a program."""
    found, _ = encoded(ByteTokenizer(), program.config.seq_len, *(question_of(one, "here") for one in lines(count)))
    assert len(found) == count
    return QuestionSet(found, program.config.seq_len, packed=program.config.position == "rotary")


def one_by_one(program: Program, questions: QuestionSet) -> dict[str, float]:
    """The means by a whole forward pass of each choice alone, from position 0."""
    forward, params = forward_of(program), random_params(program)
    right = right_for_each = cost = tokens = 0.0
    for question in questions._questions:
        scores = []
        for choice in question.choices:
            row = np.zeros((1, program.config.seq_len), np.int32)
            row[0, : len(choice.tokens) - 1] = choice.tokens[:-1]
            logits = forward(params, row)[0, :, : program.config.vocab_size].astype(np.float64)
            at = np.arange(choice.first - 1, len(choice.tokens) - 1)
            likely = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
            scores.append(float(likely[at, choice.tokens[at + 1]].sum()))
        right += int(np.argmax(scores)) == question.answer
        each = np.array(scores) / [choice.num_characters for choice in question.choices]
        right_for_each += int(np.argmax(each)) == question.answer
        cost -= scores[question.answer]
        tokens += len(question.choices[question.answer].tokens) - question.choices[question.answer].first
    count = len(questions._questions)
    return {
        "loss": cost / tokens,
        "accuracy": right / count,
        "accuracyNorm": right_for_each / count,
        "tokens": tokens,
        "questions": count,
    }


@pytest.mark.parametrize(
    ("mesh", "model"),
    [
        ("fsdp 2 x tensor 4", LLAMA),
        ("fsdp 2 x tensor 4", GEMMA),
        ("fsdp 2 x tensor 4", ()),
        ("data 2 x tensor 2, no fsdp, 3 microbatches", (*LLAMA, *MIXTURE)),
        ("replica 2 x fsdp 2 x tensor 2, 2 microbatches", LLAMA),
        ("fsdp 2 x context 2 x tensor 2", LLAMA),
        ("fsdp 2 x context 4, ring", LLAMA),
        ("fsdp 2 x pipeline 3", LLAMA),
    ],
    ids=lambda value: None if isinstance(value, str) else f"{len(value)} fields",
)
def test_scores_are_those_of_each_choice_alone(mesh: str, model: tuple[str, ...], make_program: MakeProgram) -> None:
    """Packed beside others or not, on every mesh, though the job's own attention goes across documents."""
    words = ("model.seqLen=64", "batch.sequences=24", *model)
    alone = make_program(*words, num_devices=1)
    questions = set_of(alone, 20)
    expected = one_by_one(alone, questions)
    assert 0.2 < expected["accuracy"] < 0.8

    devices, split = MESHES[mesh]
    program = make_program(*words, *split, num_devices=devices)
    assert program.training.data.attend_across == "stream"

    loader = partial(Loader, layout=program.layout, sequences=24, seq_len=64)
    programs = Programs(questions=lower_token_losses(program).compile())
    model_of_run = Evaluator(programs, random_params(program), loader, lambda: None)
    found = model_of_run.means(Evaluated(name="asked", sequences=questions, batches=None))
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("position", ["learned", "rotary"])
def test_choices_share_rows_where_positions_are_relative(position: str, tmp_path: Path) -> None:
    """A learned position is of a whole text: there each choice has a row of its own, as when it is read alone."""
    (tmp_path / "asked.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines(20)))
    sets = [{"name": "asked", "paths": [str(tmp_path / "asked.jsonl")], "questions": True}]
    training = training_of(
        model={"preset": "tiny", "position": position, "seqLen": 64}, evaluation={"everySteps": 5, "sets": sets}
    )
    data: Any = SimpleNamespace(held_out=None)
    phases: Any = SimpleNamespace(beat=lambda: None)
    (one,) = evaluated_on(training, data, 64, print, phases)
    num_choices = sum(2 + number % NUM_CHOICES for number in range(20))
    assert (one.sequences.num_sequences == num_choices) == (position == "learned")


@pytest.mark.usefixtures("as_a_trainer")
def test_a_run_answers_questions(tmp_path: Path) -> None:
    """Beside text or alone, with the same results; they are wherever a run is shown."""
    (tmp_path / "asked.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines(20)))
    (tmp_path / "text.txt").write_text("buy this " * 3000)
    (tmp_path / "books.txt").write_text("call me Ishmael")
    asked = f"{{name: asked, paths: [{tmp_path}/asked.jsonl], questions: true}}"
    books = f"{{name: books, paths: [{tmp_path}/books.txt]}}"
    found = {}
    for name, sets in (("both", f"{asked}, {books}"), ("alone", asked)):
        directory = tmp_path / name
        (directory / "logs").mkdir(parents=True)
        (directory / ".lock").touch()
        words = [
            f"training.data.train.0.paths=[{tmp_path}/text.txt]",
            "training.model.layers=1",
            "training.model.seqLen=64",
            "training.steps=2",
        ]
        words += [f"training.evaluation={{everySteps: 2, sets: [{sets}]}}", "training.checkpoint.everySteps=2"]
        said = StringIO()
        assert run_here(directory, *words, "training.tracking.tensorboard=true", said=said) == ExitCode.OK
        assert "evaluation set asked: 20 questions" in said.getvalue()
        (event,) = [record for record in records(directory / "metrics.jsonl") if record.get("event") == "evaluated"]
        found[name] = event["sets"]
    assert list(found["both"]) == ["asked", "books"]
    assert found["both"]["asked"] == found["alone"]["asked"]
    of_questions = found["alone"]["asked"]
    assert of_questions.keys() == {"loss", "accuracy", "accuracyNorm", "tokens", "questions"}
    assert of_questions["questions"] == 20

    page = gather(tmp_path / "both")
    assert page.set_losses["asked"] == pytest.approx(of_questions["loss"])
    assert page.set_answered == {"asked": pytest.approx(of_questions["accuracy"])}
    assert {"asked/loss", "asked/accuracy"} <= {series.name for series in page.series}
    tensorboard = b"".join(path.read_bytes() for path in (tmp_path / "both" / "logs" / "tensorboard").iterdir())
    assert b"asked/accuracyNorm" in tensorboard
