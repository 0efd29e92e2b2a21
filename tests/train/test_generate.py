"""Generation: the cache against the whole forward pass, batches, and what happens at the window's end."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partialmethod
from typing import Any
from unittest.mock import Mock

import jax
import numpy as np
import pytest
from tests.long import all_but
from tests.train.small_gpt import Forward, forward_of, gpt2_config, gptj_config, program_of, random_params

from shardwise.plan.collectives import _axes, _group, _kind
from shardwise.plan.hlo import parse
from shardwise.protocol.errors import NonFiniteError, ShardwiseError, UsageError
from shardwise.train import decoder as decoders
from shardwise.train import generate as generation
from shardwise.train.config import GptConfig
from shardwise.train.decoder import Decoder
from shardwise.train.decoding import lower_tokens
from shardwise.train.decoding_arrays import BLOCK
from shardwise.train.generate import generate, generate_all
from shardwise.train.generation import Made
from shardwise.train.sampling import Sampling
from shardwise.train.state import Program

Params = dict[str, jax.Array]
PROMPT = [5, 1, 69, 3]
GREEDY = Sampling(temperature=0)
GEMMA: Mapping[str, Any] = {
    "num_kv_heads": 2,
    "norm": "rms-unit-offset",
    "post_norm": True,
    "activation": "geglu",
    "position": "rotary",
    "rotary_dim": 8,
    "rotary_pairs": "half",
    "attention_bias": False,
    "mlp_bias": False,
    "query_pre_attn_scalar": 16.0,
    "attention_softcap": 5.0,
    "logit_softcap": 3.0,
    "sliding_window": 5,
    "sliding_window_pattern": 2,
    "scale_embedding": True,
}
GRANITE: Mapping[str, Any] = {"embedding_factor": 12.0, "residual_factor": 0.22, "logit_divisor": 3.5}
SMOLLM: Mapping[str, Any] = {"position": "rotary", "rotary_dim": 8, "rotary_pattern": 2}
OLMO: Mapping[str, Any] = {
    "num_kv_heads": 2,
    "norm": "rms",
    "pre_norm": False,
    "post_norm": True,
    "qk_norm": True,
    "qk_norm_over": "all-heads",
}
MIXTURE: Mapping[str, Any] = {
    "activation": "swiglu",
    "mlp_bias": False,
    "num_experts": 4,
    "experts_per_token": 2,
    "shared_size": 32,
    "shared_gate": True,
}
LATENT: Mapping[str, Any] = {
    "position": "rotary",
    "attention_bias": False,
    "head_size": 12,
    "rotary_dim": 4,
    "kv_rank": 8,
    "q_rank": 10,
    "value_size": 6,
}
GROUPED: Mapping[str, Any] = {
    **MIXTURE,
    "shared_gate": False,
    "expert_score": "sigmoid",
    "share_factor": 2.5,
    "pick_bias": True,
    "expert_groups": 2,
    "num_dense_blocks": 1,
    "dense_mlp_size": 40,
}
GPT_OSS: Mapping[str, Any] = {
    "num_kv_heads": 2,
    "attention_sinks": True,
    "activation": "swiglu-clamped",
    "num_experts": 4,
    "experts_per_token": 2,
    "router_bias": True,
    "sliding_window": 5,
    "sliding_window_pattern": 2,
}
FAMILIES: Mapping[str, Callable[[], GptConfig]] = {
    "gpt2": lambda: gpt2_config(num_layers=2, scale_by_inverse_layer=True),
    "gptj": lambda: gptj_config(num_layers=2),
    "gemma2": lambda: gpt2_config(num_layers=2, **GEMMA),
    "olmo2": lambda: gpt2_config(num_layers=2, **OLMO),
    "granite": lambda: gpt2_config(num_layers=2, **GRANITE),
    "smollm3": lambda: gpt2_config(num_layers=3, **SMOLLM),
    "latent": lambda: gpt2_config(num_layers=2, **LATENT),
    "gpt-oss": lambda: gpt2_config(num_layers=2, **GPT_OSS),
    "mixture": lambda: gpt2_config(num_layers=2, **MIXTURE),
    "groups of experts": lambda: gpt2_config(num_layers=3, **GROUPED),
}
SHORT = ["gpt2", "gemma2", "latent", "gpt-oss", "mixture"]
"""Those that `make test` takes; all families complete as transformers does, without a mesh."""


@pytest.fixture(scope="module")
def small() -> tuple[Program, Params]:
    """A GPT-2 on one device with random parameters."""
    program = program_of(gpt2_config())
    return program, random_params(program)


@pytest.fixture(scope="module")
def forward(small: tuple[Program, Params]) -> Forward:
    """Its whole forward pass."""
    return forward_of(small[0])


@pytest.fixture(scope="module")
def compiled() -> dict[object, dict[str, jax.stages.Compiled]]:
    """The small model's programs, by what they are made for."""
    return {}


@pytest.fixture(autouse=True)
def _compiled_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that share the small model share its compiled programs too."""
    make = Decoder.of
    if "small" in request.fixturenames:
        compiled = request.getfixturevalue("compiled")

        def of(program: Program, params: Params, num_sequences: int) -> Decoder:
            found = make(program, params, num_sequences)
            return replace(found, _compiled=compiled.setdefault((num_sequences, found.layout.mesh), {}))

        monkeypatch.setattr(Decoder, "of", of)


def greedy_by_forward(forward: Forward, params: Params, tokens: list[int], num_tokens: int) -> list[int]:
    """What follows within one window, each token from a whole forward pass without a cache."""
    row = np.zeros((1, 16), np.int32)
    row[0, : len(tokens)] = tokens
    for at in range(len(tokens), len(tokens) + num_tokens):
        row[0, at] = forward(params, row)[0, at - 1].argmax()
    return [int(token) for token in row[0, len(tokens) : len(tokens) + num_tokens]]


def all_of(made: Sequence[Made], count: int) -> list[list[int]]:
    """The tokens of each sequence."""
    return [[token for part in made if part.sequence == n for token in part.tokens] for n in range(count)]


@pytest.mark.parametrize("name", all_but(SHORT, FAMILIES))
def test_every_family_on_every_mesh_is_the_whole_forward_pass(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts of several lengths at once give what each gives by itself without a cache, on one device and on 2 x 2.

    Where experts are split over devices, too.
    """
    monkeypatch.setattr(decoders, "SHORTEST", 8)
    config = FAMILIES[name]()
    prompts = [PROMPT, [7], [3, 66, 21, 8, 9, 30, 2], [0] * 6, [4, 4]]
    alone = program_of(config)
    forward, params = forward_of(alone), random_params(alone)
    expected = [greedy_by_forward(forward, params, prompt, 6) for prompt in prompts]
    apart = [(4, {"tensor": 2, "expert": 2})] if config.num_experts else []
    for devices, mesh in ((1, {}), (4, {"tensor": 2}), *apart):
        program = program_of(config, devices=devices, mesh=mesh)
        made = list(generate_all(program, random_params(program), prompts, num_tokens=6, sampling=GREEDY))
        assert all_of(made, len(prompts)) == expected
        assert [part.sequence for part in made if part.is_last] == list(range(len(prompts)))


@pytest.mark.parametrize("name", ["gpt2", "mixture"])
def test_each_replica_makes_its_own_rows(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device has its part of the rows of its replica alone; the text is that of one device, also where it ends early.

    And where a prompt takes a row of one replica that has ended.

    All that goes from replica to replica is the tokens of a block, once: a slow network may join them.
    """
    monkeypatch.setattr(decoders, "SHORTEST", 8)
    monkeypatch.setattr(generation, "MOST_ROWS", 1)
    config = FAMILIES[name]()
    prompts = [PROMPT, [7], [3, 66, 21, 8, 9, 30, 2], [0] * 6, [4, 4]]
    alone, apart = program_of(config), program_of(config, devices=8, mesh={"replica": 2, "tensor": 2})
    params = random_params(apart)

    def of(program: Program, **wish: Any) -> list[list[int]]:
        made = generate_all(program, random_params(program), prompts, num_tokens=20, sampling=GREEDY, **wish)
        return all_of(list(made), len(prompts))

    whole = of(alone)
    stop = whole[0][2]
    decoder = Decoder.of(apart, params, len(prompts))
    batch, _ = decoder.join(decoder.empty(), dict(enumerate(prompts)), None)
    program = lower_tokens(apart, decoder.layout, decoder.num_rows).compile().as_text() or ""
    executed = parse(program).executed()
    moved = [(one.instruction, kind) for one in executed if (kind := _kind(one.instruction))]
    across = [one.type for one, kind in moved if "replica" in _axes(_group(one, kind), apart.layout.mesh.shape)]

    assert decoder.num_rows == 8
    for x in jax.tree.leaves(batch):
        assert x.sharding.shard_shape(x.shape)[0] == 2
    assert of(apart) == whole
    assert of(apart, stop=stop) == [row[: row.index(stop)] if stop in row else row for row in whole]
    assert sorted(type_.partition("{")[0] for type_ in across) == ["pred[8]", f"s32[{BLOCK},8]"]


def test_weights_that_do_not_fit_are_gathered_as_they_are_needed(
    monkeypatch: pytest.MonkeyPatch, small: tuple[Program, Params], forward: Forward
) -> None:
    """Weights that stay split over data give the tokens of weights that are whole on every device."""
    program = program_of(gpt2_config(), devices=4, mesh={"tensor": 2})
    monkeypatch.setattr(decoders, "layout_of", lambda program, _: program.layout)
    assert program.layout.fsdp
    made = list(generate(program, random_params(program), PROMPT, num_tokens=6, sampling=GREEDY))
    assert made == greedy_by_forward(forward, small[1], PROMPT, 6)


def test_greedy_takes_the_most_likely_token(small: tuple[Program, Params], forward: Forward) -> None:
    """At temperature 0 every token is the argmax of the whole forward pass, and the seed plays no part."""
    program, params = small
    expected = greedy_by_forward(forward, params, PROMPT, 6)
    assert list(generate(program, params, PROMPT, num_tokens=6, sampling=GREEDY, seed=0)) == expected
    assert list(generate(program, params, PROMPT, num_tokens=6, sampling=GREEDY, seed=1)) == expected


def test_a_full_window_starts_anew_with_its_last_half(small: tuple[Program, Params], forward: Forward) -> None:
    """Past the last position the model sees the last half window and fills it up again; a long prompt is cut."""
    program, params = small
    prompt = np.random.default_rng(4).integers(0, 70, 40).tolist()
    made = list(generate(program, params, prompt, num_tokens=11, sampling=GREEDY))
    whole_window = forward(params, np.array([prompt[-16:]], np.int32))[0, -1].argmax()
    assert made[0] == whole_window
    half = [*prompt, made[0]][-8:]
    assert made[1:9] == greedy_by_forward(forward, params, half, 8)
    logits = forward(params, np.array([[*half, *made[1:9]]], np.int32))[0, -1]
    assert made[9] == logits.argmax()
    assert made[10] == greedy_by_forward(forward, params, [*half, *made[1:10]][-8:], 1)[0]


def test_the_seed_decides(small: tuple[Program, Params]) -> None:
    """The same seed gives the same tokens, another seed others, and none is of the vocabulary's padding."""
    program, params = small

    def run(seed: int) -> list[int]:
        return list(generate(program, params, PROMPT, num_tokens=30, sampling=Sampling(temperature=3.0), seed=seed))

    assert run(1) == run(1)
    assert run(1) != run(2)
    assert max(run(1)) < 70


def test_generation_ends_before_the_stop_token(small: tuple[Program, Params]) -> None:
    """The stop token ends the text and is no part of it; without it the count does."""
    program, params = small
    free = list(generate(program, params, PROMPT, num_tokens=8, sampling=Sampling(temperature=2.0), seed=5))
    stop = free[4]
    stopped = list(
        generate(program, params, PROMPT, num_tokens=8, sampling=Sampling(temperature=2.0), seed=5, stop=stop)
    )
    assert stopped == free[: free.index(stop)]
    assert list(generate(program, params, PROMPT, num_tokens=0, sampling=GREEDY)) == []


def test_what_else_is_in_the_batch_plays_no_part(
    small: tuple[Program, Params], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A drawn sequence is the same beside others that are longer or end earlier, and before a later batch."""
    program, params = small
    monkeypatch.setattr(generation, "MOST_ROWS", 4)

    def run(prompts: list[list[int]], stop: int | None = None) -> list[list[int]]:
        sampling = Sampling(temperature=1.5)
        made = generate_all(program, params, prompts, num_tokens=24, sampling=sampling, seed=8, stop=stop)
        return all_of(list(made), len(prompts))

    beside = [[2] * 13, [1], PROMPT, [30, 31]]
    first = run(beside)
    assert run([[9], [8] * 6, PROMPT, [5]])[2] == first[2]
    stop = first[0][2]
    ended = run(beside, stop)
    assert ended[2] == (first[2][: first[2].index(stop)] if stop in first[2] else first[2])
    more = run([*beside, PROMPT, PROMPT])
    assert more[:4] == first
    assert [len(tokens) for tokens in more] == [24] * 6
    assert more[4] != more[5]


def test_several_windows_of_several_lengths(small: tuple[Program, Params], forward: Forward) -> None:
    """Sequences whose windows are full wait until as many begin as go on; each makes what it makes by itself."""
    program, params = small
    prompts = [[3] * 15, PROMPT, [7, 8], [1] * 40]
    made = all_of(list(generate_all(program, params, prompts, num_tokens=26, sampling=GREEDY)), 4)
    for prompt, tokens in zip(prompts, made, strict=True):
        window = prompt[-16:]
        expected: list[int] = []
        while len(expected) < 26:
            logits = forward(params, np.array([[*window, *[0] * (16 - len(window))]], np.int32))
            expected.append(int(logits[0, len(window) - 1].argmax()))
            window = [*window, expected[-1]] if len(window) < 16 else [*window, expected[-1]][-8:]
        assert tokens == expected


LONG = 5
FEW = pytest.param([LONG, 1, 1, 1, 1, 1, LONG, 1, 1], 6, 3, {}, id="as many as go on")
WAITING = pytest.param([LONG, LONG, LONG, 1, 1, 1], 6, 2, {}, id="two wait for more")
LAST = pytest.param([LONG, LONG, LONG, 1, 1], 5, 2, {}, id="the last does not wait")


REPLICAS = pytest.param([LONG, 1, 1, 1, 1, 1, LONG, 1, 1], 6, 3, {"replica": 2, "tensor": 2}, id="on two replicas")


@pytest.mark.parametrize(("blocks", "total", "joins", "mesh"), [FEW, WAITING, LAST, REPLICAS])
def test_a_free_row_takes_the_next_prompt(
    blocks: Sequence[int], total: int, joins: int, mesh: Mapping[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is made of more prompts than there are rows is of each what it gives by itself, in whichever slots it is.

    Prompts begin while others go on: as many as go on, at least, or all that wait. So nobody waits for the longest.
    """
    config = gpt2_config(num_layers=1, seq_len=(LONG + 1) * BLOCK)
    alone, program = program_of(config), program_of(config, devices=8 if mesh else 1, mesh=mesh)
    forward, weights, params = forward_of(alone), random_params(alone), random_params(program)
    prompts = [[n, 3 * n + 1, 60 - n][: 1 + n % 3] for n in range(len(blocks))]
    monkeypatch.setattr(generation, "MOST_ROWS", 1 if mesh else 4)
    calls = Mock()
    for name in ("go_on", "join"):
        found = partialmethod(counted, getattr(Decoder, name), getattr(calls, name))
        monkeypatch.setattr(Decoder, name, found)

    def is_over(number: int, tokens: Sequence[int]) -> bool:
        return len(tokens) == blocks[number] * BLOCK

    wishes: dict[str, Any] = {"num_tokens": LONG * BLOCK, "sampling": GREEDY, "is_over": is_over}
    made = all_of(list(generate_all(program, params, prompts, **wishes)), len(prompts))
    for prompt, count, tokens in zip(prompts, blocks, made, strict=True):
        row = np.zeros((1, program.config.seq_len), np.int32)
        row[0, : len(prompt) + len(tokens)] = [*prompt, *tokens]
        expected = forward(weights, row)[0].argmax(-1)
        assert len(tokens) == count * BLOCK
        assert tokens == expected[len(prompt) - 1 : len(prompt) + len(tokens) - 1].tolist()
    assert (calls.go_on.call_count, calls.join.call_count) == (total, joins)


def counted(decoder: Decoder, call: Callable[..., Any], note: Callable[[], Any], *arguments: Any) -> Any:
    """Note a call of a decoder, and make it."""
    note()
    return call(decoder, *arguments)


def test_a_window_of_several_blocks() -> None:
    """Positions that are no multiple of a block: each token follows from all before it, to the end of the window."""
    program = program_of(gpt2_config(num_layers=1, seq_len=2 * BLOCK + 5))
    forward, params = forward_of(program), random_params(program)
    prompts = [PROMPT, [7] * 20]
    made = all_of(list(generate_all(program, params, prompts, num_tokens=2 * BLOCK, sampling=GREEDY)), 2)
    for prompt, tokens in zip(prompts, made, strict=True):
        row = np.zeros((1, 2 * BLOCK + 5), np.int32)
        within = [*prompt, *tokens][: row.size]
        row[0, : len(within)] = within
        expected = forward(params, row)[0].argmax(-1)
        assert within[len(prompt) :] == expected[len(prompt) - 1 : len(within) - 1].tolist()


def test_the_caller_ends_a_sequence(small: tuple[Program, Params]) -> None:
    """It is asked after each block, of each sequence that goes on, and the others go on without those that ended."""
    program, params = small
    asked: list[tuple[int, int]] = []

    def is_over(number: int, tokens: Sequence[int]) -> bool:
        asked.append((number, len(tokens)))
        return number == 0

    wishes: dict[str, Any] = {"num_tokens": 2 * BLOCK + 1, "sampling": GREEDY, "is_over": is_over}
    first, second, *_ = all_of(list(generate_all(program, params, [PROMPT] * 4, **wishes)), 4)
    assert len(second) == 2 * BLOCK + 1
    assert second[: len(first)] == first
    assert len(first) <= BLOCK
    assert [number for number, _ in asked].count(0) == 1


REFUSED: list[tuple[dict[str, Any], type[ShardwiseError], str]] = [
    ({"prompt": []}, UsageError, "expected at least one"),
    ({"prompt": [3, 70]}, UsageError, "given token 70, expected 0 to 69"),
    ({"num_tokens": -1}, UsageError, "given -1 tokens"),
    ({"num_tokens": 2**31}, UsageError, "given 2147483648 tokens, expected at most 2147483647"),
    ({"seed": -1}, UsageError, "seed -1"),
]


@pytest.mark.parametrize(("wrong", "kind", "words"), REFUSED)
def test_wrong_wishes_are_refused_at_once(
    wrong: dict[str, Any], kind: type[ShardwiseError], words: str, small: tuple[Program, Params]
) -> None:
    """The call itself says what was given and expected, before anything is compiled."""
    program, params = small
    wishes: dict[str, Any] = {"prompt": PROMPT, "num_tokens": 3, "sampling": GREEDY, **wrong}
    with pytest.raises(kind, match=words):
        generate(program, params, wishes.pop("prompt"), **wishes)


def test_broken_parameters_are_said(small: tuple[Program, Params]) -> None:
    """Logits that are not numbers end generation with their own error, greedy or not."""
    program, params = small
    broken = {**params, "norm.bias": params["norm.bias"] * np.nan}
    with pytest.raises(NonFiniteError, match="use another checkpoint"):
        next(generate(program, broken, PROMPT, num_tokens=1, sampling=GREEDY))
