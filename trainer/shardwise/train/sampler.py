"""Completions of prompts, made by the model as it is at a step, with programs that are compiled once."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Self

import jax
from jax.stages import Compiled

from shardwise.job.rounding import padded
from shardwise.train.data.chat import ChatTokenizer
from shardwise.train.data.dataset import Dataset
from shardwise.train.data.encodings import in_template
from shardwise.train.data.prompts import Prompt
from shardwise.train.data.tokenizer import Tokenizer
from shardwise.train.decoder import Decoder, layout_of, num_parts, window_for
from shardwise.train.decoding import lower_tokens, lower_weights, lower_window
from shardwise.train.executables import Executables
from shardwise.train.generate import MOST_ROWS, of_batches, wish_of
from shardwise.train.layout import Layout
from shardwise.train.sampling import Sampling
from shardwise.train.state import REFERENCE, Program, flat

_SAMPLING = Sampling()
"""As the model has it, and no likelier tokens alone: the loss is of samples of what the model says."""


class Completion(NamedTuple):
    """What the model has made of a prompt."""

    prompt: Prompt
    tokens: list[int]
    """With those that end it, if it ends by itself."""
    is_cut: bool
    """Whether it has as many tokens as it may have, and no end."""
    text: str


class Ending(NamedTuple):
    """How completions end, and are read."""

    tokenizer: Tokenizer
    tokens: list[int]
    """The token that ends one, or those of a marker."""

    @classmethod
    def of(cls, tokenizer: Tokenizer, template: str | None) -> Self:
        """Return that of a text, or of an answer in this template."""
        found = in_template(tokenizer, template)
        if isinstance(found, ChatTokenizer):
            return cls(tokenizer, found.marker(found.end_of_answer).tolist())
        return cls(tokenizer, [tokenizer.end_of_text])

    def within(self, tokens: Sequence[int]) -> int | None:
        """Return where in these tokens the end is over, if it is there."""
        size = len(self.tokens)
        places = range(size, len(tokens) + 1)
        return next((stop for stop in places if list(tokens[stop - size : stop]) == self.tokens), None)


class Programs(NamedTuple):
    """What makes completions, compiled."""

    weights: Compiled
    window: Compiled
    tokens: Compiled


def rows_at_once(program: Program) -> int:
    """Return how many completions are made at once, over all devices."""
    parts = num_parts(program)
    return padded(min(program.training.batch.sequences, MOST_ROWS * parts), parts)


@dataclass(frozen=True, kw_only=True)
class Sampler:
    """Makes completions with any parameters of a program."""

    program: Program
    layout: Layout
    num_rows: int
    window: int
    ending: Ending
    programs: Programs

    @classmethod
    def compiling(
        cls, program: Program, data: Dataset, longest: int, kept: Executables, pool: ThreadPoolExecutor
    ) -> "Callable[[], Sampler]":
        """Begin to load or compile its programs, for prompts of `longest` tokens; return a function that waits."""
        training = program.training
        num_rows = rows_at_once(program)
        layout = layout_of(program, num_rows, flat(program.abstract()).values())
        window = window_for(program, longest)
        lowered: dict[str, Callable[[], jax.stages.Lowered]] = {
            "weights": partial(lower_weights, program, layout),
            f"window-{window}": partial(lower_window, program, layout, num_rows, window),
            "tokens": partial(lower_tokens, program, layout, num_rows, _SAMPLING),
        }
        ending = Ending.of(data.tokenizer, training.data.train[0].chat_template)
        coming: list[Future[Compiled]] = [
            pool.submit(kept.get, f"sampling-{name}", lower) for name, lower in lowered.items()
        ]

        def made() -> Sampler:
            return cls(
                program=program,
                layout=layout,
                num_rows=num_rows,
                window=window,
                ending=ending,
                programs=Programs(*(each.result() for each in coming)),
            )

        return made

    def complete(
        self, params: Mapping[str, jax.Array], prompts: Sequence[Prompt], seed: int, tell: Callable[[int], None]
    ) -> list[Completion]:
        """Return a completion of each prompt; `tell` is called with how many are made, again and again.

        Raises:
            NonFiniteError: the parameters give logits that are not numbers.

        """
        held = {path: x for path, x in params.items() if not path.startswith(REFERENCE)}
        decoder = Decoder(
            program=self.program,
            layout=self.layout,
            sampling=_SAMPLING,
            num_rows=self.num_rows,
            weights=tuple(self.programs.weights(held)),
            window=self.window,
            _compiled={self.window: self.programs.window, 0: self.programs.tokens},
        )
        assert self.program.training.reinforcement is not None
        most, end = self.program.training.reinforcement.max_tokens, self.ending
        is_one = len(end.tokens) == 1
        wish = wish_of(most, seed=seed, stop=end.tokens[0] if is_one else None)
        made: list[list[int]] = [[] for _ in prompts]
        num_over = 0
        for piece in of_batches(
            decoder,
            [prompt.tokens for prompt in prompts],
            wish,
            None if is_one else lambda _, tokens: end.within(tokens) is not None,
        ):
            made[piece.sequence] += piece.tokens
            num_over += piece.is_last
            tell(num_over)
        return [self._completion(prompt, tokens, most) for prompt, tokens in zip(prompts, made, strict=True)]

    def _completion(self, prompt: Prompt, tokens: list[int], most: int) -> Completion:
        end = self.ending
        if len(end.tokens) == 1:
            is_cut, said = len(tokens) == most, tokens
            tokens = tokens if is_cut else [*tokens, *end.tokens]
        else:
            stop = end.within(tokens)
            is_cut, tokens = stop is None, tokens[:stop]
            said = tokens if is_cut else tokens[: -len(end.tokens)]
        return Completion(prompt, tokens, is_cut, end.tokenizer.decode(said))
