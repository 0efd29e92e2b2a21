"""Texts in the making: the tokens that a model makes become text as they come, or lines of JSON.

What a person is told of them is here too: prompts that are cut, tokens without a text.
"""

import json
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING

from shardwise.cli.text_pieces import before_stop, decoder_after, has_ended, pieces, stop_place

if TYPE_CHECKING:
    from shardwise.cli.asked import Task
    from shardwise.train.data.tokenizer import Tokenizer
    from shardwise.train.generation import Made


class Texts:
    """Many texts in the making."""

    def __init__(self, task: "Task", samples: int, tokenizer: "Tokenizer", num_tokens: int) -> None:
        """Take what is asked, each as often as there are samples of it."""
        self._asked = [each for each in task.asked for _ in range(samples)]
        self._samples, self._num_tokens = samples, num_tokens
        self._decoders = [decoder_after(each.before, tokenizer.decode) for each in self._asked]
        self._stops, self._ends = task.stops, task.ends

    @property
    def prompts(self) -> list[list[int]]:
        """The tokens that the model goes on from, text by text."""
        return [each.tokens for each in self._asked]

    def has_stop(self, number: int, tokens: Sequence[int]) -> bool:
        """Return whether the text of these tokens, which are of the text of this number, ends at a stop text."""
        has_end = not self._ends.isdisjoint(tokens)
        return has_end or has_ended(self._decoders[number](tokens), self._stops)

    def stream(self, made: Iterable["Made"]) -> Iterator[str]:
        """Yield the first text, the only one that is made, after what was asked, as it comes."""
        yield self._asked[0].text
        tokens = self._before_end(token for part in made for token in part.tokens)
        yield from before_stop(pieces(tokens, self._decoders[0]), self._stops)

    def lines(self, made: Iterable["Made"]) -> Iterator[str]:
        """Yield a line of JSON for each text, in their order, as soon as all before it are done."""
        tokens: list[list[int]] = [[] for _ in self._asked]
        done: set[int] = set()
        written = 0
        for part in made:
            tokens[part.sequence] += part.tokens
            if part.is_last:
                done.add(part.sequence)
            while written in done:
                yield self._line(written, tokens[written])
                tokens[written] = []
                written += 1

    def _before_end(self, tokens: Iterable[int]) -> Iterator[int]:
        return takewhile(lambda token: token not in self._ends, tokens)

    def _line(self, number: int, made: Sequence[int]) -> str:
        tokens, decode = list(self._before_end(made)), self._decoders[number]
        text, count = decode(tokens), len(tokens)
        place = stop_place(text, self._stops)
        has_stop = place is not None or count < len(made)
        if place is not None:  # those behind it were made in one block with it
            stops = tuple(self._stops)
            count = bisect_left(range(count), x=True, key=lambda size: decode(tokens[:size]).startswith(stops, place))
        return json.dumps(
            {
                **self._asked[number].line,
                "sample": number % self._samples,
                "text": text[:place],
                "tokens": count,
                "finishReason": "stop" if has_stop or len(tokens) < self._num_tokens else "length",
            },
            ensure_ascii=False,
        )


def with_text(made: Iterable["Made"], num_tokens: int, tell: Callable[[str], None]) -> Generator["Made", None, None]:
    """Yield what is made; in the end tell how many of its tokens a tokenizer of `num_tokens` has no text for."""
    total = unknown = 0
    try:
        for part in made:
            total += len(part.tokens)
            unknown += sum(token >= num_tokens for token in part.tokens)
            yield part
    finally:
        if unknown:
            tell(
                f"{unknown:,} of {total:,} tokens have no text, since the tokenizer has {num_tokens:,} tokens and the "
                "model more: is it the model's own?"
            )


def tell_of_cut(prompts: Sequence[Sequence[int]], window: int, tell: Callable[[str], None]) -> None:
    """Tell of prompts of which a model with a window of this many tokens sees no more than the end."""
    cut = [len(tokens) for tokens in prompts if len(tokens) > window]
    if cut:
        which = "the prompt is" if len(prompts) == 1 else f"{len(cut):,} of {len(prompts):,} prompts are"
        tell(f"{which} longer than the model's window: {max(cut):,} tokens for {window:,}; it sees the end alone")
