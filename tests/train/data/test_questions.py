"""Questions with choices: what lines may look like, which tokens they become, where they lie, how they are scored."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import models, pre_tokenizers

from shardwise.job.spec.data import Data, EvaluationSet
from shardwise.protocol.errors import DataError
from shardwise.train.data.chat import ChatTokenizer, Message
from shardwise.train.data.evaluation_sets import Evaluated, open_sets
from shardwise.train.data.opening import Watch
from shardwise.train.data.question_records import QuestionEncoding, questions_in
from shardwise.train.data.questions import Question, QuestionSet, question_of
from shardwise.train.data.tokenizer import ByteTokenizer, Tokenizer, load_tokenizer

CAPITAL = {"prompt": "The capital of France is", "choices": [" Rome", " Paris"], "answer": 1}


def line(**fields: Any) -> bytes:
    """The content of a line, with other fields than the usual ones."""
    return question_of({**CAPITAL, **fields}, "a")


def encoded(tokenizer: Tokenizer, seq_len: int, *lines: bytes) -> tuple[list[Question], int]:
    """The questions of these lines, as they come out of the cache, and how many are left out."""
    encoding = QuestionEncoding(tokenizer, seq_len)
    end = np.array([encoding.end_of_text], encoding.stored_dtype)
    documents = [part for record in encoding.encode_batch(lines) for part in (record, end)]
    return questions_in(np.concatenate(documents).view(np.int32))


def set_of(*lines: bytes, seq_len: int = 64, packed: bool = True) -> QuestionSet:
    """A set of these lines, in bytes."""
    return QuestionSet(encoded(ByteTokenizer(), seq_len, *lines)[0], seq_len, packed=packed)


def test_a_choice_counts_after_its_question() -> None:
    """The question has no weight, nor has what is left of a row; each choice is a segment of its own."""
    made = set_of(line()).rows(np.arange(2))
    for row, (start, text) in enumerate([(0, " Rome"), (28, " Paris")]):
        whole = list(CAPITAL["prompt"].encode() + text.encode())  # type: ignore[attr-defined]
        stop = start + len(whole) - 1
        assert made.tokens[0, start:stop].tolist() == whole[:-1]
        assert made.targets[0, start:stop].tolist() == whole[1:]
        assert np.flatnonzero(made.weights[0, start:stop]).tolist() == list(range(23, 23 + len(text)))
        assert set(made.segments[0, start:stop]) == {row}
    assert made.weights[0, 57:].sum() == made.weights[1].sum() == 0
    assert set(made.segments[0, 57:]) == {2}


def test_choices_begin_a_row_of_their_own_unless_they_are_packed() -> None:
    """So that each has the positions that a text of its own has."""
    made = set_of(line(), packed=False)
    assert made.num_sequences == made.num_rows_of_first == 2
    assert made.rows(np.arange(2)).tokens[:, :2].tolist() == [[84, 104]] * 2


def test_what_is_too_long_loses_its_beginning() -> None:
    """A question is cut from the left; one of which a choice alone is too long is left out, and counted."""
    (question,), num_left_out = encoded(ByteTokenizer(), 8, line(), line(choices=["a", "12345678b"]))
    assert [bytes(choice.tokens.astype(np.uint8)) for choice in question.choices] == [b"e is Rome", b" is Paris"]
    assert [choice.first for choice in question.choices] == [4, 3]
    assert num_left_out == 1


def words(tmp_path: Path) -> str:
    """A tokenizer whose tokens are pieces between spaces, so that a choice can change the last one of its question."""
    vocabulary = {word: n for n, word in enumerate(["?", "<eos>", "the", "▁the", "a", "▁a", "ta", "▁ta", "▁"])}
    made = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="?"))  # noqa: S106  a token, and no secret
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    made.save(str(tmp_path / "words.json"))
    return str(tmp_path / "words.json")


@pytest.mark.parametrize(
    ("prompt", "choice", "tokens", "first"),
    [
        ("the", " a", [2, 5], 1),
        ("the ", "a", [2, 5], 1),  # the space that ends the question is a part of the choice
        ("a t", "a", [4, 7], 1),  # so is half a word
        ("", "a", [1, 4], 1),  # after the end of another text
        ("t", "a", [1, 6], 1),
    ],
)
def test_a_question_and_a_choice_are_one_text(
    prompt: str, choice: str, tokens: list[int], first: int, tmp_path: Path
) -> None:
    """The choice is what is not the same as in the question alone."""
    asked = question_of({"prompt": prompt, "choices": [choice, "the"], "answer": 0}, "a")
    (question,), _ = encoded(load_tokenizer(words(tmp_path)), 8, asked)
    assert (question.choices[0].tokens.tolist(), question.choices[0].first) == (tokens, first)


def test_a_token_begins_each_choice_where_the_job_has_one(tmp_path: Path) -> None:
    """As it begins each document."""
    asked = question_of({"prompt": "the", "choices": [" a", " the"], "answer": 0}, "a")
    (question,), _ = encoded(load_tokenizer(words(tmp_path), begin="<eos>"), 8, asked)
    assert [choice.tokens.tolist() for choice in question.choices] == [[1, 2, 5], [1, 2, 3]]
    assert [choice.first for choice in question.choices] == [2, 2]


def test_in_a_chat_a_choice_is_the_answer_to_a_message() -> None:
    """Its tokens are those that training has after the header of an answer."""
    tokenizer = ChatTokenizer(ByteTokenizer(), "chatml")
    (question,), _ = encoded(tokenizer, 256, line())
    asked = tokenizer.asked([Message("user", "The capital of France is")])
    assert question.choices[1].tokens.tolist() == [*asked, *b" Paris"]
    assert question.choices[1].first == len(asked)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (["a"], "no prompt, choices and answer"),
        ({"prompt": "a", "choices": ["b", "c"]}, "no prompt, choices and answer"),
        ({**CAPITAL, "prompt": 1}, "prompt is of type int"),
        ({**CAPITAL, "choices": ["a"]}, 'choices is ["a"]; expected'),
        ({**CAPITAL, "choices": "ab"}, 'choices is "ab"; expected'),
        ({**CAPITAL, "choices": ["a", " "]}, 'choice 1 is " "; expected a text that is not blank'),
        ({**CAPITAL, "choices": ["a", None]}, "choice 1 is null; expected"),
        ({**CAPITAL, "answer": 2}, "answer is 2, of 2 choices"),
        ({**CAPITAL, "answer": -1}, "answer is -1, of 2 choices"),
        ({**CAPITAL, "answer": True}, "answer is true, of 2 choices"),
        ({**CAPITAL, "answer": "B"}, 'answer is "B", of 2 choices'),
        ({**CAPITAL, "prompt": "\ud800"}, "half a surrogate pair"),
    ],
)
def test_other_lines_are_refused(value: Any, told: str) -> None:
    """With the place, what is there and what is expected."""
    with pytest.raises(DataError) as raised:
        question_of(value, "a.jsonl, line 7")
    assert str(raised.value).startswith("a.jsonl, line 7: ")
    assert told in str(raised.value)


def test_the_likeliest_choice_is_the_answer() -> None:
    """By the sum, and by the sum for each character; the first of equals counts, and the loss is of right answers."""
    made = set_of(line(choices=["a", "bcde"], answer=1), seq_len=32, packed=False)
    first, second = np.flatnonzero(made.rows(np.arange(1)).weights), np.flatnonzero(made.rows(np.array([1])).weights)
    losses = np.zeros((2, 32), np.float32)
    losses[0, first], losses[1, second] = 2.0, 0.75
    assert made.means(losses) == {"loss": 0.75, "accuracy": 0, "accuracyNorm": 1, "tokens": 4, "questions": 1}
    losses[1, second] = 0.5
    assert made.means(losses)["accuracy"] == 0
    losses[1, second] = 0.25
    assert made.means(losses)["accuracy"] == 1


@given(
    sizes=st.lists(st.lists(st.integers(1, 12), min_size=2, max_size=5), min_size=1, max_size=12),
    packed=st.booleans(),
    rows=st.integers(1, 9),
)
def test_every_choice_lies_once_and_is_found(sizes: list[list[int]], *, packed: bool, rows: int) -> None:
    """Whatever lengths they have: scores are of a choice's own targets, and of questions that are read whole."""
    lines = [
        line(prompt="q", choices=["x" * size for size in question], answer=len(question) - 1) for question in sizes
    ]
    made = set_of(*lines, seq_len=16, packed=packed)
    batch = made.rows(np.arange(made.num_sequences + 1))
    assert batch.weights.sum() == sum(map(sum, sizes))
    assert batch.weights[-1].sum() == 0
    assert (batch.targets[batch.weights > 0] == ord("x")).all()
    for tokens, segments in zip(batch.tokens, batch.segments, strict=True):
        begins = np.flatnonzero(tokens == ord("q"))
        assert np.unique(segments[begins]).size == begins.size
        assert packed or begins.tolist() in ([0], [])
    rows = max(rows, made.num_rows_of_first)
    means = made.means(batch.weights[:rows])
    assert means["loss"] == 1  # each target that counts costs 1
    assert means["questions"] == len(sizes) or rows < made.num_sequences
    assert means["accuracyNorm"] <= 1


def opened(tmp_path: Path, text: str, seq_len: int = 32, **fields: Any) -> Evaluated:
    """A set of a file of questions."""
    (tmp_path / "questions.jsonl").write_text(text)
    one = EvaluationSet(name="asked", paths=(f"{tmp_path}/questions.jsonl",), questions=True, **fields)
    data = Data.model_validate({"train": [{"name": "text", "paths": ["text.txt"]}]})
    given: dict[str, Any] = {"cache_root": tmp_path, "watch": Watch()}
    (found,) = open_sets([one], data, seq_len=seq_len, most=1, **given)
    return found


def test_a_set_is_as_large_as_its_batches_but_has_a_question(tmp_path: Path) -> None:
    """Of fewer rows than one question needs no answer would be known."""
    found = opened(tmp_path, 3 * (json.dumps({**CAPITAL, "choices": [" Rome", " Paris", " Bern"]}) + "\n"))
    assert (found.sequences.num_sequences, found.batches) == (9, 1)
    assert [found.num_batches(size) for size in (1, 2, 4, 16)] == [3, 2, 1, 1]
    other = opened(tmp_path, json.dumps(CAPITAL) + "\n")
    assert found.identity != other.identity
    assert opened(tmp_path, json.dumps(CAPITAL) + "\n", batches=7).batches == 7


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("\n", "no question is there"),
        (
            json.dumps({**CAPITAL, "choices": ["a", "b" * 40]}),
            "all 1 have a choice that is longer than a sequence of 32",
        ),
        ('{"text": "a"}', "questions.jsonl, line 1: no prompt, choices and answer"),
    ],
)
def test_a_set_without_a_question_is_refused(text: str, told: str, tmp_path: Path) -> None:
    """Before anything is trained."""
    with pytest.raises(DataError, match=told):
        opened(tmp_path, text)


def test_questions_are_encoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next start has them from the cache of tokens, unless sequences, tokenizer or template are others."""
    count = 0
    encode = QuestionEncoding.encode_batch

    def counted(self: QuestionEncoding, pieces: Sequence[bytes]) -> Any:
        nonlocal count
        count += len(pieces)
        return encode(self, pieces)

    monkeypatch.setattr(QuestionEncoding, "encode_batch", counted)
    text = 3 * (json.dumps(CAPITAL) + "\n")
    first, again = (opened(tmp_path, text) for _ in range(2))
    assert count == 3
    assert first.identity == again.identity
    assert (first.sequences.rows(np.arange(6)).tokens == again.sequences.rows(np.arange(6)).tokens).all()
    opened(tmp_path, text, chat_template="chatml", seq_len=64)
    opened(tmp_path, text, seq_len=64)
    assert count == 9
