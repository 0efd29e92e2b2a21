"""One text in the making: tokens come block by block, and text goes out as soon as it is sure."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from shardwise.cli.asked import Asked
from shardwise.cli.text_pieces import Held, decoder_after, pieces
from shardwise.train.generation import Wish
from shardwise.train.scoring import Scores


class News(NamedTuple):
    """What is new of a text."""

    number: int
    """Which of its request's texts."""
    text: str
    num_tokens: int
    finish: str | None
    """Why it is over, in the API's words; None while it goes on."""
    scores: Scores | None = None
    """Of all tokens of `Text.sequence` but the first, once it is over, if they were asked for."""


class Text:
    """A text that a request asks for. The thread that makes it feeds it; anybody may say that nobody wants it."""

    def __init__(
        self,
        index: int,
        asked: Asked,
        wish: Wish,
        stops: Sequence[str],
        ends: frozenset[int],
        decode: Callable[[Sequence[int]], str],
        tell: Callable[[News | Exception], None],
        *,
        is_scored: bool = False,
    ) -> None:
        """Take what is asked, how it ends, and who is told, in the thread that feeds it."""
        self.index, self.prompt, self.wish, self.decode, self.tell = index, asked.tokens, wish, decode, tell
        self.before = asked.text
        """The prompt as text."""
        self.is_scored = is_scored
        """Whether it is to be closed with the scores of its tokens."""
        self.is_unwanted = False
        self._made: list[int] = []
        self._ends, self._coming = ends, deque[int]()
        self.num_tokens = 0
        """Made so far, without what ended it."""
        self._pieces = pieces(self._tokens(), decoder_after(asked.before, decode))
        self._held, self._has_ended = Held(stops), False

    def take(self, tokens: Sequence[int]) -> bool:
        """Take all tokens so far, tell what is new, and return whether no more are wanted."""
        if self.is_unwanted:
            return True
        text = "".join(self._text_of(token) for token in tokens[self.num_tokens :])
        if text:
            self.tell(News(self.index, text, self.num_tokens, None))
        return self._has_ended

    @property
    def sequence(self) -> list[int]:
        """The tokens of the prompt, those that were made, and the one that ended them, if one did; once it is over."""
        is_ended_by_token = not self._has_ended and self.num_tokens < self.wish.num_tokens
        end = [self.wish.stop] if is_ended_by_token and self.wish.stop is not None else []
        return [*self.prompt, *self._made, *end]

    def close(self, scores: Scores | None = None) -> None:
        """Tell that it is over, and how, and how likely its tokens are."""
        if self.is_unwanted:
            return
        text = ""
        if not self._has_ended:  # the last character may be half a one
            text = self._held.take("".join(self._pieces)) + self._held.rest()
            self._has_ended = self._held.has_ended
        is_cut = not self._has_ended and self.num_tokens >= self.wish.num_tokens
        self.tell(News(self.index, text, self.num_tokens, "length" if is_cut else "stop", scores))

    def _text_of(self, token: int) -> str:
        """Return what this token makes sure; nothing behind the end."""
        if self._has_ended:
            return ""
        self._made.append(token)
        if token in self._ends:
            self._has_ended = True
            return "".join(self._held.take(rest) for rest in self._pieces) + self._held.rest()
        self.num_tokens += 1
        self._coming.append(token)
        text = self._held.take(next(self._pieces))
        self._has_ended = self._held.has_ended
        return text

    def _tokens(self) -> Iterator[int]:
        """Yield the tokens one by one: `pieces` yields once for each, and once more when none is there."""
        while self._coming:
            yield self._coming.popleft()
