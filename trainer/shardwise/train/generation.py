"""Sequences in the making, in the rows of a decoder: who has a row, who waits for one, and what is asked of each."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from shardwise.protocol.errors import NonFiniteError, UsageError
from shardwise.train.decoder import Decoder
from shardwise.train.decoding_arrays import BLOCK, NOTHING, Rows, Wishes, num_slots
from shardwise.train.sampling import Sampling, Settings
from shardwise.train.state import Program

MOST_TOKENS = 2**31 - 1
"""Of one sequence: the device counts them in 32 bits."""


class Made(NamedTuple):
    """What was made of one sequence since it was last heard of."""

    sequence: int
    tokens: list[int]
    is_last: bool


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What is asked of a sequence."""

    num_tokens: int
    """The most to make of it."""
    sampling: Sampling
    """How a token is chosen."""
    seed: int = 0
    """Of random numbers; 64 bits of it count."""
    draw: int = 0
    """Which of the sequences of this seed it is: each has random numbers of its own."""
    stop: int | None = None
    """It ends before this token."""

    def __post_init__(self) -> None:
        """Refuse numbers out of range: UsageError."""
        if self.num_tokens < 0 or self.seed < 0:
            raise UsageError(f"given {self.num_tokens} tokens and seed {self.seed}, expected 0 or more of both")
        if self.num_tokens > MOST_TOKENS:
            raise UsageError(f"given {self.num_tokens} tokens, expected at most {MOST_TOKENS}")


_HALF = 0xFFFFFFFF
_NONE = Wish(num_tokens=0, sampling=Sampling(temperature=0))
"""Of a row that nobody has."""


@dataclass
class _Sequence:
    """A sequence as the host sees it."""

    number: int
    window: list[int]
    """What the model sees, and at its end at most one token that the caches do not have."""
    wish: Wish
    ends: Callable[[Sequence[int]], bool] | None
    """Whether it has ended with these tokens, as far as the caller says."""
    made: list[int] = field(default_factory=list)
    is_over: bool = False


def refuse_prompt(program: Program, prompt: Sequence[int]) -> None:
    """Raise UsageError unless these are tokens that a model can go on from."""
    vocab_size = program.config.vocab_size
    if not prompt:
        raise UsageError("prompt: given no token, expected at least one; the end-of-text token starts a free text")
    if unknown := [token for token in prompt if not 0 <= token < vocab_size]:
        raise UsageError(f"prompt: given token {unknown[0]}, expected 0 to {vocab_size - 1}; use the run's tokenizer")


def of_prompts(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    wish: Wish,
    is_over: Callable[[int, Sequence[int]], bool] | None = None,
) -> Iterator[Made]:
    """Yield the tokens that follow the prompts, a block of each sequence at a time; the last one says so.

    The rows of the decoder take the prompts one after another. Each is a draw of the wish's seed, by its number. See
    `shardwise.train.generate.generate_all`.
    """
    generation = Generation(decoder)
    for number, prompt in enumerate(prompts):
        ends = None if is_over is None else partial(is_over, number)
        generation.add(number, prompt, replace(wish, draw=number), ends)
    while generation.is_busy:
        yield from generation.go_on()


class Generation:
    """Sequences in the making: each has a row of a decoder, or waits for one."""

    def __init__(self, decoder: Decoder) -> None:
        """Begin with none."""
        self.decoder, self._waiting = decoder, deque[_Sequence]()
        self._rows: list[_Sequence | None] = [None] * decoder.num_rows
        self._batch, self._wishes = decoder.empty(), _wishes(self._rows)
        self._slot: int | None = None

    def add(
        self, number: int, prompt: Sequence[int], wish: Wish, ends: Callable[[Sequence[int]], bool] | None = None
    ) -> None:
        """Let a sequence wait for a row, which it gets when `go_on` next begins any.

        Args:
            number: names it in what is made.
            prompt: at least one token of the vocabulary.
            wish: what is asked of it; at least one token.
            ends: is told after each block all of its tokens so far, the last one too, and says whether it has ended.

        """
        window = list(prompt[-self.decoder.program.config.seq_len :])
        self._waiting.append(_Sequence(number, window, wish, ends))

    def drop(self, number: int) -> None:
        """Make no more of a sequence, and forget it if it waits."""
        for each in (*self._waiting, *self._rows):
            if each and each.number == number:
                each.is_over = True
        self._waiting = deque(each for each in self._waiting if not each.is_over)

    @property
    def is_busy(self) -> bool:
        """Whether a sequence waits or is in the making."""
        return bool(self._waiting) or self.num_live > 0

    @property
    def num_waiting(self) -> int:
        """How many sequences wait for a row."""
        return len(self._waiting)

    @property
    def num_live(self) -> int:
        """How many rows make a sequence that is not over."""
        return sum(each is not None and not each.is_over for each in self._rows)

    def go_on(self) -> list[Made]:
        """Make a block of tokens of every sequence that has a row, or as many as it may have.

        Raises:
            NonFiniteError: the parameters give logits that are not numbers.

        """
        decoder, length = self.decoder, self.decoder.program.config.seq_len
        if joining := _joining(self._rows, self._waiting, length):
            windows = {row: each.window for row, each in joining.items()}
            self._batch, self._slot = decoder.join(self._batch, windows, self._slot)
            self._wishes = _wishes(self._rows)
        assert self._slot is not None, "the first have joined"
        rows = _where(self._rows, self._slot, length)
        self._batch, tokens, broken = decoder.go_on(self._batch, rows, self._wishes)
        self._slot = (self._slot + BLOCK) % num_slots(decoder.program)
        if broken.any():
            raise NonFiniteError("the model's logits are not numbers: its parameters are not; use another checkpoint")
        live = [(each, row) for each, row in zip(self._rows, tokens, strict=True) if each and not each.is_over]
        made = [_longer(each, [int(token) for token in row if token != NOTHING]) for each, row in live]
        return [each for each in made if each.tokens or each.is_last]


def _longer(each: _Sequence, new: list[int]) -> Made:
    """Take these tokens of a sequence, and return what is new of it."""
    has_ended = bool(new) and new[-1] == each.wish.stop
    kept = new[:-1] if has_ended else new
    each.made += kept
    each.window += kept
    asked_to_end = each.ends is not None and each.ends(each.made)
    each.is_over = asked_to_end or has_ended or len(each.made) >= each.wish.num_tokens
    return Made(each.number, kept, each.is_over)


def _joining(rows: list[_Sequence | None], waiting: deque[_Sequence], length: int) -> dict[int, _Sequence]:
    """Give rows that are free to those that wait, and return who begins a window now, by row: nobody, mostly.

    All rows are computed for those that begin, so there are to be as many of them as go on, at least. The last that
    wait do not wait for more: the sooner they begin, the sooner all is over.
    """
    full = {row: each for row, each in enumerate(rows) if each and not each.is_over and len(each.window) > length}
    free = [row for row, each in enumerate(rows) if each is None or each.is_over]
    num_new, num_live = min(len(free), len(waiting)), len(rows) - len(full) - len(free)
    if len(full) + num_new < num_live and not 0 < len(waiting) <= len(free):
        return {}
    for each in full.values():
        each.window = each.window[-max(1, length // 2) :]
    new = {row: waiting.popleft() for row in free[:num_new]}
    for row, each in new.items():
        rows[row] = each
    return full | new


def _where(rows: Sequence[_Sequence | None], slot: int, length: int) -> Rows:
    return Rows(
        slot=np.array(slot, np.int32),
        length=np.array([min(len(each.window), length) if each else 0 for each in rows], np.int32),
        number=np.array([len(each.made) if each else 0 for each in rows], np.int32),
        live=np.array([each is not None and not each.is_over and len(each.window) <= length for each in rows]),
    )


def _wishes(rows: Sequence[_Sequence | None]) -> Wishes:
    asked = [each.wish if each else _NONE for each in rows]
    return Wishes(
        seed=np.array([(wish.seed >> 32 & _HALF, wish.seed & _HALF) for wish in asked], np.uint32),
        draw=np.array([wish.draw for wish in asked], np.int32),
        num_tokens=np.array([wish.num_tokens for wish in asked], np.int32),
        stop=np.array([NOTHING if wish.stop is None else wish.stop for wish in asked], np.int32),
        settings=Settings.of([wish.sampling for wish in asked]),
    )
