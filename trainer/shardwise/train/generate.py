"""Text from a model: many sequences at once, each token after token, on whatever layout the parameters have.

Prompts and results are token numbers; the caller has the tokenizer, and has read the checkpoint. Every process of a run
must make the same calls, and gets the same tokens.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

import jax

from shardwise.train.decoder import Decoder, num_parts
from shardwise.train.generation import Made, Wish, of_prompts, refuse_prompt
from shardwise.train.sampling import Sampling
from shardwise.train.state import Program

Array = jax.Array
MOST_ROWS = 16
"""Sequences at once on each part of `data`, of each replica."""


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
    wish = Wish(num_tokens=num_tokens, sampling=sampling, seed=seed, stop=stop)
    for prompt in prompts:
        refuse_prompt(program, prompt)
    return _generate(program, params, prompts, wish, is_over)


def _generate(
    program: Program,
    params: Mapping[str, Array],
    prompts: Sequence[Sequence[int]],
    wish: Wish,
    is_over: Callable[[int, Sequence[int]], bool] | None,
) -> Iterator[Made]:
    if wish.num_tokens == 0 or not prompts:
        yield from (Made(number, [], is_last=True) for number in range(len(prompts)))
        return
    decoder = Decoder.of(program, params, min(len(prompts), MOST_ROWS * num_parts(program)))
    del params  # the weights are another copy
    yield from of_prompts(decoder, prompts, wish, is_over)
