"""shardwise generate: tokens become text, files prompts, and what is told; the command runs in test_main_job."""

import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tests.cli.conftest import QUICKSTART, Command
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from shardwise.cli.asked import by_user, chat_tokenizer, read_conversations, to_answer, to_go_on
from shardwise.cli.generated_texts import Texts, tell_of_cut, with_text
from shardwise.cli.prompts import read_prompts
from shardwise.cli.text_pieces import before_stop, decoder_after, pieces
from shardwise.job.load import load
from shardwise.job.spec import TrainingJob
from shardwise.protocol.errors import UsageError
from shardwise.train.data.chat import ChatTokenizer
from shardwise.train.data.tokenizer import ByteTokenizer, load_tokenizer
from shardwise.train.generation import Made

decode = ByteTokenizer().decode


def streamed(tokens: Iterable[int]) -> list[str]:
    """Return the pieces of byte tokens."""
    return list(pieces(tokens, decode))


@given(st.lists(st.integers(0, 256), max_size=40))
def test_pieces_are_the_text(tokens: list[int]) -> None:
    """Whatever a model makes, its pieces together are the text of all its tokens, and each can be written as UTF-8."""
    text = streamed(tokens)
    assert "".join(text) == decode(tokens)
    assert all(piece.encode("utf-8").decode("utf-8") == piece for piece in text)


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\N{REPLACEMENT CHARACTER}"), max_size=20))
def test_a_character_is_written_once_it_is_whole(text: str) -> None:
    """Valid text never shows a replacement character on its way, and no character waits for the next one."""
    found = streamed(text.encode())
    assert "\N{REPLACEMENT CHARACTER}" not in "".join(found)
    assert [piece for piece in found if piece] == list(text)


@given(st.text("ab \u00e9\u20ac\U0001f600", max_size=8))
def test_a_character_of_bytes_is_written_once_it_is_whole(text: str) -> None:
    """So it is where each byte of an open character has a replacement character, as in the decoders of Llama 2.

    There a byte that begins a character also opens those before it again: none of them is written twice.
    """
    tokenizer = Tokenizer(models.BPE(vocab={f"<0x{byte:02X}>": byte for byte in range(256)}, merges=[]))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    found = list(pieces(text.encode(), lambda tokens: tokenizer.decode([*tokens])))
    assert [piece for piece in found if piece] == list(text)


def _byte_level() -> Tokenizer:
    """Return a tokenizer of bytes and a few words, as those of GPT-2, Llama 3 and Qwen are."""
    words = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "hi", "\u0120hi", "\u0120\u00e2\u0124", "\u00ac\u0120"]
    made = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=[]))
    made.decoder = decoders.ByteLevel()
    return made


def _byte_fallback(*, strips: bool) -> Tokenizer:
    """Return a tokenizer of words and of the bytes of all else, as Llama 2's, which strips, and Gemma's."""
    words = [*(f"<0x{byte:02X}>" for byte in range(256)), *_WORDS]
    made = Tokenizer(models.BPE(vocab={word: number for number, word in enumerate(words)}, merges=[]))
    strip = [decoders.Strip(" ", 1, 0)] if strips else []
    made.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return made


def _of_words(decoder: Any) -> Tokenizer:
    words = [*_WORDS, "##ing", "##", "ab", ".", "n't", "do", "\u20ac"]
    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="hi"))  # noqa: S106
    if decoder is not None:
        made.decoder = decoder
    return made


_WORDS = ["\u2581hi", "hi", "\u2581", "\u2581\u2581", "<s>", "\u2581<"]
_TOKENIZERS = {
    "ByteLevel": _byte_level(),
    "Llama 2": _byte_fallback(strips=True),
    "Gemma": _byte_fallback(strips=False),
    "WordPiece": _of_words(decoders.WordPiece()),
    "Metaspace": _of_words(decoders.Metaspace()),
    "BPE with suffixes": _of_words(decoders.BPEDecoder("g")),
    "no decoder": _of_words(None),
}
for _each in _TOKENIZERS.values():
    _each.add_special_tokens(["<s>"])


@given(st.data(), st.sampled_from(sorted(_TOKENIZERS)), st.booleans())
def test_pieces_are_the_text_of_every_decoder(data: st.DataObject, name: str, has_prompt: bool) -> None:  # noqa: FBT001
    """Whatever a decoder does at the beginning of a text, the pieces are the text of all tokens at once.

    Bytes that stand for what has no token come as whole characters here: those that are none hide, when they come,
    the characters before them, and what is written stays.
    """
    tokenizer = _TOKENIZERS[name]
    alone = st.integers(0, tokenizer.get_vocab_size()).map(lambda token: [token])
    if name in ("Llama 2", "Gemma"):
        character = st.text("a\n \u00e9\u20ac\U0001f600", min_size=1, max_size=3).map(lambda text: [*text.encode()])
        alone = st.integers(256, tokenizer.get_vocab_size()).map(lambda token: [token]) | character
    tokens = [token for some in data.draw(st.lists(alone, max_size=30)) for token in some]
    before = [token for some in data.draw(st.lists(alone, max_size=6)) for token in some] if has_prompt else []

    def of(tokens: Sequence[int]) -> str:
        return str(tokenizer.decode([*tokens], skip_special_tokens=True))

    whole = decoder_after(before, of)
    assert "".join(pieces(tokens, whole)) == whole(tokens)


@pytest.mark.parametrize("name", sorted(_TOKENIZERS))
def test_a_long_text_is_decoded_in_proportion_to_its_length(name: str) -> None:
    """Each new token has a few of those before it decoded with it, not all."""
    tokenizer, decoded = _TOKENIZERS[name], 0

    def counted(tokens: Sequence[int]) -> str:
        nonlocal decoded
        decoded += len(tokens)
        return str(tokenizer.decode([*tokens], skip_special_tokens=True))

    one = [*"\u20ac a".encode()] if tokenizer.get_vocab_size() > 256 else [0, 1, 7]
    tokens = one * 400
    assert "".join(pieces(tokens, counted)) == tokenizer.decode(tokens)
    assert decoded < 20 * len(tokens)


def test_prompt_that_is_no_text(command: Command) -> None:
    """Bytes of another encoding in the prompt are refused before anything is loaded."""
    ended = command("generate", "anywhere", "--prompt", "caf\udce9")
    assert ended.code == 2
    assert "--prompt" in ended.error


@example(["ab", "c"], ["abc", "b"])
@given(st.lists(st.text("abc", max_size=4), max_size=8), st.lists(st.text("abc", min_size=1, max_size=3), max_size=3))
def test_text_ends_before_the_first_stop(parts: list[str], stops: list[str]) -> None:
    """However the text comes, what is written is all of it before the first of the stop texts."""
    text = "".join(parts)
    places = [place for stop in stops if (place := text.find(stop)) >= 0]
    assert "".join(before_stop(parts, stops)) == text[: min(places, default=len(text))]


def test_only_what_may_be_a_stop_is_held_back() -> None:
    """All else is written at once, and nothing is asked for after the stop."""

    def parts() -> Iterator[str]:
        yield from ["one, t", "wo", ", three", "."]
        raise AssertionError

    found = before_stop(parts(), ["two.", "three."])
    assert [next(found) for _ in range(3)] == ["one, ", "", "two, "]
    assert list(found) == [""]


def test_lines_are_in_the_order_of_the_prompts() -> None:
    """A line is written when all before it are done, with the text up to a stop and why it ended."""
    texts = Texts(to_go_on(ByteTokenizer(), ["a", "b"], ["!"]), 2, ByteTokenizer(), 4)
    made = [Made(1, [*b"two"], is_last=True), Made(0, [*b"x!"], is_last=False), Made(0, [*b"yz"], is_last=True)]
    lines = texts.lines(iter([*made, Made(2, [*b"four"], is_last=True)]))
    keys = ("prompt", "sample", "text", "tokens", "finishReason")
    assert [tuple(json.loads(line)[key] for key in keys) for line in lines] == [
        ("a", 0, "x", 2, "stop"),
        ("a", 1, "two", 3, "stop"),
        ("b", 0, "four", 4, "length"),
    ]


def test_the_space_after_a_prompt_is_written(tmp_path: Path) -> None:
    """A decoder that takes the space off a text's first word leaves it where the word goes on from a prompt.

    An answer is a text of its own: its first word has no space.
    """
    words = ["<unk>", "</s>", "\u2581hi", "\u2581ab", "<|im_start|>", "<|im_end|>"]
    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))  # noqa: S106
    made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    made.add_special_tokens(["</s>", "<|im_start|>", "<|im_end|>"])
    made.save(str(tmp_path / "tokenizer.json"))
    tokenizer = load_tokenizer(str(tmp_path / "tokenizer.json"), end="</s>")
    hi, ab = words.index("\u2581hi"), words.index("\u2581ab")

    going_on = Texts(to_go_on(tokenizer, ["hi hi", ""], ["x", " ab ab"]), 1, tokenizer, 9)
    pair = [Made(0, [hi, ab], is_last=True), Made(1, [hi, ab], is_last=True)]
    assert [json.loads(line)["text"] for line in going_on.lines(pair)] == [" hi ab", "hi ab"]
    assert (going_on.has_stop(0, [ab, ab]), going_on.has_stop(1, [ab, ab])) == (True, False)
    assert "".join(going_on.stream([Made(0, [hi, ab, ab], is_last=True)])) == "hi hi hi"
    answering = Texts(to_answer(ChatTokenizer(tokenizer, "chatml"), [by_user("hi")], []), 1, tokenizer, 9)
    assert "".join(answering.stream([Made(0, [hi, ab], is_last=True)])) == "hi ab"


@given(st.text("ab \u00e9\u20ac\U0001f600", max_size=12), st.text("ab \u00e9\u20ac\U0001f600", max_size=4))
def test_text_after_a_prompt_of_bytes(prompt: str, text: str) -> None:
    """However many characters a prompt ends with that are several tokens each, what follows is whole."""
    tokenizer = Tokenizer(models.BPE(vocab={f"<0x{byte:02X}>": byte for byte in range(256)}, merges=[]))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    after = decoder_after([*prompt.encode()], lambda tokens: tokenizer.decode([*tokens]))
    assert after([*text.encode()]) == text


@pytest.mark.parametrize(("made", "stops", "num_tokens"), [("\u20ac abab", ["ab"], 6), ("xyz.", ["z.", "y"], 2)])
def test_tokens_behind_a_stop_are_not_counted(made: str, stops: list[str], num_tokens: int) -> None:
    """A block of tokens is made at once: those that count are the fewest whose text has a stop."""
    texts = Texts(to_go_on(ByteTokenizer(), [""], stops), 1, ByteTokenizer(), 100)
    (line,) = texts.lines([Made(0, [*made.encode()], is_last=True)])
    found = json.loads(line)
    assert (found["tokens"], found["finishReason"]) == (num_tokens, "stop")


@pytest.mark.parametrize("block", [1, 2, 3, 16])
@pytest.mark.parametrize(
    ("made", "stops", "text", "num_tokens"),
    [
        ("xabcd.", ["abcd", "bc"], "x", 5),
        ("xabce.", ["abcd", "bc"], "xa", 4),
        ("xabc", ["bc", "abcdefgh"], "xa", 4),
        ("xabab", ["b", "abab"], "x", 5),
        ("xabb.b", ["b", "ab"], "x", 3),
    ],
)
def test_stops_that_overlap(made: str, stops: list[str], text: str, num_tokens: int, block: int) -> None:
    """A text ends where the first of its stop texts begins, however it is written and however many tokens come at once.

    A stop text that is whole waits for one that may have begun before it.
    """
    texts = Texts(to_go_on(ByteTokenizer(), [""], stops), 1, ByteTokenizer(), 100)
    tokens, parts = [*made.encode()], list[Made]()
    for end in range(block, len(tokens) + block, block):
        is_last = end >= len(tokens) or texts.has_stop(0, tokens[:end])
        parts.append(Made(0, tokens[end - block : end], is_last=is_last))
        if is_last:
            break
    (line,) = texts.lines(parts)
    found = json.loads(line)
    assert (found["text"], found["tokens"], found["finishReason"]) == (text, num_tokens, "stop")
    assert "".join(texts.stream(parts)) == text


@pytest.mark.parametrize("is_chat", [False, True])
def test_a_stop_that_is_a_special_token(is_chat: bool, tmp_path: Path) -> None:  # noqa: FBT001
    """Such a token has no text, so that the text ends before it, as before the token that ends documents."""
    words = ["<unk>", "</s>", "\u2581hi", "\u2581ab", "<|im_start|>", "<|im_end|>", "<|eom_id|>"]
    made = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))  # noqa: S106
    made.pre_tokenizer, made.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    made.add_special_tokens([word for word in words if word[0] == "<"])
    made.save(str(tmp_path / "tokenizer.json"))
    tokenizer, (_, _, hi, ab, _, _, end) = load_tokenizer(str(tmp_path / "tokenizer.json"), end="</s>"), range(7)

    stops = ["x", "<|eom_id|>"]
    chat = ChatTokenizer(tokenizer, "chatml")
    task = to_answer(chat, [by_user("hi")], stops) if is_chat else to_go_on(tokenizer, [""], stops)
    texts = Texts(task, 1, tokenizer, 9)
    assert [texts.has_stop(0, tokens) for tokens in ([hi, ab], [hi, ab, end, hi])] == [False, True]
    blocks = [Made(0, [hi], is_last=False), Made(0, [ab, end, hi], is_last=True)]
    (line,) = texts.lines(blocks)
    found = json.loads(line)
    assert (found["text"], found["tokens"], found["finishReason"]) == ("hi ab", 2, "stop")
    assert "".join(texts.stream(blocks)) == "hi ab"


def test_a_stop_that_is_no_special_token_is_a_text() -> None:
    """So it is with bytes, of which none is special."""
    task = to_go_on(ByteTokenizer(), [""], ["<|im_end|>", "a"])
    assert (task.stops, task.ends) == (["<|im_end|>", "a"], frozenset())


def test_prompts_that_are_cut_are_told() -> None:
    """A model sees one window at most; of what it does not see, the person who asks is told."""
    told: list[str] = []
    tell_of_cut([[1] * 64], 64, told.append)
    assert told == []
    tell_of_cut([[1] * 65], 64, told.append)
    tell_of_cut([[1] * 65, [1], [1] * 2000], 64, told.append)
    assert told == [
        "the prompt is longer than the model's window: 65 tokens for 64; it sees the end alone",
        "2 of 3 prompts are longer than the model's window: 2,000 tokens for 64; it sees the end alone",
    ]


@pytest.mark.parametrize("asked", [1, 2])
def test_tokens_that_have_no_text_are_told(asked: int) -> None:
    """How many there are is said once, when the text has ended or is cut at a stop; without any nothing is said."""
    told: list[str] = []
    made = with_text(iter([Made(0, [97, 257, 300], is_last=False), Made(0, [98], is_last=True)]), 257, told.append)
    parts = [next(made) for _ in range(asked)]
    assert (len(parts), told) == (asked, [])
    made.close()
    assert [words.split(",")[0] for words in told] == [f"2 of {2 + asked} tokens have no text"]
    assert list(with_text([Made(0, [97, 256], is_last=True)], 257, told.append)) == [Made(0, [97, 256], is_last=True)]
    assert len(told) == 1


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("none.txt", None, "cannot be read"),
        ("empty.txt", b"", "is empty, expected a prompt on each line"),
        ("latin.txt", b"caf\xe9", "is not UTF-8 at byte 3"),
        ("wrong.jsonl", b'{"prompt": "a"}\nb', "line 2 is no JSON"),
        ("wrong.jsonl", b'{"text": "a"}', "line 1: expected an object with a text"),
        ("deep.jsonl", b'{"prompt": "a"}\n' + b"[" * 100_000, "deep.jsonl, line 2 is no JSON"),
        ("half.jsonl", b'{"prompt": "a"}\n{"prompt": "a\\ud800b"}', "half.jsonl, line 2: half a surrogate pair"),
    ],
)
def test_prompts_that_cannot_be_read(name: str, content: bytes | None, words: str, tmp_path: Path) -> None:
    """The file, the line and what was expected are said."""
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=words):
        read_prompts(tmp_path / name)


def test_a_prompt_of_a_file_that_is_no_text(tmp_path: Path, command: Command) -> None:
    """Half a surrogate pair, which JSON can write, is refused by its file before anything is loaded."""
    (tmp_path / "asked.jsonl").write_text(r'{"prompt": "\ud800"}')
    ended = command("generate", "anywhere", "--prompts", str(tmp_path / "asked.jsonl"))
    assert (ended.code, "asked.jsonl, line 1: half a surrogate pair" in ended.error) == (2, True)


def test_prompts_of_a_text(tmp_path: Path) -> None:
    """Each line is one, an empty one too; the file's last line break begins none."""
    (tmp_path / "prompts.txt").write_bytes(b"one\r\n\n three\n")
    assert read_prompts(tmp_path / "prompts.txt") == ["one", "", " three"]


def test_a_byte_order_mark_is_no_part_of_a_prompt(tmp_path: Path) -> None:
    """Some editors put it before UTF-8: prompts and conversations are those of the file without it."""
    (tmp_path / "prompts.txt").write_bytes(b"\xef\xbb\xbfone\ntwo\n")
    (tmp_path / "prompts.jsonl").write_bytes(b'\xef\xbb\xbf{"prompt": "one"}\n')
    (tmp_path / "asked.jsonl").write_bytes(b'\xef\xbb\xbf{"messages": [{"role": "user", "content": "one"}]}\n')
    assert read_prompts(tmp_path / "prompts.txt") == ["one", "two"]
    assert read_prompts(tmp_path / "prompts.jsonl") == ["one"]
    assert read_conversations(tmp_path / "asked.jsonl") == [[("user", "one")]]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--prompt", "a", "--prompts", "b"], "expected one of them"),
        (["--stop", ""], "given an empty text"),
        (["--chat"], "given nothing to answer"),
        (["--tokens", "3000000000"], "Invalid value for '--tokens'"),
    ],
)
def test_wishes_that_do_not_go_together(arguments: list[str], words: str, command: Command) -> None:
    """They are refused before anything is loaded."""
    ended = command("generate", "anywhere", *arguments)
    assert ended.code == 2
    assert words in ended.error


def test_conversations_of_a_file(tmp_path: Path) -> None:
    """A line of JSON holds messages, a line of a text is a user's; the answers are lines with the messages."""
    (tmp_path / "asked.jsonl").write_text('{"messages": [{"role": "system", "content": "s"}]}\n\n')
    (tmp_path / "asked.txt").write_text("hi\n")
    conversations = [*read_conversations(tmp_path / "asked.jsonl"), *read_conversations(tmp_path / "asked.txt")]
    task = to_answer(ChatTokenizer(ByteTokenizer(), "chatml"), conversations, ["!"])
    assert [bytes(each.tokens).decode() for each in task.asked] == [
        "<|im_start|>system\ns<|im_end|>\n<|im_start|>assistant\n",
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n",
    ]
    texts = Texts(task, 1, ByteTokenizer(), 20)
    made = [Made(0, [*b"a!"], is_last=True), Made(1, [*b"yo<|im_end|>\n"], is_last=True)]
    assert [json.loads(line) for line in texts.lines(made)] == [
        {"messages": [{"role": "system", "content": "s"}]} | _ended("a", 2),
        {"messages": [{"role": "user", "content": "hi"}]} | _ended("yo", 12),
    ]


def _ended(text: str, tokens: int) -> dict[str, Any]:
    return {"sample": 0, "text": text, "tokens": tokens, "finishReason": "stop"}


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is empty"),
        ("no", r"line 1 is no JSON; expected \{\"messages\""),
        ("[" * 100_000, r"line 1 is no JSON; expected \{\"messages\""),
        ('{"prompt": "a"}', "line 1: no list of messages"),
        ('{"messages": [{"role": "me", "content": "a"}]}', "message 0 has role 'me'"),
        (r'{"messages": [{"role": "user", "content": "\ud800"}]}', "half a surrogate pair"),
    ],
)
def test_conversations_that_cannot_be_read(content: str, words: str, tmp_path: Path) -> None:
    """The file, the line and what was expected are said."""
    (tmp_path / "asked.jsonl").write_text(content)
    with pytest.raises(UsageError, match=words):
        read_conversations(tmp_path / "asked.jsonl")


def _job(*templates: str) -> TrainingJob:
    sources = [
        {"name": f"s{number}", "paths": ["a.jsonl"]} | ({"chatTemplate": template} if template else {})
        for number, template in enumerate(templates)
    ]
    return load(QUICKSTART, [f"training.data.train={json.dumps(sources)}", "training.data.attendAcross=document"])


def test_the_template_is_that_of_the_job() -> None:
    """Unless one is given; without any, and with two, what to add is said."""
    tokenizer = ByteTokenizer()
    assert chat_tokenizer(_job("", "llama3"), tokenizer, None).end_of_answer == "<|eot_id|>"
    assert chat_tokenizer(_job("", "llama3"), tokenizer, "chatml").end_of_answer == "<|im_end|>"
    for job, words in ((_job(""), "has none"), (_job("chatml", "llama3"), "has several: chatml, llama3")):
        with pytest.raises(UsageError, match=f"{words} in its chatTemplates; add --chat-template"):
            chat_tokenizer(job, tokenizer, None)
    with pytest.raises(UsageError, match="given 'alpaca', expected one of chatml, llama3"):
        chat_tokenizer(_job(""), tokenizer, "alpaca")
