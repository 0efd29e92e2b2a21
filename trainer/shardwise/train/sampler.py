"""Completions of prompts, made by the model as it is at a step, with programs that are compiled once."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Generic, NamedTuple, Self, TypeVar

import jax
from jax.stages import Compiled

from shardwise.job.rounding import padded
from shardwise.train.data.chat import ChatTokenizer
from shardwise.train.data.dataset import Dataset
from shardwise.train.data.encodings import in_template
from shardwise.train.data.prompts import Prompt
from shardwise.train.data.tokenizer import Tokenizer
from shardwise.train.decoder import Decoder, has_room, layout_within, num_parts, window_for
from shardwise.train.decoding import lower_empty, lower_tokens, lower_weights, lower_window
from shardwise.train.executables import Executables
from shardwise.train.generate import MOST_ROWS
from shardwise.train.generation import Wish, of_prompts
from shardwise.train.layout import Layout
from shardwise.train.sampling import Sampling
from shardwise.train.state import REFERENCE, Program, flat

T = TypeVar("T")


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


class Programs(NamedTuple, Generic[T]):
    """What makes completions: compiled, lowered, or what lowers it."""

    weights: T
    empty: T
    window: T
    tokens: T


def room(program: Program, limit: int | None) -> tuple[int, Layout]:
    """Return how many completions are made at once, over all devices, and where the weights for that are.

    A device makes as many as it has rows of a microbatch, whose backward pass takes more memory, or `MOST_ROWS` if
    those are fewer. For each token of all of them the weights are read once. Where `limit`, the bytes that a device
    has, leaves no room for their caches beside the state, it is half as many, and again, down to `MOST_ROWS`.
    """
    batch, parts, state = program.training.batch, num_parts(program), list(flat(program.abstract()).values())
    of_microbatch = batch.sequences // (batch.microbatches * parts)
    each = min(max(of_microbatch, MOST_ROWS), padded(batch.sequences, parts) // parts)
    while each > MOST_ROWS and not has_room(limit, program, each * parts, state):
        each = max(MOST_ROWS, each // 2)
    return each * parts, layout_within(limit, program, each * parts, state)


def _sampling(program: Program) -> Sampling:
    """Return how tokens are drawn: of all of them, since the loss is of samples of what the model says."""
    assert program.training.reinforcement is not None
    return Sampling(temperature=program.training.reinforcement.temperature)


def lowering(
    program: Program, layout: Layout, num_rows: int, window: int
) -> Programs[Callable[[], jax.stages.Lowered]]:
    """Return what lowers the programs, for so many prompts that are filled up to so many tokens."""
    return Programs(
        partial(lower_weights, program, layout),
        partial(lower_empty, program, layout, num_rows),
        partial(lower_window, program, layout, num_rows, window),
        partial(lower_tokens, program, layout, num_rows),
    )


@dataclass(frozen=True, kw_only=True)
class Sampler:
    """Makes completions with any parameters of a program."""

    program: Program
    layout: Layout
    num_rows: int
    window: int
    ending: Ending
    programs: Programs[Compiled]

    @classmethod
    def compiling(
        cls,
        program: Program,
        data: Dataset,
        longest: int,
        *,
        limit: int | None,
        kept: Executables,
        pool: ThreadPoolExecutor,
    ) -> "Callable[[], Sampler]":
        """Begin to load or compile its programs; return a function that waits for them.

        Args:
            program: of the job.
            data: says how completions end.
            longest: tokens of a prompt, at most.
            limit: bytes of a device; None if the class does not say how many.
            kept: has programs of earlier starts.
            pool: compiles.

        """
        num_rows, layout = room(program, limit)
        window = window_for(program, longest)
        names, place = Programs("weights", "empty", f"window-{window}", "tokens"), f"{num_rows} {layout.parameters}"
        ending = Ending.of(data.tokenizer, program.training.data.train[0].chat_template)
        coming: list[Future[Compiled]] = [
            pool.submit(kept.get, f"sampling-{name} {place}", lower)
            for name, lower in zip(names, lowering(program, layout, num_rows, window), strict=True)
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
        self,
        params: Mapping[str, jax.Array],
        prompts: Sequence[Prompt],
        seed: int,
        tell: Callable[[int, Completion], None],
        beat: Callable[[], None],
    ) -> list[Completion]:
        """Return a completion of each prompt; tell of each, with its prompt's number, when it has ended.

        And beat while they are made.

        Raises:
            NonFiniteError: the parameters give logits that are not numbers.

        """
        held = {path: x for path, x in params.items() if not path.startswith(REFERENCE)}
        decoder = Decoder(
            program=self.program,
            layout=self.layout,
            num_rows=self.num_rows,
            weights=tuple(self.programs.weights(held)),
            window=self.window,
            _compiled={
                "empty": self.programs.empty,
                f"window-{self.window}": self.programs.window,
                "tokens": self.programs.tokens,
            },
        )
        assert self.program.training.reinforcement is not None
        most, end = self.program.training.reinforcement.max_tokens, self.ending
        is_one = len(end.tokens) == 1
        stop = end.tokens[0] if is_one else None
        wish = Wish(num_tokens=most, sampling=_sampling(self.program), seed=seed, stop=stop)
        tokens: list[list[int]] = [[] for _ in prompts]
        made: dict[int, Completion] = {}
        for piece in of_prompts(
            decoder,
            [prompt.tokens for prompt in prompts],
            wish,
            None if is_one else lambda _, tokens: end.within(tokens) is not None,
        ):
            number = piece.sequence
            tokens[number] += piece.tokens
            beat()
            if piece.is_last:
                made[number] = self._completion(prompts[number], tokens[number], most)
                tell(number, made[number])
        return [made[number] for number in range(len(prompts))]

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
