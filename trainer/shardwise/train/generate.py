"""Text from a model: one token after another, with a cache of keys and values, on whatever layout the parameters have.

Both prompt and result are token numbers; the caller has the tokenizer, and has read the checkpoint. Two programs are
compiled: one takes a whole window of the config's positions at once, the other a single token. Every process of a run
must make the same calls, and gets the same tokens.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from numpy.typing import NDArray

from shardwise.protocol.errors import NonFiniteError, UsageError
from shardwise.train.block import CACHE_AXES, Cache
from shardwise.train.mesh import DATA
from shardwise.train.state import Abstract, Program

Array = jax.Array
Logits = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """How a token is chosen from logits."""

    temperature: float = 1.0
    """Logits are divided by it; 0 takes the most likely token."""
    top_k: int | None = None
    """Choose among this many of the most likely tokens; None: among all."""

    def __post_init__(self) -> None:
        """Refuse settings out of range: UsageError."""
        if not 0 <= self.temperature < np.inf:
            raise UsageError(f"temperature: given {self.temperature}, expected 0 (the most likely token) or more")
        if self.top_k is not None and self.top_k < 1:
            raise UsageError(f"top-k: given {self.top_k}, expected at least 1; leave it out to choose among all tokens")

    def choose(self, logits: Logits, rng: np.random.Generator) -> int:
        """Choose a token for these logits, [vocab] without padding."""
        if not np.isfinite(logits).all():
            raise NonFiniteError("the model's logits are not numbers: its parameters are not; use another checkpoint")
        if self.temperature == 0:
            return int(logits.argmax())
        num_kept = min(self.top_k or logits.size, logits.size)
        kept = np.argpartition(logits, logits.size - num_kept)[logits.size - num_kept :]
        powers = np.exp((logits[kept].astype(np.float64) - logits.max()) / self.temperature)
        return int(rng.choice(kept, p=powers / powers.sum()))


@dataclass(frozen=True)
class Decoder:
    """The two compiled programs of a model."""

    program: Program
    window: jax.stages.Compiled
    token: jax.stages.Compiled

    @classmethod
    def of(cls, program: Program) -> Self:
        """Compile both, for parameters laid out as the program stores them."""
        return cls(program, lower_window(program).compile(), lower_token(program).compile())

    def start(self, params: Mapping[str, Array], tokens: Sequence[int]) -> tuple[Logits, Cache]:
        """Return the logits [vocab] after these tokens (one window at most), and the cache that holds them."""
        filled = np.zeros(self.program.config.seq_len, np.int32)
        filled[: len(tokens)] = tokens
        logits, cache = self.window(params, filled, np.int32(len(tokens) - 1))
        return self._real(logits), cache

    def go_on(self, params: Mapping[str, Array], token: int, position: int, cache: Cache) -> tuple[Logits, Cache]:
        """Return the logits after one more token at this position, and the cache with it; donate the given one."""
        logits, cache = self.token(params, np.array([token], np.int32), np.int32(position), cache)
        return self._real(logits), cache

    def _real(self, logits: Array) -> Logits:
        return np.asarray(logits)[: self.program.config.vocab_size]


def generate(
    program: Program,
    params: Mapping[str, Array],
    prompt: Sequence[int],
    *,
    num_tokens: int,
    temperature: float = 1.0,
    top_k: int | None = None,
    seed: int = 0,
    stop: int | None = None,
) -> Iterator[int]:
    """Yield the tokens that follow the prompt, as they are made.

    The model sees at most one window of its positions: of a longer prompt the last window. When the window is full, a
    new one starts with its last half, whatever the kind of positions.

    Args:
        program: of the model and of its layout.
        params: by path, laid out as the program stores them.
        prompt: at least one token.
        num_tokens: the most to make.
        temperature: logits are divided by it; 0 takes the most likely token.
        top_k: choose among this many of the most likely tokens; None: among all.
        seed: the same seed, program, parameters and layout give the same tokens.
        stop: end before this token.

    Raises:
        UsageError: an empty prompt, a token outside the vocabulary, a setting out of range.
        NonFiniteError: the parameters give logits that are not numbers.

    """
    vocab_size = program.config.vocab_size
    if not prompt:
        raise UsageError("prompt: given no token, expected at least one; the end-of-text token starts a free text")
    if unknown := [token for token in prompt if not 0 <= token < vocab_size]:
        raise UsageError(f"prompt: given token {unknown[0]}, expected 0 to {vocab_size - 1}; use the run's tokenizer")
    if num_tokens < 0 or seed < 0:
        raise UsageError(f"given {num_tokens} tokens and seed {seed}, expected 0 or more of both")
    rng = np.random.default_rng(seed)
    return _tokens(program, params, prompt, num_tokens, Sampling(temperature=temperature, top_k=top_k), rng, stop)


def lower_window(program: Program) -> jax.stages.Lowered:
    """Lower (params, int32 [position] of a whole window, index of the last real token) -> (logits, cache)."""
    tokens = Abstract((program.config.seq_len,), jnp.int32)
    return _lower(partial(_window, program), program, tokens, Abstract((), jnp.int32))


def lower_token(program: Program) -> jax.stages.Lowered:
    """Lower (params, int32 [1], its position, cache) -> (logits, cache); the cache is donated."""
    tokens, position = Abstract((1,), jnp.int32), Abstract((), jnp.int32)
    return _lower(partial(_token, program), program, tokens, position, jax.eval_shape(partial(_empty, program)))


def _tokens(
    program: Program,
    params: Mapping[str, Array],
    prompt: Sequence[int],
    num_tokens: int,
    sampling: Sampling,
    rng: np.random.Generator,
    stop: int | None,
) -> Iterator[int]:
    length = program.config.seq_len
    decoder = Decoder.of(program)
    window = list(prompt[-length:])
    logits, cache = decoder.start(params, window)
    for number in range(num_tokens):
        token = sampling.choose(logits, rng)
        if token == stop:
            return
        yield token
        window.append(token)
        if number + 1 == num_tokens:
            return
        if len(window) > length:
            window = window[-max(1, length // 2) :]
            logits, cache = decoder.start(params, window)
        else:
            logits, cache = decoder.go_on(params, token, len(window) - 1, cache)


def _lower(function: partial[tuple[Array, Cache]], program: Program, *inputs: Any) -> jax.stages.Lowered:
    """Lower a program over the parameters. Other inputs are whole on every device, except a cache, which is donated."""
    layout, params = program.layout, program.abstract()["params"]
    assert layout.context == 1, "a window's positions are in their own order"
    cached = NamedSharding(layout.mesh, layout.spec(CACHE_AXES, layout.compute))
    shardings = [cached if isinstance(x, Cache) else layout.replicated for x in inputs]
    donated = [1 + i for i, x in enumerate(inputs) if isinstance(x, Cache)]
    with program.lowering():
        jitted = jax.jit(
            function,
            in_shardings=(program.shardings()["params"], *shardings),
            out_shardings=(layout.replicated, cached),
            donate_argnums=donated,
            compiler_options=program.compiler_options(),
        )
        return jitted.lower(params, *inputs)


def _window(program: Program, params: Mapping[str, Array], tokens: Array, last: Array) -> tuple[Array, Cache]:
    return _next(program, params, tokens, jnp.int32(0), last, _empty(program))


def _token(
    program: Program, params: Mapping[str, Array], tokens: Array, position: Array, cache: Cache
) -> tuple[Array, Cache]:
    return _next(program, params, tokens, position, jnp.int32(0), cache)


def _next(
    program: Program, params: Mapping[str, Array], tokens: Array, start: Array, last: Array, cache: Cache
) -> tuple[Array, Cache]:
    """Compute one sequence as several equal rows, one per part of `data`: a single row cannot be split over them."""
    rows = jnp.broadcast_to(tokens, (_num_rows(program), tokens.size))
    logits, cache = program.model(params).next_logits(rows, start, last, cache, program.layout)
    return logits[0], cache


def _empty(program: Program) -> Cache:
    config = program.config
    shape = (config.num_layers, _num_rows(program), config.num_kv_heads, config.seq_len, config.HeadSize.size)
    return Cache(*(jnp.zeros(shape, program.policy.compute_dtype) for _ in Cache._fields))


def _num_rows(program: Program) -> int:
    return math.prod(program.layout.mesh.shape[axis] for axis in DATA)
