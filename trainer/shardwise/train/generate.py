"""Text from a model: many sequences at once, each token after token, on whatever layout the parameters have.

Prompts and results are token numbers; the caller has the tokenizer, and has read the checkpoint. Every process of a run
must make the same calls, and gets the same tokens.
"""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import numpy as np

from shardwise.protocol.errors import NonFiniteError, UsageError
from shardwise.train.decoder import Decoder, num_parts
from shardwise.train.decoding_arrays import BLOCK, NOTHING, Rows, Wish, num_slots
from shardwise.train.sampling import Sampling
from shardwise.train.state import Program

Array = jax.Array
MOST_ROWS = 16
"""Sequences at once on each part of `data`, of each replica."""
MOST_TOKENS = 2**31 - 1
"""Of one sequence: the device counts them in 32 bits."""


class Made(NamedTuple):
    """What was made of one sequence since it was last heard of."""

    sequence: int
    tokens: list[int]
    is_last: bool


@dataclass
class _Sequence:
    """A sequence as the host sees it."""

    number: int
    window: list[int]
    """What the model sees, and at its end at most one token that the caches do not have."""
    made: list[int] = field(default_factory=list)
    is_over: bool = False


def generate(
    program: Program,
    params: Mapping[str, Array],
    prompt: Sequence[int],
    *,
    num_tokens: int,
    sampling: Sampling,
    seed: int = 0,
    stop: int | None = None,
) -> Iterator[int]:
    """Yield the tokens that follow one prompt, as they are made; see `generate_all`."""
    made = generate_all(program, params, [prompt], num_tokens=num_tokens, sampling=sampling, seed=seed, stop=stop)
    return (token for piece in made for token in piece.tokens)


def generate_all(
    program: Program,
    params: Mapping[str, Array],
    prompts: Sequence[Sequence[int]],
    *,
    num_tokens: int,
    sampling: Sampling,
    seed: int = 0,
    stop: int | None = None,
    is_over: Callable[[int, Sequence[int]], bool] | None = None,
) -> Iterator[Made]:
    """Yield the tokens that follow the prompts, a block of each sequence at a time; the last one says so.

    The model sees at most one window of its positions: of a longer prompt the last window. When the window is full, a
    new one starts with its last half, whatever the kind of positions.

    As many are made at once as there are rows, and a row whose sequence has ended takes the next prompt. Prompts, and
    sequences whose windows are full, begin together, when at least as many begin as go on beside them, or when all
    prompts that wait have a row.

    The same seed, program, parameters and layout give the same tokens. A sequence's random numbers are its own, by its
    number among the prompts: what else is in the batch changes its logits by rounding at most.

    Args:
        program: of the model and of its layout.
        params: by path, laid out as the program stores them.
        prompts: at least one token each. As many as `MOST_ROWS` for each part of a batch are in rows at once.
        num_tokens: the most to make of each.
        sampling: how a token is chosen.
        seed: of random numbers; 64 bits of it count.
        stop: a sequence ends before this token.
        is_over: is asked after each block, with the sequence's number and all of its tokens so far, whether it has
            ended; tokens after the end are the caller's to cut.

    Raises:
        UsageError: an empty prompt, a token outside the vocabulary, a setting out of range.
        NonFiniteError: the parameters give logits that are not numbers.

    """
    vocab_size = program.config.vocab_size
    for prompt in prompts:
        if not prompt:
            raise UsageError("prompt: given no token, expected at least one; the end-of-text token starts a free text")
        if unknown := [token for token in prompt if not 0 <= token < vocab_size]:
            raise UsageError(
                f"prompt: given token {unknown[0]}, expected 0 to {vocab_size - 1}; use the run's tokenizer"
            )
    if num_tokens < 0 or seed < 0:
        raise UsageError(f"given {num_tokens} tokens and seed {seed}, expected 0 or more of both")
    if num_tokens > MOST_TOKENS:
        raise UsageError(f"given {num_tokens} tokens, expected at most {MOST_TOKENS}")
    return _generate(program, params, prompts, sampling, wish_of(num_tokens, seed=seed, stop=stop), is_over)


def wish_of(num_tokens: int, *, seed: int = 0, stop: int | None = None) -> Wish:
    """Return what is asked of all sequences; see `generate_all`."""
    halves = np.array([seed >> 32 & 0xFFFFFFFF, seed & 0xFFFFFFFF], np.uint32)
    return Wish(halves, np.array(num_tokens, np.int32), np.array(NOTHING if stop is None else stop, np.int32))


def _generate(
    program: Program,
    params: Mapping[str, Array],
    prompts: Sequence[Sequence[int]],
    sampling: Sampling,
    wish: Wish,
    is_over: Callable[[int, Sequence[int]], bool] | None,
) -> Iterator[Made]:
    if wish.num_tokens == 0 or not prompts:
        yield from (Made(number, [], is_last=True) for number in range(len(prompts)))
        return
    decoder = Decoder.of(program, params, sampling, min(len(prompts), MOST_ROWS * num_parts(program)))
    del params  # the weights are another copy
    yield from of_prompts(decoder, prompts, wish, is_over)


def of_prompts(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    wish: Wish,
    is_over: Callable[[int, Sequence[int]], bool] | None = None,
) -> Iterator[Made]:
    """Do the same with a decoder, whose rows take the prompts one after another."""
    length = decoder.program.config.seq_len
    waiting = deque(_Sequence(number, list(prompt[-length:])) for number, prompt in enumerate(prompts))
    rows: list[_Sequence | None] = [None] * decoder.num_rows
    batch, slot = decoder.empty(), None
    while waiting or any(each and not each.is_over for each in rows):
        if joining := _joining(rows, waiting, length):
            batch, slot = decoder.join(batch, {row: each.window for row, each in joining.items()}, slot)
        assert slot is not None, "the first have joined"
        batch, tokens, broken = decoder.go_on(batch, _rows(rows, slot, length), wish)
        slot = (slot + BLOCK) % num_slots(decoder.program)
        for each, row, is_broken in zip(rows, tokens, broken.tolist(), strict=True):
            if each is None or each.is_over:
                continue
            new = [int(token) for token in row if token != NOTHING]
            has_ended = bool(new) and new[-1] == wish.stop
            kept = new[:-1] if has_ended else new
            each.made += kept
            each.window += kept
            each.is_over = has_ended or len(each.made) >= int(wish.num_tokens)
            each.is_over = each.is_over or bool(is_over and is_over(each.number, each.made))
            if kept or each.is_over:
                yield Made(each.number, kept, each.is_over)
            if is_broken:
                raise NonFiniteError(
                    "the model's logits are not numbers: its parameters are not; use another checkpoint"
                )


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


def _rows(rows: Sequence[_Sequence | None], slot: int, length: int) -> Rows:
    return Rows(
        slot=np.array(slot, np.int32),
        length=np.array([min(len(each.window), length) if each else 0 for each in rows], np.int32),
        number=np.array([len(each.made) if each else 0 for each in rows], np.int32),
        sequence=np.array([each.number if each else 0 for each in rows], np.int32),
        live=np.array([each is not None and not each.is_over and len(each.window) <= length for each in rows]),
    )
