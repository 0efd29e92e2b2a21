"""One text in the making: what is told of it, and when, however many tokens come at once."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardwise.cli.asked import Asked
from shardwise.cli.server.texts import News, Text
from shardwise.train.data.tokenizer import ByteTokenizer
from shardwise.train.generation import Wish
from shardwise.train.sampling import Sampling

decode = ByteTokenizer().decode
END = 200


class Listened:
    """A text, and all that is told of it."""

    def __init__(self, *, stops: Sequence[str] = (), ends: Sequence[int] = (), most: int = 100) -> None:
        self.told = list[News]()
        wish = Wish(num_tokens=most, sampling=Sampling(), stop=256)
        asked = Asked([104, 105], "hi", {}, [104, 105])
        self.text = Text(7, asked, wish, stops, frozenset(ends), decode, self._hear)

    def _hear(self, new: News | Exception) -> None:
        assert isinstance(new, News)
        self.told.append(new)

    def make(self, blocks: Sequence[Sequence[int]]) -> "Listened":
        """Let tokens come as from a generation: all of them after each block, until no more are wanted."""
        made = list[int]()
        for block in blocks:
            made += block
            if self.text.take(made):
                break
        self.text.close()
        return self

    @property
    def whole(self) -> str:
        """All of the text that was told."""
        return "".join(new.text for new in self.told)

    @property
    def ended(self) -> tuple[str, str | None, int]:
        """The text, why it is over, and its number of tokens."""
        assert [new.finish is None for new in self.told[:-1]] == [True] * (len(self.told) - 1)
        assert {new.number for new in self.told} == {7}
        assert self.told[-1].num_tokens == self.text.num_tokens
        return self.whole, self.told[-1].finish, self.text.num_tokens


def blocks_of(tokens: Sequence[int], cuts: Sequence[int]) -> Iterator[Sequence[int]]:
    """Yield the tokens in blocks that end at these places."""
    places = sorted({0, *(cut % (len(tokens) + 1) for cut in cuts), len(tokens)})
    return (tokens[start:end] for start, end in pairwise(places))


TOKENS = st.lists(st.sampled_from([*b"abcd", *"é€".encode(), 255, 256, END]), max_size=24)
STOPS = st.lists(st.text("abcdé€", min_size=1, max_size=4), max_size=3)


@example([*b"ab"], ["abcd", "b"], [])  # the second is sure to be the first only when nothing follows
@example([*b"abce"], ["abcd", "b"], [2])
@example([*"a€".encode(), END, *b"bc"], ["€"], [2])
@given(TOKENS, STOPS, st.lists(st.integers(0, 24), max_size=6))
def test_a_text_is_the_same_however_it_comes(tokens: list[int], stops: list[str], cuts: list[int]) -> None:
    """It is all text before the first stop text and before the first token that ends it, whatever the blocks are.

    So are why it is over and how many tokens it has; and whoever joins what was told has the whole.
    """
    kept = tokens[: tokens.index(END)] if END in tokens else tokens
    text = decode(kept)
    place = min((place for stop in stops if (place := text.find(stop)) >= 0), default=None)
    for most in (len(tokens), len(tokens) + 1):
        found = Listened(stops=stops, ends=[END], most=most).make(list(blocks_of(tokens, cuts))).ended
        is_cut = place is None and END not in tokens and len(tokens) == most
        assert found[:2] == (text[:place], "length" if is_cut else "stop")
        assert found == Listened(stops=stops, ends=[END], most=most).make([[token] for token in tokens]).ended
        assert found[2] <= len(kept) if place is not None else found[2] == len(kept)


def test_text_is_told_as_soon_as_it_is_sure() -> None:
    """Each block tells what it makes sure: no half character, and nothing that may begin a stop text."""
    euro = "\u20ac".encode()
    listened = Listened(stops=["stop"], most=12).make([b"one s", b"ta" + euro[:2], euro[2:], b"sto", b"x"])
    told = [("one ", 5), ("sta", 9), ("\u20ac", 10), ("stox", 14), ("", 14)]
    assert [(new.text, new.num_tokens) for new in listened.told] == told


def test_a_block_that_makes_nothing_sure_tells_nothing() -> None:
    """What is held back is told at the end, when no stop text can come of it."""
    listened = Listened(stops=["stop"], most=3)
    assert not listened.text.take([*b"st"])
    assert not listened.text.take([*b"sto"])
    assert listened.told == []
    listened.text.close()
    assert listened.told == [News(7, "sto", 3, "length")]


def test_half_a_character_in_the_end() -> None:
    """What never became whole is a replacement character, as in the text of all tokens at once."""
    assert Listened(most=2).make([[97, 0xE2]]).ended == ("a\N{REPLACEMENT CHARACTER}", "length", 2)


@pytest.mark.parametrize("blocks", [["one stop two"], ["one st", "op two"], ["one ", "s", "t", "o", "p", " two"]])
def test_a_stop_text_ends_it(blocks: list[str]) -> None:
    """Also one that spans blocks: nothing of it is told, nothing behind it, and no more tokens are wanted."""
    listened = Listened(stops=["never", "stop"], most=12).make([block.encode() for block in blocks])
    assert listened.ended == ("one ", "stop", 8)


def test_a_token_of_its_own_ends_it() -> None:
    """One of `ends` ends the text before it and is not counted; what was held back goes out."""
    listened = Listened(ends=[END], stops=["bx"])
    assert listened.text.take([*b"ab", END, *b"c"])
    listened.text.close()
    assert listened.ended == ("ab", "stop", 2)


@pytest.mark.parametrize(
    ("most", "tokens", "finish"),
    [(4, b"abc", "stop"), (3, b"abc", "length"), (1, b"a", "length"), (3, b"", "stop")],
)
def test_why_a_text_is_over(most: int, tokens: bytes, finish: str) -> None:
    """It is cut at exactly as many tokens as were asked for; with fewer the model has ended it itself."""
    assert Listened(most=most).make([tokens]).ended == (tokens.decode(), finish, len(tokens))


def test_a_text_that_ends_in_its_last_token_has_stopped() -> None:
    """A stop text, or a token that ends it, is why it is over, though no more tokens were asked for."""
    assert Listened(stops=["c"], most=3).make([b"abc"]).ended == ("ab", "stop", 3)
    assert Listened(ends=[END], most=3).make([[*b"ab", END]]).ended == ("ab", "stop", 2)


def test_nothing_is_told_of_a_text_that_nobody_wants() -> None:
    """Neither what comes nor the end; and no more tokens are wanted."""
    listened = Listened(most=9)
    assert not listened.text.take([*b"ab"])
    listened.text.is_unwanted = True
    assert listened.text.take([*b"abcd"])
    listened.text.close()
    assert (listened.whole, len(listened.told)) == ("ab", 1)


@pytest.mark.parametrize(
    ("made", "options", "end"),
    [
        ([65, 66, 67], {"most": 3}, []),
        ([65, 66], {"most": 3}, [256]),
        ([65, END, 66], {"ends": [END]}, []),
        ([65, 66, 67, 68], {"stops": ["BC"]}, []),
    ],
    ids=["all that were asked for", "the end of a document", "a special token", "a stop text"],
)
def test_its_tokens_are_those_up_to_its_end(made: list[int], options: dict[str, Any], end: list[int]) -> None:
    """The prompt's come first; what ended it is the last of them, and nothing behind that is one."""
    text = Listened(**options).make([made]).text
    kept = made[:2] if "ends" in options else made[:3]
    assert text.sequence == [104, 105, *kept, *end]
