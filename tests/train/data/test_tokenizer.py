"""The byte tokenizer and tokenizer.json."""

import json
from pathlib import Path

import numpy as np
import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from shardwise.job.spec.data import Data, Source
from shardwise.protocol.errors import DataError
from shardwise.train.data.pieces import PIECE_BYTES
from shardwise.train.data.tokenizer import ByteTokenizer, load_tokenizer, token_dtype
from shardwise.train.data.vocabulary import least_vocab_size


def library_tokenizer(end_of_text: str = "<|endoftext|>") -> Tokenizer:
    """A byte-level BPE without merges: one token a byte, and one special token."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(end_of_text, special=True)])
    return tokenizer


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A tokenizer.json that also asks for what a corpus must not get: truncation, padding, a token in front."""
    tokenizer = library_tokenizer()
    tokenizer.enable_truncation(max_length=4)
    tokenizer.enable_padding(length=4)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", 256)]
    )
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return str(tmp_path / "tokenizer.json")


def test_bytes_are_tokens() -> None:
    """A byte is its own number, end-of-text is 256, and decoding leaves it out."""
    tokenizer = ByteTokenizer()

    assert tokenizer.encode("aé").tolist() == [97, 0xC3, 0xA9]
    assert tokenizer.decode([97, 256, 0xC3, 0xA9, 0xFF]) == "aé\ufffd"
    assert [each.tolist() for each in tokenizer.encode_batch([b"\x00\xff", b"b"])] == [[0, 255], [98]]
    assert (tokenizer.vocab_size, tokenizer.end_of_text) == (257, 256)


def test_a_tokenizer_json_encodes_the_text_and_nothing_else(path: str) -> None:
    """No truncation, no padding, no token in front; a special token written in a text is text."""
    tokenizer = load_tokenizer(path)
    text = "longer than four: <|endoftext|> é"

    tokens = tokenizer.encode(text)

    assert tokens.size == len(text.encode())
    assert tokenizer.end_of_text == 256
    assert tokenizer.end_of_text not in tokens
    assert tokenizer.decode([*tokens.tolist(), tokenizer.end_of_text]) == text
    assert np.array_equal(tokenizer.encode_batch([text.encode()])[0], tokens)


def test_the_vocabulary_ends_after_the_greatest_id(tmp_path: Path) -> None:
    """Ids with holes between them still lie below the vocabulary size."""
    content = json.loads(library_tokenizer("</s>").to_str())
    content["model"]["vocab"]["a"] = 999
    (tmp_path / "t.json").write_text(json.dumps(content))

    tokenizer = load_tokenizer(str(tmp_path / "t.json"))

    assert (tokenizer.encode("a").tolist(), tokenizer.vocab_size) == ([999], 1000)


def test_a_model_needs_no_special_token_that_no_document_has(tmp_path: Path) -> None:
    """What was added for images may be beyond its vocabulary; what a text, its end or a conversation has may not."""

    def least(*special: str, plain: str | None = None, end: str | None = None) -> int:
        library = library_tokenizer()
        if plain is not None:
            library.add_tokens([plain])
        library.add_special_tokens(list(special))
        library.save(str(tmp_path / "t.json"))
        source = Source(name="text", paths=("text.txt",))
        return least_vocab_size(Data(train=(source,), tokenizer=str(tmp_path / "t.json"), end_token=end))

    assert least("<image>") == least() == 257
    assert least(plain="<image>") == 258
    assert least("<image>", end="<image>") == 258
    assert least("<image>", "<|im_start|>", "<|im_end|>", "<audio>") == 260


def test_fingerprints_tell_tokenizers_apart(path: str, tmp_path: Path) -> None:
    """Another file content, and bytes, have other fingerprints; a copy has the same."""
    library_tokenizer("<eos>").save(str(tmp_path / "other.json"))
    (tmp_path / "copy.json").write_bytes(Path(path).read_bytes())

    prints = [load_tokenizer(spec).fingerprint for spec in (path, str(tmp_path / "other.json"), "byte")]

    assert len(set(prints)) == 3
    assert load_tokenizer(str(tmp_path / "copy.json")).fingerprint == prints[0]


def test_without_end_of_text_it_is_refused(tmp_path: Path) -> None:
    """A tokenizer without an end-of-text token says which names are looked for."""
    library_tokenizer("[SEP]").save(str(tmp_path / "t.json"))

    with pytest.raises(DataError, match=r"no end-of-text token; expected one of <\|endoftext\|>, </s>, <eos>"):
        load_tokenizer(str(tmp_path / "t.json"))


def test_what_is_no_tokenizer_is_refused(tmp_path: Path) -> None:
    """A file that the library cannot read is named."""
    (tmp_path / "t.json").write_text("{}")

    with pytest.raises(DataError, match=r"tokenizer '.*t.json' cannot be read"):
        load_tokenizer(str(tmp_path / "t.json"))


def test_long_documents_are_cut_at_newlines(path: str) -> None:
    """Pieces are bounded, end with a newline where there is one, and add up to the document."""
    content = b"".join(b"line %d\n" % number for number in range(400_000))
    parts = [content[start : start + 300_001] for start in range(0, len(content), 300_001)]

    pieces = list(load_tokenizer(path).split(parts, "here"))

    assert b"".join(pieces) == content
    assert len(pieces) > 3
    assert all(len(piece) <= PIECE_BYTES and piece.endswith(b"\n") for piece in pieces)


def test_without_newlines_the_cut_is_between_characters(path: str) -> None:
    """A document of one line is cut, but never inside a character."""
    content = ("x" + "é" * PIECE_BYTES).encode()

    pieces = list(load_tokenizer(path).split([content], "here"))

    assert [piece.decode() for piece in pieces]
    assert (b"".join(pieces), len(pieces)) == (content, 3)


def test_bytes_that_are_not_utf8_are_refused_by_offset(path: str) -> None:
    """The offset counts from the start of the document, over all its pieces."""
    parts = [b"good line\n" * 200_000, b"bad \xff"]

    with pytest.raises(DataError, match="here: byte 2000004 is not UTF-8"):
        list(load_tokenizer(path).split(parts, "here"))


@pytest.mark.parametrize(("vocab_size", "dtype"), [(257, "<u2"), (65536, "<u2"), (65537, "<u4")])
def test_the_stored_type_holds_every_token(vocab_size: int, dtype: str) -> None:
    """Two bytes as long as they are enough."""
    assert token_dtype(vocab_size) == np.dtype(dtype)


def test_documents_begin_and_end_with_the_tokens_that_the_job_names(tmp_path: Path) -> None:
    """The first piece alone has the token in front; a prompt begins as a document; the same tokens are other data."""
    library = library_tokenizer("</s>")
    library.add_special_tokens([AddedToken("<bos>", special=True), AddedToken("<eos>", special=True)])
    library.save(str(tmp_path / "t.json"))
    plain = load_tokenizer(str(tmp_path / "t.json"))
    tokenizer = load_tokenizer(str(tmp_path / "t.json"), begin="<bos>", end="<eos>")
    long = b"x" * PIECE_BYTES

    pieces = list(tokenizer.split([long, b"yz"], "here"))

    first, second = tokenizer.encode_batch(pieces)
    assert (first[0], first.size, second.size) == (257, PIECE_BYTES + 1, 2)
    assert (plain.end_of_text, tokenizer.end_of_text) == (256, 258)
    assert tokenizer.prompt("a") == [257, *tokenizer.encode("a")]
    assert (tokenizer.prompt(""), plain.prompt("")) == ([257], [256])
    assert tokenizer.fingerprint != plain.fingerprint


def test_a_token_that_the_tokenizer_lacks_is_refused_by_name(path: str) -> None:
    """With the field, and names near it; bytes have no tokens to name."""
    with pytest.raises(DataError, match=r"data\.endToken: given '<endoftext>', .*near it are <\|endoftext\|>"):
        load_tokenizer(path, end="<endoftext>")
    with pytest.raises(DataError, match="with tokenizer: byte"):
        load_tokenizer("byte", begin="<s>")
