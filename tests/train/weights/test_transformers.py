"""Every family against transformers: what it computed with these weights is recorded in `hf/`, by `hf/record.py`."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file
from tests.long import all_but
from tests.train.small_gpt import forward_of, program_of
from tests.train.weights.hf.drawn import drawn
from tests.train.weights.hf.exports import as_published

from shardwise.job.spec.training import Lora
from shardwise.protocol.errors import DataError
from shardwise.train.generate import generate
from shardwise.train.layout import axis_names, flatten
from shardwise.train.lora import initial, is_adapter, merged
from shardwise.train.sampling import Sampling
from shardwise.train.weights import check_exportable, place, read, write, write_adapters
from shardwise.train.weights.config_file import published_config

Weights = dict[str, NDArray[np.float32]]
HF = Path(__file__).parent / "hf"
RECORDINGS = sorted(path.stem for path in HF.glob("*.npz"))
FLOAT32_ROUNDING = 1e-5
SEVERAL = {"mlp.gate_up_proj": 6, "self_attn.qkv_proj": 6}
"""The ranks of what several adapters of rank 3 make one."""
LAYOUTS = {"one device": (1, {}), "fsdp 2 x tensor 2": (4, {"tensor": 2})}


@dataclass(frozen=True)
class Recording:
    """A published model, and what transformers computed with it."""

    folder: Path
    weights: Weights
    tokens: NDArray[np.int64]
    logits: NDArray[np.float32]
    greedy: NDArray[np.int64]


def write_model(name: str, folder: Path) -> Weights:
    """Write a recorded model as it is published, into a folder that is not there yet, and return its weights."""
    described = json.loads((HF / f"{name}.json").read_text(encoding="utf-8"))
    weights = drawn(described["shapes"], described["gains"])
    folder.mkdir()
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(described["config"]), encoding="utf-8")
    return weights


@pytest.fixture
def recording(tmp_path: Path) -> Callable[[str], Recording]:
    """Makes a recorded model's folder."""

    def make(name: str) -> Recording:
        weights = write_model(name, tmp_path / name)
        with np.load(HF / f"{name}.npz") as arrays:
            return Recording(tmp_path / name, weights, arrays["tokens"], arrays["logits"], arrays["greedy"])

    return make


@pytest.mark.parametrize("layout", all_but(list(LAYOUTS)[1:], LAYOUTS))
@pytest.mark.parametrize("name", RECORDINGS)
def test_the_logits_are_those_of_transformers(name: str, layout: str, recording: Callable[[str], Recording]) -> None:
    """Within 1e-5 in float32 at every position, on one device and split over four."""
    made = recording(name)
    devices, mesh = LAYOUTS[layout]
    config, parameters = read(made.folder)
    program = program_of(config, devices=devices, mesh=mesh)
    params = place(program, config, parameters)
    logits = forward_of(program)(params, made.tokens.astype(np.int32))
    assert np.abs(logits[..., : config.vocab_size] - made.logits).max() < FLOAT32_ROUNDING


@pytest.mark.parametrize("name", RECORDINGS)
def test_greedy_generation_is_that_of_transformers(name: str, recording: Callable[[str], Recording]) -> None:
    """Token by token, with a cache, to the end of the positions."""
    made = recording(name)
    config, parameters = read(made.folder)
    program = program_of(config, devices=1)
    params = place(program, config, parameters)
    prompt = [int(token) for token in made.tokens[0, :6]]
    count = made.greedy.shape[1] - len(prompt)
    greedy = Sampling(temperature=0)
    assert list(generate(program, params, prompt, num_tokens=count, sampling=greedy)) == made.greedy[0, 6:].tolist()


@pytest.mark.parametrize("name", RECORDINGS)
def test_an_import_is_exported_byte_by_byte(name: str, recording: Callable[[str], Recording], tmp_path: Path) -> None:
    """The export has the names and the bytes of what was imported, and reads as the same config.

    What is joined in the files of its family is apart there, and has its rows.
    """
    made = recording(name)
    config, parameters = read(made.folder)
    target = tmp_path / "again" / "model.safetensors"
    target.parent.mkdir()
    whole = {path: stored[tuple(slice(None) for _ in stored.shape)] for path, stored in parameters}
    write(target, config, whole.items())
    again = as_published(made.weights, load_file(target))
    assert again.keys() == made.weights.keys()
    assert all(again[tensor].tobytes() == array.tobytes() for tensor, array in made.weights.items())
    assert read(target)[0] == config


def test_joined_tensors_of_other_sizes_are_refused(recording: Callable[[str], Recording]) -> None:
    """By their own names, with the rows that the parts have together."""
    folder = recording("phi3").folder
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, "num_key_value_heads": 6}), encoding="utf-8")
    with pytest.raises(
        DataError, match=r"layers\.0\.self_attn\.qkv_proj\.weight: given shape \(80, 48\), expected \(144, 48\)"
    ):
        read(folder)


LONG = {"type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"rope_scaling": {**LONG, "long_factor": [2.0]}}, "rope_scaling.long_factor is 1 numbers, expected 4 numbers"),
        ({"rope_scaling": LONG, "partial_rotary_factor": 0.75}, "short_factor is 4 numbers, expected 3 numbers"),
        ({"rope_scaling": {**LONG, "long_factor": 2.0}}, "rope_scaling.long_factor is 2.0, expected a list of numbers"),
        ({"rope_scaling": {**LONG, "short_factor": [0.0] * 4}}, "rope_scaling.short_factor is 0.0, expected a number"),
        ({"rope_scaling": {"type": "longrope", "short_factor": [1.0] * 4}}, "rope_scaling.long_factor is missing"),
        ({"rope_scaling": {"type": "yarn", "factor": 2.0}}, "rope_type is yarn, expected default or longrope"),
    ],
)
def test_a_phi_that_is_not_computed_is_refused_by_key(
    fields: dict[str, object], words: str, recording: Callable[[str], Recording]
) -> None:
    """Factors that are not one for each pair that is turned, and what transformers refuses too."""
    folder = recording("phi3").folder
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    del config["rope_parameters"]
    (folder / "config.json").write_text(json.dumps({**config, **fields}), encoding="utf-8")
    with pytest.raises(DataError, match=words):
        read(folder)


@pytest.mark.parametrize(
    ("name", "family"), [("phi3", "mistral"), ("phi3-own-heads", "llama"), ("phi3-longrope", "phi3")]
)
def test_a_phi_is_exported_as_the_plainest_that_computes_it(
    name: str, family: str, recording: Callable[[str], Recording]
) -> None:
    """As Llama or Mistral where these do, and as Phi where heads are turned in part or each pair by its own factor."""
    assert check_exportable(read(recording(name).folder)[0]).name == family


def test_an_exported_phi_fills_rows_with_no_token(recording: Callable[[str], Recording]) -> None:
    """By default transformers takes one that a small vocabulary lacks, and refuses the model."""
    config, _ = read(recording("phi3-longrope").folder)
    written = published_config(check_exportable(config), config, "float32")
    assert written["model_type"] == "phi3"
    assert "pad_token_id" in written
    assert written["pad_token_id"] is None


@pytest.mark.parametrize(
    ("dtype", "ranks"),
    [(np.float32, SEVERAL), (jnp.bfloat16, SEVERAL), (np.float32, {"mlp.gate_up_proj": 6})],
    ids=["fewer keys", "bfloat16", "as many keys"],
)
def test_adapters_of_joined_weights_are_joined(
    dtype: Any, ranks: dict[str, int], recording: Callable[[str], Recording], tmp_path: Path
) -> None:
    """Added as PEFT adds them, with the rank and alpha of each module's name, they are the model that has them added.

    Those of gate and up are two, and those of queries, keys and values too where there are fewer of the latter.
    """
    config, _ = read(recording("phi3-longrope").folder)
    assert config.num_kv_heads < config.num_heads
    if "self_attn.qkv_proj" not in ranks:
        config = replace(config, num_kv_heads=config.num_heads)
    lora = Lora(rank=3, alpha=5.0, mlp=True)
    template = eqx.filter_eval_shape(initial, config, lora, key=jax.eval_shape(jax.random.key, 0))
    rng, shapes, names = np.random.default_rng(1), flatten(template), axis_names(template)
    held = {path: rng.normal(0, 0.2, x.shape).astype(dtype) for path, x in shapes.items()}
    adapters = {path: x for path, x in held.items() if is_adapter(path)}
    plain = {path: x.astype(np.float32) for path, x in held.items() if path not in adapters}
    added = {path: np.asarray(x) for path, x in merged(plain, adapters, names, lora).items()}
    for where, parts in (("plain", plain), ("added", added)):
        (tmp_path / where).mkdir()
        write(tmp_path / where / "model.safetensors", config, parts.items())
    (tmp_path / "peft").mkdir()
    write_adapters(tmp_path / "peft" / "adapter_model.safetensors", config, adapters, names, lora)

    before, after = (load_file(tmp_path / where / "model.safetensors") for where in ("plain", "added"))
    factors = {key: x.astype(np.float64) for key, x in load_file(tmp_path / "peft/adapter_model.safetensors").items()}
    known = json.loads((tmp_path / "peft" / "adapter_config.json").read_text())
    assert sorted(known["target_modules"]) == [
        "mlp.down_proj",
        "mlp.gate_up_proj",
        "self_attn.o_proj",
        "self_attn.qkv_proj",
    ]
    assert known["rank_pattern"] == ranks
    for tensor, x in after.items():
        module = f"base_model.model.{tensor.removesuffix('.weight')}"
        if (a := factors.pop(f"{module}.lora_A.weight", None)) is None:
            assert np.array_equal(x, before[tensor]), tensor
            continue
        kind = next((each for each in known["rank_pattern"] if re.match(rf"(.*\.)?({each})$", module)), module)
        rank, alpha = known["rank_pattern"].get(kind, known["r"]), known["alpha_pattern"].get(kind, known["lora_alpha"])
        assert len(a) == rank
        expected = before[tensor] + alpha / rank * factors.pop(f"{module}.lora_B.weight") @ a
        np.testing.assert_allclose(x, expected, rtol=1e-5, atol=1e-6, err_msg=tensor)
    assert not factors
