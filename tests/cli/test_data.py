"""shardwise.cli.data: the sequences of a step, and that what they are called leaves them out."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli.conftest import Command
from tests.job.wrong_files import QUICKSTART

from shardwise.job.load import dump, load
from shardwise.job.resolve import resolve
from shardwise.protocol.contract import ExitCode
from shardwise.protocol.errors import DataError
from shardwise.train.data.dataset import Dataset, Reading, prepare
from shardwise.train.data.opening import Watch

SIZE = 16


def run_of(tmp_path: Path, *overrides: str) -> Path:
    """The directory of a run on many short lines, of which 16 sequences of 32 tokens are a batch."""
    text = tmp_path / "text.jsonl"
    text.write_text("".join(f'{{"text": "{number} green bottles, and no more."}}\n' for number in range(300)))
    sources = f"{{name: bottles, paths: [{text}]}}, {{name: again, paths: [{text}]}}"
    words = [f"training.data.train=[{sources}]", "training.model.seqLen=32", *overrides]
    (tmp_path / "run" / "logs").mkdir(parents=True, exist_ok=True)
    (tmp_path / "run" / ".lock").touch()
    (tmp_path / "run" / "job.yaml").write_text(dump(resolve(load(QUICKSTART, words))))
    return tmp_path / "run"


def dataset_of(directory: Path, cache: Path) -> Dataset:
    """What the run trains on."""
    data = load(directory / "job.yaml").spec.training.data
    return prepare(data, Reading(seq_len=32, sequences=SIZE, steps=100, seed=0), cache_root=cache, watch=Watch())


def test_a_step_shows_what_it_is_trained_on(tmp_path: Path, command: Command) -> None:
    """Row by row the source, the sequence and its text, past the batches that the job and the run have left out."""
    directory = run_of(tmp_path, "training.data.leaveOut=[2]")
    (directory / "logs" / "left-out.json").write_text('{"batches": [0]}')
    shown: dict[str, Any] = json.loads(command("data", str(directory), "--step", "2", "--json").out)
    assert (shown["step"], shown["batch"]) == (2, 3)
    data = dataset_of(directory, tmp_path / "cache")
    trained = data.train.rows(np.arange(3 * SIZE, 4 * SIZE))
    assert [row["text"] for row in shown["sequences"]] == [
        data.tokenizer.decode(row) for row in trained.tokens.tolist()
    ]
    assert {row["source"] for row in shown["sequences"]} == {"bottles", "again"}
    assert "green bottles" in command("data", str(directory), "--step", "2").out
    ended = command("data", str(directory), "--step", "101")
    assert (ended.code, "expected 1 to 100" in ended.error) == (ExitCode.USAGE, True)


def test_a_step_of_a_ramp_shows_its_own_sequences(tmp_path: Path, command: Command) -> None:
    """As many as it has, those behind the steps before it."""
    directory = run_of(tmp_path, "training.batch.rampUp=[{untilStep: 2, sequences: 8}]")
    data = dataset_of(directory, tmp_path / "cache")
    for step, samples in ((2, range(8, 16)), (3, range(16, 32)), (4, range(32, 48))):
        shown: dict[str, Any] = json.loads(command("data", str(directory), "--step", str(step), "--json").out)
        trained = data.train.rows(np.array(samples))
        assert [row["text"] for row in shown["sequences"]] == [
            data.tokenizer.decode(row) for row in trained.tokens.tolist()
        ]


def test_a_step_of_a_group_shows_its_own_prompts(tmp_path: Path, command: Command) -> None:
    """Of completions that are made at once, those of its own part; what is left out is a group, for all its steps."""
    lines = (json.dumps({"prompt": f"say {number}: ", "answer": ""}) for number in range(60))
    (tmp_path / "asked.jsonl").write_text("\n".join(lines) + "\n")
    source = f"{{name: asked, paths: [{tmp_path}/asked.jsonl], prompts: true}}"
    learning = "training.reinforcement={samples: 8, maxTokens: 4, updates: 2, reward: {pattern: '(a)'}}"
    directory = run_of(tmp_path, f"training.data={{train: [{source}], leaveOut: [0]}}", learning)
    data = prepare(
        load(directory / "job.yaml").spec.training.data,
        Reading(seq_len=28, sequences=2, steps=100, seed=0),
        cache_root=tmp_path / "cache",
        watch=Watch(),
    )
    for step, batch, samples in ((1, 1, [4, 5]), (2, 1, [6, 7]), (3, 2, [8, 9])):
        shown: dict[str, Any] = json.loads(command("data", str(directory), "--step", str(step), "--json").out)
        assert shown["batch"] == batch
        prompts = [bytes(prompt.tokens).decode() for prompt in data.train.prompts(np.array(samples))]
        assert [row["text"] for row in shown["sequences"]] == prompts


def test_conversations_are_shown_without_the_room_behind_them(tmp_path: Path, command: Command) -> None:
    """The text of a sequence is that of its conversations, and its targets are those of answers."""
    messages = '[{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]'
    (tmp_path / "chat.jsonl").write_text(f'{{"messages": {messages}}}\n' * 20)
    source = f"{{name: chat, paths: [{tmp_path}/chat.jsonl], chatTemplate: chatml}}"
    words = [f"training.data.train=[{source}]", "training.data.attendAcross=document", "training.model.seqLen=100"]
    (row, *_) = json.loads(command("data", str(run_of(tmp_path, *words)), "--step", "1", "--json").out)["sequences"]
    assert row["text"] == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\nyo<|im_end|>\n"
    assert row["targets"] == len("yo<|im_end|>")


def test_what_is_shown_can_be_left_out(tmp_path: Path, command: Command) -> None:
    """In any epoch the next sequence takes its place; every other row of the run stays as it was."""
    directory = run_of(tmp_path)
    first: dict[str, Any] = json.loads(command("data", str(directory), "--step", "1", "--json").out)["sequences"][0]
    before = dataset_of(directory, tmp_path / "cache")
    at = [source.name for source in before.sources].index(first["source"])
    number = first["sequence"]
    run_of(tmp_path, f"training.data.train.{at}.leaveOut=[{number}, {number + 1}]")
    after = dataset_of(directory, tmp_path / "cache")

    rows = np.arange(4 * before.train.num_sequences)
    old, new = (np.stack(one.train.locate(rows)) for one in (before, after))
    left_out = (old[0] == at) & np.isin(old[1], [number, number + 1])
    assert 4 <= left_out.sum() <= 16
    np.testing.assert_array_equal(new[:, ~left_out], old[:, ~left_out])
    count = before.train._sequences.count()[at]
    assert set(new[1, left_out]) == {(number + 2) % count}
    some = rows[left_out][:1]
    assert not np.array_equal(before.train.rows(some).tokens, after.train.rows(some).tokens)


@pytest.mark.parametrize(("numbers", "error"), [("[100000]", "given sequence 100000"), (None, "given all")])
def test_what_cannot_be_left_out_is_refused(tmp_path: Path, numbers: str | None, error: str) -> None:
    """A sequence that is not there, and all of them; the refusal names the source and the numbers that there are."""
    count = dataset_of(run_of(tmp_path), tmp_path / "cache").train._sequences.count()[0]
    directory = run_of(tmp_path, f"training.data.train.0.leaveOut={numbers or list(range(count))}")
    with pytest.raises(DataError, match=rf"source 'bottles', leaveOut: {error}.*0 to {count - 1}"):
        dataset_of(directory, tmp_path / "cache")
