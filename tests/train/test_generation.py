"""Sequences in the making: each has wishes of its own, and more may come at any time."""

from collections.abc import Mapping
from typing import Any

import jax
import pytest
from tests.train.small_gpt import gpt2_config, program_of, random_params

from shardwise.train.decoder import Decoder
from shardwise.train.decoding_arrays import BLOCK
from shardwise.train.generate import generate
from shardwise.train.generation import Generation, Made, Wish
from shardwise.train.sampling import Sampling
from shardwise.train.state import Program

Params = dict[str, jax.Array]
ASKED = (
    ([5, 1, 69, 3], Wish(num_tokens=3 * BLOCK, sampling=Sampling(temperature=0))),
    ([7], Wish(num_tokens=5, sampling=Sampling(temperature=2.0, top_k=3), seed=2**40 + 3)),
    ([3, 66, 21], Wish(num_tokens=2 * BLOCK, sampling=Sampling(temperature=1.5, top_p=0.7), seed=9)),
    ([4, 4], Wish(num_tokens=40, sampling=Sampling(temperature=3.0), seed=2)),
    ([30, 31, 5], Wish(num_tokens=BLOCK, sampling=Sampling(temperature=1.5, top_k=9, top_p=0.9), seed=2)),
)


@pytest.fixture(scope="module", params=[{}, {"replica": 2, "tensor": 2}], ids=["one device", "two replicas"])
def made_for(request: pytest.FixtureRequest) -> tuple[Program, Params, Decoder]:
    """A small model, and a decoder of four rows."""
    mesh: Mapping[str, Any] = request.param
    program = program_of(gpt2_config(num_layers=1, seq_len=4 * BLOCK), devices=4 if mesh else 1, mesh=mesh)
    params = random_params(program)
    return program, params, Decoder.of(program, params, 4)


def collect(made: list[Made], into: dict[int, list[int]]) -> None:
    """Put the tokens of a block behind those of the blocks before."""
    for each in made:
        into.setdefault(each.sequence, []).extend(each.tokens)


def test_each_has_wishes_of_its_own_and_comes_when_it_wants(made_for: tuple[Program, Params, Decoder]) -> None:
    """Whatever else is in the rows, a text is what its own temperature, top-k, top-p, seed, end and length give it.

    The first two begin together, the others beside the one that goes on.
    """
    program, params, decoder = made_for
    alone = [
        list(generate(program, params, prompt, num_tokens=wish.num_tokens, sampling=wish.sampling, seed=wish.seed))
        for prompt, wish in ASKED
    ]
    assert [len(tokens) for tokens in alone] == [wish.num_tokens for _, wish in ASKED]
    generation, found = Generation(decoder), dict[int, list[int]]()
    assert not generation.is_busy
    for number in (0, 1):
        generation.add(number, *ASKED[number])
    collect(generation.go_on(), found)
    assert generation.num_live == 1, "the second wanted five tokens"
    for number in (2, 3, 4):
        generation.add(number, *ASKED[number])
    assert generation.num_waiting == 3
    collect(generation.go_on(), found)
    assert (generation.num_waiting, len(found)) == (0, 5)
    while generation.is_busy:
        collect(generation.go_on(), found)
    assert [found[number] for number in range(5)] == alone


def test_texts_of_one_seed_are_drawn_apart(made_for: tuple[Program, Params, Decoder]) -> None:
    """The same prompt and seed give the same text as often as it is asked for, and another one for each draw."""
    _, _, decoder = made_for
    generation, found = Generation(decoder), dict[int, list[int]]()
    for number, draw in enumerate((0, 1, 0, 2)):
        wish = Wish(num_tokens=BLOCK, sampling=Sampling(temperature=3.0), seed=4, draw=draw)
        generation.add(number, [1, 2], wish)
    collect(generation.go_on(), found)
    assert found[0] == found[2]
    assert len({tuple(tokens) for tokens in found.values()}) == 3


def test_a_stop_token_is_a_sequences_own(made_for: tuple[Program, Params, Decoder]) -> None:
    """It ends the one that asked for it, and no other that makes it."""
    _, _, decoder = made_for
    generation, found = Generation(decoder), dict[int, list[int]]()
    greedy = Wish(num_tokens=BLOCK, sampling=Sampling(temperature=0))
    generation.add(0, [5, 1], greedy)
    collect(generation.go_on(), found)
    stop = found[0][4]
    for number, end in ((1, stop), (2, None)):
        generation.add(number, [5, 1], Wish(num_tokens=BLOCK, sampling=greedy.sampling, stop=end))
    collect(generation.go_on(), found)
    assert found[1] == found[0][: found[0].index(stop)]
    assert found[2] == found[0]


def test_who_is_dropped_is_made_no_more(made_for: tuple[Program, Params, Decoder]) -> None:
    """One that waits is forgotten, one that has a row leaves it to the next; the others are what they are alone."""
    _, _, decoder = made_for
    generation, found = Generation(decoder), dict[int, list[int]]()
    wish = Wish(num_tokens=3 * BLOCK, sampling=Sampling(temperature=0))
    for number in range(6):
        generation.add(number, [5, number + 1], wish)
    collect(generation.go_on(), found)
    assert (generation.num_live, generation.num_waiting, sorted(found)) == (4, 2, [0, 1, 2, 3])
    generation.drop(4)
    assert (generation.num_live, generation.num_waiting) == (4, 1)
    generation.drop(1)
    generation.drop(9)  # nobody
    assert (generation.num_live, generation.num_waiting) == (3, 1)
    while generation.is_busy:
        collect(generation.go_on(), found)
    assert {number: len(found[number]) // BLOCK for number in found} == {0: 3, 1: 1, 2: 3, 3: 3, 5: 3}
    generation, alone = Generation(decoder), dict[int, list[int]]()
    generation.add(5, [5, 6], wish)
    while generation.is_busy:
        collect(generation.go_on(), alone)
    assert found[5] == alone[5]


def test_nothing_is_left_to_do_when_all_are_dropped(made_for: tuple[Program, Params, Decoder]) -> None:
    """A generation of dropped sequences is not busy, and takes others."""
    _, _, decoder = made_for
    generation, found = Generation(decoder), dict[int, list[int]]()
    for number in range(5):
        generation.add(number, [5, 1], Wish(num_tokens=3 * BLOCK, sampling=Sampling(temperature=0)))
    collect(generation.go_on(), found)
    for number in range(5):
        generation.drop(number)
    assert not generation.is_busy
    generation.add(7, [5, 1], Wish(num_tokens=3, sampling=Sampling(temperature=0)))
    collect(generation.go_on(), found)
    assert found[7] == found[0][:3]
    assert not generation.is_busy


def test_every_program_is_compiled_beforehand() -> None:
    """After `compile_all` no prompt of any length compiles anything; it tells of each program."""
    program = program_of(gpt2_config(num_layers=1, seq_len=40))
    decoder, told = Decoder.of(program, random_params(program), 2), list[str]()
    decoder.compile_all(told.append)
    known = dict(decoder._compiled)
    assert told == ["tokens", *(f"prompts of up to {size} tokens" for size in (16, 32, 48))]
    generation = Generation(decoder)
    for number, size in enumerate((1, 17, 33, 40, 90)):
        generation.add(number, [3] * size, Wish(num_tokens=3, sampling=Sampling(temperature=0)))
        while generation.is_busy:
            generation.go_on()
    assert decoder._compiled == known
