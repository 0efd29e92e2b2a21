"""Preferences: what lines of pairs may look like, which tokens they become, and how they lie in sequences."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.train.data.test_chat import END, by_hand, line, made_of

from shardwise.job.spec.data import Data, EvaluationSet
from shardwise.protocol.errors import DataError
from shardwise.train.data.chat import MARK, REJECTED, ChatTokenizer
from shardwise.train.data.dataset import Dataset, Reading, prepare
from shardwise.train.data.evaluation_sets import open_sets
from shardwise.train.data.opening import Watch
from shardwise.train.data.pairs import labelled_of, pair_of
from shardwise.train.data.store_builder import build
from shardwise.train.data.tokenizer import ByteTokenizer

ASKED = {"role": "user", "content": "1+1?"}
GOOD, BAD = ({"role": "assistant", "content": text} for text in ("two", "eleven"))


def pair(number: int, extra: str = "") -> str:
    """A line of JSONL with a pair of answers."""
    return json.dumps({"prompt": f"say {number}", "chosen": f"it is {number}", "rejected": f"no{extra}"}) + "\n"


def data_of(path: str, **fields: Any) -> Data:
    """A data section with one source of pairs."""
    source = {"name": "pairs", "paths": [path], "chatTemplate": "chatml", "preferences": True}
    return Data.model_validate({"train": [source], "attendAcross": "document", **fields})


def prepared(path: Path, cache: Path, *, seq_len: int, **fields: Any) -> Dataset:
    """The data of a file of pairs."""
    return made_of(data_of(str(path), **fields), cache, seq_len=seq_len)


@pytest.mark.parametrize(
    "value",
    [
        {"prompt": "1+1?", "chosen": "two", "rejected": "eleven"},
        {"prompt": [ASKED], "chosen": [GOOD], "rejected": [BAD]},
        {"chosen": [ASKED, GOOD], "rejected": [ASKED, BAD]},
        {"prompt": "1+1?", "chosen": [ASKED, GOOD], "rejected": [ASKED, BAD], "score_chosen": 8.0},
        {"prompt": [ASKED], "chosen": [ASKED, GOOD], "rejected": "eleven"},
    ],
)
def test_published_forms_are_the_same_pair(value: Any) -> None:
    """Texts, messages, and whole conversations that repeat their prompt."""
    assert json.loads(pair_of(value, "a")) == {
        "prompt": [["user", "1+1?"]],
        "chosen": [["assistant", "two"]],
        "rejected": [["assistant", "eleven"]],
    }


def test_what_both_begin_with_is_no_answer() -> None:
    """Of longer conversations the turns that are the same come before the answers, and each answer is some message."""
    again = {"role": "user", "content": "sure?"}
    found = json.loads(pair_of({"chosen": [ASKED, GOOD, again, GOOD], "rejected": [ASKED, GOOD, again, BAD]}, "a"))
    assert [role for role, _ in found["prompt"]] == ["user", "assistant", "user"]
    found = json.loads(pair_of({"chosen": [ASKED, GOOD], "rejected": [ASKED, GOOD, again, BAD]}, "a"))
    assert len(found["chosen"]) == 1
    assert len(found["rejected"]) == 3
    assert json.loads(pair_of({"prompt": "1+1?", "chosen": "two", "rejected": "two"}, "a"))["chosen"]


SYSTEM, AGAIN = {"role": "system", "content": "be short"}, {"role": "user", "content": "sure?"}


@pytest.mark.parametrize(
    ("prompt", "before", "contents"),
    [
        ([ASKED, GOOD], [AGAIN], ["1+1?", "two", "sure?"]),
        ([SYSTEM], [ASKED], ["be short", "1+1?"]),
        ([SYSTEM, ASKED], [SYSTEM, ASKED], ["be short", "1+1?"]),
        ("1+1?", [SYSTEM, ASKED], ["be short", "1+1?"]),
        ("1+1?\n", [ASKED], ["1+1?"]),
    ],
)
def test_a_prompt_is_there_once(prompt: Any, before: list[Any], contents: list[str]) -> None:
    """Messages that go on after the prompt follow it; a conversation that has it already is as it was given."""
    value = {"prompt": prompt, "chosen": [*before, GOOD], "rejected": [*before, BAD]}
    assert [content for _, content in json.loads(pair_of(value, "a"))["prompt"]] == contents


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ({"messages": [ASKED, GOOD]}, "no chosen and rejected; expected a JSON object with chosen"),
        (["hi"], "no chosen and rejected"),
        ({"prompt": "a", "chosen": "b"}, "no chosen and rejected"),
        ({"chosen": "b", "rejected": "c"}, "chosen answers nothing; expected prompt"),
        ({"prompt": "a", "chosen": 1, "rejected": "c"}, "chosen is of type int"),
        ({"prompt": "a", "chosen": [], "rejected": "c"}, "chosen is of type list, or empty"),
        ({"prompt": 3, "chosen": "b", "rejected": "c"}, "prompt is of type int"),
        ({"prompt": "a", "chosen": [ASKED], "rejected": "c"}, "chosen ends with a message of role 'user'"),
        ({"prompt": "a", "chosen": [{"role": "bot", "content": ""}], "rejected": "c"}, "chosen: message 0 has role"),
        ({"prompt": "a", "chosen": [ASKED, GOOD], "rejected": "c"}, "chosen begins with a message of role 'user' that"),
        ({"prompt": [ASKED, GOOD], "chosen": [SYSTEM, GOOD], "rejected": "c"}, "chosen begins .* role 'system' that"),
        ({"prompt": "a", "chosen": "b", "rejected": "\ud800"}, "rejected: half a surrogate pair"),
    ],
)
def test_what_is_no_pair_is_refused(value: Any, error: str) -> None:
    """With the line, what is there and what was expected."""
    with pytest.raises(DataError, match=f"a.jsonl, line 7.*{error}"):
        pair_of(value, "a.jsonl, line 7")


def test_tokens_are_those_of_both_conversations() -> None:
    """One after the other, each as a conversation by itself has them; the second has the mark of what is rejected."""
    value = {"prompt": [ASKED, GOOD, ASKED], "chosen": [GOOD], "rejected": [BAD]}
    (found,) = ChatTokenizer(ByteTokenizer(), "chatml").encode_batch([pair_of(value, "a")])
    before = [("user", "1+1?"), ("assistant", "two"), ("user", "1+1?")]
    good, bad = (by_hand([*before, ("assistant", text)])[0] for text in ("two", "eleven"))

    assert (found & (REJECTED - 1)).tolist() == [*good, *bad[:-1]], "the end of the document is put by who writes it"
    assert ((found & REJECTED) > 0).tolist() == [*[False] * len(good), *[True] * (len(bad) - 1)]
    assert bytes((found[(found & MARK) > 0] & 255).tolist()) == b"two<|im_end|>eleven<|im_end|>"


def test_a_sequence_has_whole_pairs(tmp_path: Path) -> None:
    """Both answers of each, in segments of their own, even and odd; no target crosses from one to the other."""
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(map(pair, range(40))))
    data = prepared(path, tmp_path, seq_len=400)
    batch = data.train.rows(np.arange(data.train.num_sequences))
    answers = []
    for targets, weights, segments in zip(batch.targets, batch.weights, batch.segments, strict=True):
        assert (np.diff(segments) >= 0).all()
        for number in range(0, segments[weights > 0].max(), 2):
            sides = [bytes(targets[(weights > 0) & (segments == number + side)].tolist()).decode() for side in (0, 1)]
            answers.append(tuple(each.removesuffix("<|im_end|>") for each in sides))

    assert data.train.num_sequences < 40
    assert sorted(answers) == sorted((f"it is {number}", "no") for number in range(40))
    assert END not in batch.targets[batch.weights > 0]


def test_pairs_that_are_too_long_are_left_out(tmp_path: Path) -> None:
    """The others are all there, and how many are not is told; where none fits, the source is refused."""
    path = tmp_path / "pairs.jsonl"
    said: list[str] = []
    path.write_text("".join(pair(number, "o" * 500 * (number % 3 == 0)) for number in range(9)))
    reading = Reading(300, sequences=4, steps=100, seed=0)
    data = prepare(data_of(str(path)), reading, cache_root=tmp_path, watch=Watch(report=said.append))
    batch = data.train.rows(np.arange(data.train.num_sequences))
    learned = bytes(batch.targets[batch.weights > 0].tolist()).decode()

    assert sorted(learned.split("<|im_end|>")[:-1:2]) == [f"it is {number}" for number in range(9) if number % 3]
    assert said[-1] == "pairs: 3 pairs of answers are longer than the 301 tokens of a sequence, and are left out"
    with pytest.raises(DataError, match=r"'pairs': all 9 pairs .* longer than the 33 tokens of a sequence.*seqLen"):
        prepared(path, tmp_path, seq_len=32)


def test_a_store_holds_the_same(tmp_path: Path) -> None:
    """What `shardwise tokenize` makes of pairs gives the batches of the text; held-out pairs are whole too."""
    path = tmp_path / "pairs.jsonl"
    path.write_text("".join(map(pair, range(300))))
    fields = {"heldOut": 0.2}
    (store,) = build(
        data_of(str(path), **fields), str(tmp_path / "to"), run=map, progress=lambda *_: None, part_bytes=4096
    )
    of_text, of_store = (
        prepared(Path(place), tmp_path / "cache", seq_len=300, **fields) for place in (str(path), store.url)
    )
    assert of_text.fingerprint == of_store.fingerprint
    assert of_text.held_out
    assert of_store.held_out
    for one, other in ((of_text.train, of_store.train), (of_text.held_out, of_store.held_out)):
        rows = np.arange(one.num_sequences)
        for x, y in zip(vars(one.rows(rows)).values(), vars(other.rows(rows)).values(), strict=True):
            np.testing.assert_array_equal(x, y)


def test_conversations_are_no_pairs(tmp_path: Path) -> None:
    """Each kind of line is refused in a source of the other, which would learn what was rejected."""
    for text, is_pairs, error in ((line([("user", "a")]), True, "no chosen"), (pair(1), False, "no list of messages")):
        path = tmp_path / f"{is_pairs}.jsonl"
        path.write_text(text * 9)
        source = {"name": "a", "paths": [str(path)], "chatTemplate": "chatml", "preferences": is_pairs}
        with pytest.raises(DataError, match=error):
            made_of(Data.model_validate({"train": [source], "attendAcross": "document"}), tmp_path, seq_len=64)


def test_a_set_without_a_pair_that_fits_is_refused(tmp_path: Path) -> None:
    """By its name, and for that: more of them would not help."""
    path = tmp_path / "pairs.jsonl"
    path.write_text(pair(1) * 3)
    said = {"name": "long", "paths": [str(path)], "chatTemplate": "chatml", "preferences": True}
    one, data = EvaluationSet.model_validate(said), data_of(str(path))
    with pytest.raises(DataError, match=r"'long': all 3 pairs of answers are longer than the 33 tokens.*Raise seqLen"):
        open_sets([one], data, seq_len=32, cache_root=tmp_path, watch=Watch(), most=None)


def test_text_is_no_pair(tmp_path: Path) -> None:
    """A file of text is refused in words of what was expected."""
    path = tmp_path / "book.txt"
    path.write_text("call me Ishmael " * 100)
    with pytest.raises(DataError, match=r"book.txt: text; expected pairs of answers for preferences: a .jsonl file"):
        prepared(path, tmp_path, seq_len=16)


@pytest.mark.parametrize(
    ("is_pairs", "error"),
    [
        (True, "holds pairs of answers; given a source of conversations. Set preferences: true"),
        (False, "holds conversations; given a source of pairs of answers. Take preferences out"),
    ],
)
def test_a_store_of_the_other_kind_is_refused(tmp_path: Path, *, is_pairs: bool, error: str) -> None:
    """Pairs and conversations have the same tokenizer, and marks that mean something else."""
    path = tmp_path / "a.jsonl"
    path.write_text((pair(1) if is_pairs else line([("user", "a"), ("assistant", "b")])) * 9)
    source = {"name": "a", "paths": [str(path)], "chatTemplate": "chatml", "preferences": is_pairs}
    data = Data.model_validate({"train": [source], "attendAcross": "document"})
    (made,) = build(data, str(tmp_path / "tokens"), run=map, progress=lambda *_: None)
    other = {**source, "paths": [made.url], "preferences": not is_pairs}
    with pytest.raises(DataError, match=error):
        made_of(Data.model_validate({"train": [other], "attendAcross": "document"}), tmp_path, seq_len=64)


# ---- answers with labels


@pytest.mark.parametrize(
    "value",
    [
        {"prompt": "1+1?", "completion": "two", "label": True},
        {"prompt": [ASKED], "completion": [GOOD], "label": True},
        {"completion": [ASKED, GOOD], "label": True},
        {"prompt": [ASKED], "completion": [ASKED, GOOD], "label": True, "score": 8.0},
    ],
)
def test_published_forms_are_the_same_answer(value: Any) -> None:
    """Texts, messages, and a whole conversation that repeats its prompt; half of a pair, by the label."""
    assert json.loads(labelled_of(value, "a")) == {"prompt": [["user", "1+1?"]], "chosen": [["assistant", "two"]]}
    bad = json.loads(labelled_of({**value, "label": False}, "a"))
    assert bad == {"prompt": [["user", "1+1?"]], "rejected": [["assistant", "two"]]}


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (
            {"prompt": "a", "completion": "b"},
            "no completion, or no true or false as label; expected .* Take labels out",
        ),
        ({"prompt": "a", "completion": "b", "label": 1}, "no true or false as label"),
        ({"prompt": "a", "chosen": "b", "rejected": "c"}, "no completion"),
        ({"completion": "b", "label": True}, "completion answers nothing"),
        ({"prompt": "a", "completion": [ASKED], "label": True}, "completion ends with a message of role 'user'"),
    ],
)
def test_what_is_no_answer_is_refused(value: Any, error: str) -> None:
    """With the line, what is there and what was expected."""
    with pytest.raises(DataError, match=f"a.jsonl, line 7.*{error}"):
        labelled_of(value, "a.jsonl, line 7")


def test_a_sequence_has_whole_answers(tmp_path: Path) -> None:
    """Good ones in even segments and bad ones in odd, by what the assistant says last; a store of them is no other."""
    path = tmp_path / "answers.jsonl"
    lines = [
        {"prompt": [ASKED, GOOD, AGAIN], "completion": f"it is {number}", "label": number % 3 > 0}
        for number in range(30)
    ]
    path.write_text("".join(json.dumps(each) + "\n" for each in lines))
    source = {"name": "answers", "paths": [str(path)], "chatTemplate": "chatml", "labels": True}
    data = Data.model_validate({"train": [source], "attendAcross": "document"})
    found = made_of(data, tmp_path / "cache", seq_len=400)
    batch = found.train.rows(np.arange(found.train.num_sequences))
    answers: dict[bool, list[str]] = {True: [], False: []}
    for targets, weights, segments in zip(batch.targets, batch.weights, batch.segments, strict=True):
        assert (np.diff(segments) >= 0).all()
        for segment in np.unique(segments[weights > 0]):
            text = bytes(targets[(weights > 0) & (segments == segment)].tolist()).decode()
            answers[bool(segment % 2 == 0)].append(text.removesuffix("<|im_end|>"))

    assert found.train.num_sequences < 30
    assert {label: sorted(texts) for label, texts in answers.items()} == {
        label: sorted(f"it is {number}" for number in range(30) if (number % 3 > 0) == label) for label in (True, False)
    }
    (store,) = build(data, str(tmp_path / "tokens"), run=map, progress=lambda *_: None)
    other = {**source, "paths": [store.url], "labels": False, "preferences": True}
    with pytest.raises(DataError, match=r"holds answers with labels; given a source of pairs .* Set labels: true"):
        made_of(Data.model_validate({"train": [other], "attendAcross": "document"}), tmp_path, seq_len=400)
