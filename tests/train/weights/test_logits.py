"""The trainer's model against an independent numpy forward pass, through published files in both directions."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file

from shardwise.train.config import GptConfig
from shardwise.train.state import Program
from shardwise.train.weights import place, read, write

from .numpy_gpt import gpt2_logits, gptj_logits

Logits = NDArray[Any]
FLOAT32_ROUNDING = 1e-5  # of the largest logit
LAYOUTS = [(1, {}), (4, {"tensor": 2}), (4, {"tensor": 2, "fsdp": False})]


def reference(family: str, weights: Mapping[str, NDArray[Any]], tokens: NDArray[Any], **options: Any) -> Logits:
    """[batch, position, vocab] by the numpy model."""
    exact = {name.removeprefix("transformer."): array.astype(np.float64) for name, array in weights.items()}
    rows = (
        gpt2_logits(exact, row, num_heads=4, **options)
        if family == "gpt2"
        else gptj_logits(exact, row, num_heads=4, rotary_dim=4, **options)
        for row in tokens
    )
    return np.stack(list(rows))


def assert_equal(ours: Logits, theirs: Logits) -> None:
    real, padding = ours[..., : theirs.shape[-1]], ours[..., theirs.shape[-1] :]
    assert np.abs(real - theirs).max() < FLOAT32_ROUNDING * np.abs(theirs).max()
    assert (padding == -np.inf).all()


@pytest.fixture
def tokens() -> NDArray[np.int32]:
    return np.random.default_rng(3).integers(0, 70, (4, 16)).astype(np.int32)


@pytest.mark.parametrize("prefix", ["", "transformer."])
@pytest.mark.parametrize("family", ["gpt2", "gptj"])
def test_an_imported_model_computes_what_the_published_one_does(
    family: str,
    prefix: str,
    published: Callable[[str], dict[str, NDArray[Any]]],
    hf_configs: Mapping[str, dict[str, Any]],
    save: Callable[..., Path],
    make_program: Callable[..., Program],
    full_logits: Callable[..., Logits],
    tokens: NDArray[np.int32],
) -> None:
    """A published file placed on 2 x 2 devices gives the logits of the numpy model on the same tensors."""
    weights = published(family)
    named = {name if name.startswith("lm_head.") else prefix + name: array for name, array in weights.items()}
    config, parameters = read(save(named, hf_configs[family]))
    program = make_program(config, devices=4, mesh={"tensor": 2})
    params = place(program, config, parameters)
    assert_equal(full_logits(program, params, tokens), reference(family, weights, tokens))


@pytest.mark.parametrize(("devices", "mesh"), LAYOUTS)
@pytest.mark.parametrize("family", ["gpt2", "gptj"])
def test_an_exported_model_computes_what_ours_does(
    family: str,
    devices: int,
    mesh: dict[str, Any],
    small: Mapping[str, GptConfig],
    tmp_path: Path,
    make_program: Callable[..., Program],
    random_params: Callable[..., dict[str, jax.Array]],
    full_logits: Callable[..., Logits],
    tokens: NDArray[np.int32],
) -> None:
    """The numpy model on an exported file gives our model's logits, whatever layout the parameters came from."""
    program = make_program(small[family], devices=devices, mesh=mesh)
    params = random_params(program)
    file = tmp_path / "model.safetensors"
    write(file, program.config, ((path, np.asarray(array)) for path, array in params.items()))
    assert_equal(full_logits(program, params, tokens), reference(family, load_file(file), tokens))


def test_scores_are_divided_by_the_layer_where_the_config_says_so(
    published: Callable[[str], dict[str, NDArray[Any]]],
    hf_configs: Mapping[str, dict[str, Any]],
    save: Callable[..., Path],
    make_program: Callable[..., Program],
    full_logits: Callable[..., Logits],
    tokens: NDArray[np.int32],
) -> None:
    """The Mistral tweaks and the epsilon of a config.json are part of the imported function."""
    weights = published("gpt2")
    tweaks = {"scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True, "layer_norm_epsilon": 1e-2}
    config, parameters = read(save(weights, {**hf_configs["gpt2"], **tweaks}))
    assert config.upcast_attention
    program = make_program(config)
    logits = full_logits(program, place(program, config, parameters), tokens)
    assert_equal(logits, reference("gpt2", weights, tokens, scale_by_inverse_layer=True, epsilon=1e-2))
