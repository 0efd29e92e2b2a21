"""shardwise.cli.generate: tokens become text piece by piece; the command itself runs in test_main_job."""

from collections.abc import Iterable

from hypothesis import given
from hypothesis import strategies as st
from tests.cli.conftest import Command

from shardwise.cli.generate import pieces
from shardwise.train.data.tokenizer import ByteTokenizer

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


def test_prompt_that_is_no_text(command: Command) -> None:
    """Bytes of another encoding in the prompt are refused before anything is loaded."""
    ended = command("generate", "anywhere", "--prompt", "caf\udce9")
    assert ended.code == 2
    assert "--prompt" in ended.error
