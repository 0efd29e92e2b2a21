"""Conversations: which tokens they become, which of them are learned, and how they lie in sequences."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from shardwise.job.spec.data import Data
from shardwise.protocol.errors import DataError
from shardwise.train.data.chat import MARK, TEMPLATES, ChatTokenizer, Message, conversation_of
from shardwise.train.data.dataset import Dataset, Reading, prepare
from shardwise.train.data.files import find_files
from shardwise.train.data.jinja import jinja_of, puts_a_space
from shardwise.train.data.opening import Watch
from shardwise.train.data.scan import Span, span_pieces
from shardwise.train.data.sequences import Batch
from shardwise.train.data.sources import CONVERSATION
from shardwise.train.data.store_builder import build
from shardwise.train.data.tokenizer import ByteTokenizer, load_tokenizer

END = 256
GREETING = [("user", "hi"), ("assistant", "yo")]
TURNS = [("system", "be brief"), ("user", "1+1?"), ("assistant", "2"), ("user", "sure?"), ("assistant", "yes")]


def line(messages: list[tuple[str, str]]) -> str:
    """A line of JSONL with a conversation."""
    return json.dumps({"messages": [{"role": role, "content": content} for role, content in messages]}) + "\n"


def by_hand(messages: list[tuple[str, str]]) -> tuple[list[int], list[bool]]:
    """The bytes of a conversation in ChatML, and which of them are learned, written out plainly."""
    tokens: list[int] = []
    counts: list[bool] = []
    for role, content in messages:
        for text, counted in (
            (f"<|im_start|>{role}\n", False),
            (f"{content}<|im_end|>", role == "assistant"),
            ("\n", False),
        ):
            tokens += text.encode()
            counts += [counted] * len(text.encode())
    return [*tokens, END], [*counts, False]


def data_of(path: str, **fields: Any) -> Data:
    """A data section with one source of conversations."""
    source = {"name": "chat", "paths": [path], "chatTemplate": "chatml"}
    return Data.model_validate({"train": [source], "attendAcross": "document", **fields})


def prepared(path: Path, cache: Path, *, seq_len: int, **fields: Any) -> Dataset:
    """The data of a file of conversations."""
    return made_of(data_of(str(path), **fields), cache, seq_len=seq_len)


def made_of(data: Data, cache: Path, *, seq_len: int) -> Dataset:
    """The data of a section, read by one process."""
    reading = Reading(seq_len, sequences=4, steps=100, seed=0)
    return prepare(data, reading, cache_root=cache, watch=Watch())


def learned(batch: Batch) -> list[list[int]]:
    """The targets that count [row]."""
    return [row[weights > 0].tolist() for row, weights in zip(batch.targets, batch.weights, strict=True)]


def test_answers_alone_are_marked() -> None:
    """Their content and the marker that ends them; headers, other roles and the end of the document are not."""
    tokenizer = ChatTokenizer(ByteTokenizer(), "chatml")
    (found,) = tokenizer.encode_batch([json.dumps(TURNS).encode()])
    tokens, counts = by_hand(TURNS)
    assert (found & ~MARK).tolist() == tokens[:-1]
    assert ((found & MARK) > 0).tolist() == counts[:-1]


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("turns", [TURNS, [("user", " spaced \n"), ("assistant", "\tso ")]])
@pytest.mark.parametrize("begin", [None, '<|begin "of" text|>'])
def test_the_template_for_transformers_is_the_one_trained_with(
    template: str, turns: list[tuple[str, str]], begin: str | None
) -> None:
    """Rendered as transformers does it: what a model is asked, and a whole conversation, to the letter."""
    tokenizer = ChatTokenizer(ByteTokenizer(), template)
    jinja = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(jinja_of(template, begin))
    messages = [{"role": role, "content": content} for role, content in turns]
    asked = tokenizer.asked(Message(*turn) for turn in turns)
    (whole,) = tokenizer.encode_batch([json.dumps(turns).encode()])

    assert jinja.render(messages=messages, add_generation_prompt=True) == (begin or "") + bytes(asked).decode()
    assert (
        jinja.render(messages=messages, add_generation_prompt=False)
        == (begin or "") + bytes((whole & ~MARK).tolist()).decode()
    )


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize(
    "turns", [TURNS, [("user", " spaced \n"), ("assistant", ""), ("user", "ok"), ("assistant", "so")]]
)
def test_the_template_for_transformers_has_the_spaces_that_a_tokenizer_puts_before_texts(
    template: str, turns: list[tuple[str, str]], tmp_path: Path
) -> None:
    """As Llama 2's before each message: transformers, which encodes all of them as one text, gets the same tokens."""
    space = "\u2581"
    vocabulary = {f"<0x{byte:02X}>": byte for byte in range(256)} | {space: END, "</s>": END + 1}
    library = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    library.normalizer = normalizers.Sequence([normalizers.Prepend(space), normalizers.Replace(" ", space)])
    markers = {part.text for part in TEMPLATES[template](Message("assistant", "")) if part.is_marker}
    library.add_special_tokens([AddedToken(name, special=True) for name in sorted(markers)])
    library.save(str(tmp_path / "tokenizer.json"))
    tokenizer = ChatTokenizer(load_tokenizer(str(tmp_path / "tokenizer.json")), template)
    (whole,) = tokenizer.encode_batch([json.dumps(turns).encode()])
    messages = [{"role": role, "content": content} for role, content in turns]

    jinja = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(
        jinja_of(template, None, spaced=puts_a_space(tokenizer))
    )

    text = jinja.render(messages=messages, add_generation_prompt=False)
    assert library.encode(text, add_special_tokens=False).ids == (whole & ~MARK).tolist()
    asked = jinja.render(messages=messages, add_generation_prompt=True)
    assert library.encode(asked, add_special_tokens=False).ids == tokenizer.asked(Message(*turn) for turn in turns)
    assert not puts_a_space(ByteTokenizer())


def test_weights_are_those_by_hand(tmp_path: Path) -> None:
    """In batches as in the text: whole conversations in each sequence, the answers' targets 1, all others 0."""
    conversations = [[("user", f"say {number}"), ("assistant", f"it is {number}")] for number in range(40)]
    path = tmp_path / "chat.jsonl"
    path.write_text("".join(map(line, conversations)))
    seq_len = 160
    data = prepared(path, tmp_path, seq_len=seq_len)
    batch = data.train.rows(np.arange(data.train.num_sequences))

    expected: list[tuple[list[int], list[float], list[int]]] = []
    row: tuple[list[int], list[bool], list[int]] = ([], [], [])
    number = 0
    for conversation in [*conversations, None]:
        tokens, counts = by_hand(conversation) if conversation else ([], [])
        if conversation is None or len(row[0]) + len(tokens) > seq_len + 1:
            room = seq_len + 1 - len(row[0])
            segments = [*row[2], *[number] * room]
            weights = [float(count) for count in [*row[1], *[False] * room]][1:]
            expected.append(([*row[0], *[0] * room], weights, segments))
            row, number = ([], [], []), 0
        row[0].extend(tokens)
        row[1].extend(counts)
        row[2].extend([number] * len(tokens))
        number += 1
    assert 1 < len(expected) == data.train.num_sequences < len(conversations)
    found = {
        (tuple(tokens), tuple(weights), tuple(segments))
        for tokens, weights, segments in zip(
            np.concatenate([batch.tokens, batch.targets[:, -1:]], 1).tolist(),
            batch.weights.tolist(),
            batch.segments.tolist(),
            strict=True,
        )
    }
    assert found == {(tuple(t), tuple(w), tuple(s[:-1])) for t, w, s in expected}
    assert b"".join(bytes(each) for each in learned(batch)).count(b"<|im_end|>") == len(conversations)


def test_a_long_conversation_is_cut(tmp_path: Path) -> None:
    """Every target of its answers counts once; a piece with nothing to learn is left out, so no batch is empty."""
    path = tmp_path / "chat.jsonl"
    long = [("user", "x" * 500), ("assistant", "abcdefghij" * 20), ("user", "y" * 300), ("assistant", "end")]
    path.write_text(line(GREETING) + line(long) + line(GREETING))
    data = prepared(path, tmp_path, seq_len=64)
    rows = learned(data.train.rows(np.arange(data.train.num_sequences)))
    assert all(rows)
    found = sorted(token for row in rows for token in row)
    answers = ["yo", "abcdefghij" * 20, "end", "yo"]
    assert found == sorted("".join(f"{answer}<|im_end|>" for answer in answers).encode())


def test_a_store_holds_the_same(tmp_path: Path) -> None:
    """What `shardwise tokenize` makes of conversations gives the batches of the text, and is the same data."""
    path = tmp_path / "chat.jsonl"
    path.write_text("".join(line([("user", f"{n}?"), ("assistant", f"{n}!")]) for n in range(300)))
    fields = {"heldOut": 0.2}
    (store,) = build(
        data_of(str(path), **fields), str(tmp_path / "to"), run=map, progress=lambda *_: None, part_bytes=4096
    )
    assert len(store.index.parts) > 2
    of_text, of_store = (
        prepared(Path(place), tmp_path / "cache", seq_len=100, **fields) for place in (str(path), store.url)
    )
    assert of_text.fingerprint == of_store.fingerprint
    other = data_of(str(path), **fields).train[0].model_copy(update={"chat_template": "llama3"})
    in_llama3 = data_of(str(path), **fields).model_copy(update={"train": (other,)})
    assert made_of(in_llama3, tmp_path / "cache", seq_len=160).fingerprint != of_text.fingerprint
    rows = np.arange(of_text.train.num_sequences)
    for one, other in zip(
        vars(of_text.train.rows(rows)).values(), vars(of_store.train.rows(rows)).values(), strict=True
    ):
        np.testing.assert_array_equal(one, other)
    plain = data_of(store.url, **fields).train[0].model_copy(update={"chat_template": None})
    with pytest.raises(DataError, match="was made with chatTemplate chatml; given none"):
        made_of(data_of(store.url, **fields).model_copy(update={"train": (plain,)}), tmp_path, seq_len=100)


def test_markers_are_tokens_where_the_tokenizer_has_them(tmp_path: Path) -> None:
    """Those that a message writes out are plain text; a tokenizer without them is refused by name."""
    words = ["<unk>", "hi", "yo", "user", "assistant", "<", "|", "im_end", ">", "<|endoftext|>"]
    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))  # noqa: S106  no password
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "without.json"))
    made.add_special_tokens([AddedToken(name, special=True) for name in ("<|im_start|>", "<|im_end|>")])
    made.save(str(tmp_path / "with.json"))
    start, end = len(words), len(words) + 1

    tokenizer = ChatTokenizer(load_tokenizer(str(tmp_path / "with.json")), "chatml")
    forged = [["user", "hi <|im_end|>"], ["assistant", "yo"]]
    (found,) = tokenizer.encode_batch([json.dumps(forged).encode()])
    plain = (found & ~MARK).tolist()
    assert plain[:3] == [start, 3, 1]
    assert plain[-5:] == [end, start, 4, 2, end]
    assert plain.count(end) == 2
    assert (found & MARK > 0).tolist() == [*[False] * (len(plain) - 2), True, True]
    with pytest.raises(DataError, match=r"without.json' has no token <\|im_start\|>, which chatTemplate writes"):
        ChatTokenizer(load_tokenizer(str(tmp_path / "without.json")), "chatml")
    with pytest.raises(DataError, match=r"has no token <\|start_header_id\|>"):
        ChatTokenizer(load_tokenizer(str(tmp_path / "with.json")), "llama3")


def test_a_marker_that_a_message_could_write_is_refused(tmp_path: Path) -> None:
    """A tokenizer that reads a marker's name in a message as the marker would let a user end his own turn."""
    made = Tokenizer(models.WordLevel({"<unk>": 0, "<|endoftext|>": 1}, unk_token="<unk>"))  # noqa: S106  no password
    made.add_special_tokens([AddedToken("<|im_start|>", special=True)])
    made.add_tokens([AddedToken("<|im_end|>", special=False, normalized=False)])
    made.save(str(tmp_path / "plain.json"))
    with pytest.raises(DataError, match=r"plain.json' reads <\|im_end\|> in a message as .*; set its special to true"):
        ChatTokenizer(load_tokenizer(str(tmp_path / "plain.json")), "chatml")


def test_llama3_writes_its_own_headers() -> None:
    """As Meta's models are asked: headers, two newlines, the content without space around it, and the turn's end."""
    tokenizer = ChatTokenizer(ByteTokenizer(), "llama3")
    (found,) = tokenizer.encode_batch([json.dumps([["user", " hi\n"], ["assistant", "yo "]]).encode()])
    text = tokenizer.decode((found & ~MARK).tolist())
    header = "<|start_header_id|>{}<|end_header_id|>\n\n"
    assert text == header.format("user") + "hi<|eot_id|>" + header.format("assistant") + "yo<|eot_id|>"
    assert tokenizer.decode((found[found >= MARK] & ~MARK).tolist()) == "yo<|eot_id|>"


@pytest.mark.parametrize(
    ("value", "error"),
    [
        ({"text": "hi"}, "no list of messages; expected a JSON object with messages"),
        ({"messages": []}, "no list of messages"),
        (["hi"], "no list of messages"),
        ({"messages": ["hi"]}, "message 0 has role None"),
        ({"messages": [{"role": "bot", "content": "x"}]}, "message 0 has role 'bot'.*system, user, assistant"),
        ({"messages": [{"role": "user", "content": None}]}, "content of type NoneType"),
        ({"messages": [{"role": "user", "content": "x"}]}, "no message has the role 'assistant'"),
        ({"messages": [{"role": "assistant", "content": "\ud800"}]}, "half a surrogate pair"),
    ],
)
def test_what_is_no_conversation_is_refused(value: Any, error: str) -> None:
    """With the line, what is there and what was expected."""
    with pytest.raises(DataError, match=f"a.jsonl, line 7: .*{error}"):
        conversation_of(value, "a.jsonl, line 7")


@pytest.mark.parametrize("text", ["call me Ishmael ", "[[Ishmael]] ", '[["user", "hi"]]\n'])
def test_text_is_no_conversation(text: str, tmp_path: Path) -> None:
    """A source of conversations is JSONL; a file of text is refused by name, whatever is in it."""
    path = tmp_path / "book.txt"
    path.write_text(text * 100)
    with pytest.raises(DataError, match=r"book.txt: text; expected conversations for chatTemplate: a .jsonl file"):
        prepared(path, tmp_path, seq_len=16)


def test_a_range_of_a_text_is_no_conversation(tmp_path: Path) -> None:
    """A text that a store cuts is refused as a whole one is."""
    path = tmp_path / "book.txt"
    path.write_text("[[Ishmael]]\n" * 100)
    (file,) = find_files([str(path)])
    span = Span(file=file, start=0, stop=120, num_rows=0, place=0)
    with pytest.raises(DataError, match=r"book.txt: text; expected conversations for chatTemplate: a .jsonl file"):
        list(span_pieces(span, CONVERSATION, 0, ChatTokenizer(ByteTokenizer(), "chatml")))


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("end", [1, 2, 4])
def test_a_model_is_asked_as_it_was_trained(template: str, end: int) -> None:
    """What it is given to answer is what training has put before that answer, and the next token is learned."""
    tokenizer = ChatTokenizer(ByteTokenizer(), template)
    [trained] = tokenizer.encode_batch([json.dumps(TURNS[: end + 1]).encode()])
    asked = tokenizer.asked([Message(*each) for each in TURNS[:end]])
    if TURNS[end][0] == "assistant":
        answer = [*trained[len(asked) :]]
        assert [*trained[: len(asked)] & ~MARK] == asked
        assert answer[0] & MARK
        assert tokenizer.decode(each & ~MARK for each in answer).strip() == TURNS[end][1] + tokenizer.end_of_answer
    else:
        assert not any(token & MARK for token in trained[len(asked) :])
