"""Tensors that hold those of all experts: in the order of the file, packed in 4 bits, and what is wrong with them."""

import json
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tests.train.small_gpt import forward_of, gpt2_config, program_of
from tests.train.weights.hf.packed_model import drawn_packed

from shardwise.protocol.errors import DataError
from shardwise.train.config import GptConfig
from shardwise.train.generate import generate
from shardwise.train.sampling import Sampling
from shardwise.train.weights import place, read
from shardwise.train.weights.config_file import published_config
from shardwise.train.weights.gpt_oss_family import GPT_OSS
from shardwise.train.weights.mxfp4 import decode
from shardwise.train.weights.stacked import published_shapes
from shardwise.train.weights.tensors import tensors

Weights = dict[str, NDArray[Any]]
PACKED = Path(__file__).parent / "hf" / "packed"
QUANTIZED = {"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}}


def config() -> GptConfig:
    """A small gpt-oss, whose experts can be packed."""
    return gpt2_config(
        num_layers=2,
        embed_size=64,
        mlp_size=32,
        num_kv_heads=2,
        norm="rms",
        position="rotary",
        rotary_dim=16,
        rotary_pairs="half",
        tied_head=False,
        attention_sinks=True,
        activation="swiglu-clamped",
        num_experts=4,
        experts_per_token=2,
        router_bias=True,
    )


def packed() -> Weights:
    """Return random tensors by published name, the experts' matrices packed."""
    rng, made = np.random.default_rng(2), {}
    for name, shape in published_shapes(GPT_OSS, tensors(GPT_OSS.rows, config())).items():
        full = name if name.startswith("lm_head") else f"model.{name}"
        if name.endswith("_proj") and "experts" in name:
            experts, rows, columns = shape
            blocks = (experts, columns, rows // 32)
            made[f"{full}_blocks"] = rng.integers(0, 256, (*blocks, 16), dtype=np.uint8)
            made[f"{full}_scales"] = rng.integers(118, 126, blocks, dtype=np.uint8)
        else:
            made[full] = rng.normal(size=shape).astype(np.float32)
    return made


def unpacked(weights: Weights) -> Weights:
    """Return the same as the published tensors that are not packed."""
    plain = {name: array for name, array in weights.items() if not name.endswith(("_blocks", "_scales"))}
    for name, blocks in weights.items():
        if name.endswith("_blocks"):
            short = name.removesuffix("_blocks")
            plain[short] = np.ascontiguousarray(decode(blocks, weights[f"{short}_scales"]).transpose(0, 2, 1))
    return plain


def folder_of(path: Path, weights: Weights, more: dict[str, Any]) -> Path:
    """Write a model's folder."""
    path.mkdir()
    save_file(weights, path / "model.safetensors", {"format": "pt"})
    described = {**published_config(GPT_OSS, config(), "float32"), **more}
    (path / "config.json").write_text(json.dumps(described), encoding="utf-8")
    return path


def test_values_are_those_that_transformers_decodes() -> None:
    """Every byte, with scales around 1 and at the ends, as recorded; rows and columns are the other way round there."""
    with np.load(PACKED / "mxfp4.npz") as recorded:
        ours = decode(recorded["blocks"], recorded["scales"])
        assert len(np.unique(recorded["blocks"])) == 256
        np.testing.assert_array_equal(ours.transpose(0, 2, 1), recorded["values"])


def test_a_packed_model_computes_what_transformers_does(tmp_path: Path) -> None:
    """Logits within 1e-5 in float32, and greedy text with a cache, as recorded of the same packed file."""
    described = json.loads((PACKED / "model.json").read_text(encoding="utf-8"))
    save_file(drawn_packed(described["shapes"]), tmp_path / "model.safetensors", {"format": "pt"})
    (tmp_path / "config.json").write_text(json.dumps(described["config"]), encoding="utf-8")
    found, parameters = read(tmp_path)
    program = program_of(found)
    params = place(program, found, parameters)
    with np.load(PACKED / "model.npz") as arrays:
        tokens, logits, greedy = arrays["tokens"], arrays["logits"], arrays["greedy"]
    ours = forward_of(program)(params, tokens.astype(np.int32))[..., : found.vocab_size]
    assert np.abs(ours - logits).max() < 1e-5
    prompt = tokens[0, :6].tolist()
    made = generate(program, params, prompt, num_tokens=greedy.shape[1] - 6, sampling=Sampling(temperature=0))
    assert list(made) == greedy[0, 6:].tolist()


def test_a_scale_that_is_no_number_makes_none() -> None:
    """The byte 255, by the format's specification."""
    assert np.isnan(decode(np.full((1, 16), 0x22, np.uint8), np.array([255], np.uint8))).all()


@pytest.mark.parametrize(("devices", "mesh"), [(1, {}), (4, {"tensor": 2}), (4, {"expert": 2})], ids=str)
def test_packed_weights_are_those_that_are_not(tmp_path: Path, devices: int, mesh: dict[str, int]) -> None:
    """The same parameters on every device, of which each decodes its own parts."""
    weights = packed()
    placed = []
    for name, arrays, more in (("packed", weights, QUANTIZED), ("plain", unpacked(weights), {})):
        found, parameters = read(folder_of(tmp_path / name, arrays, more))
        program = program_of(found, devices=devices, mesh=mesh)
        placed.append(jax.device_get(place(program, found, parameters)))
    one, other = placed
    assert one.keys() == other.keys()
    for path, array in one.items():
        np.testing.assert_array_equal(array, other[path], err_msg=path)
    assert np.abs(one["blocks.mlp.up.weight"]).max() > 0
    gate_up = unpacked(weights)["model.layers.1.mlp.experts.gate_up_proj"]
    np.testing.assert_array_equal(one["blocks.mlp.gate.weight"][1].transpose(1, 0, 2), gate_up[..., 0::2])
    np.testing.assert_array_equal(one["blocks.mlp.up.weight"][1].transpose(1, 0, 2), gate_up[..., 1::2])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"down_proj_scales": None}, r"layers.1.mlp.experts.down_proj_scales: missing; expected shape \(4, 32, 64\)"),
        (
            {"down_proj_scales": None, "down_proj_blocks": None},
            r"layers.1.mlp.experts.down_proj: missing; expected shape \(4, 32, 64\)",
        ),
        (
            {"gate_up_proj_blocks": np.zeros((4, 64, 3, 16), np.uint8)},
            r"gate_up_proj_blocks: given shape \(4, 64, 3, 16\) of U8, expected \(4, 64, 2, 16\) of U8",
        ),
        (
            {"gate_up_proj_bias": np.zeros((4, 32), np.float32)},
            r"gate_up_proj_bias: given shape \(4, 32\), expected \(4, 64\)",
        ),
    ],
)
def test_what_is_not_whole_is_refused(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    """By the published name, with what is expected."""
    weights = packed()
    for kind, array in change.items():
        name = f"model.layers.1.mlp.experts.{kind}"
        weights = {key: value for key, value in weights.items() if key != name} | (
            {} if array is None else {name: array}
        )
    with pytest.raises(DataError, match=words):
        read(folder_of(tmp_path / "model", weights, QUANTIZED))


def test_other_formats_are_refused_by_key(tmp_path: Path) -> None:
    """A quantization whose tensors would be read as something else."""
    with pytest.raises(DataError, match=r"quantization_config.quant_method is fp8, expected mxfp4"):
        read(folder_of(tmp_path / "model", packed(), {"quantization_config": {"quant_method": "fp8"}}))
