"""The trainer's model against an independent numpy forward pass, through published files in both directions."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file
from tests.train.small_gpt import forward_of, program_of, random_params
from tests.train.weights.numpy_gpt import gpt2_logits, gptj_logits

from shardwise.train.config import GptConfig
from shardwise.train.weights import place, read, write

Logits = NDArray[Any]
FLOAT32_ROUNDING = 1e-5  # of the largest logit
LAYOUTS = [(1, {}), (8, {"tensor": 4})]


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
    """Equal but for float32's rounding, with the padding masked."""
    real, padding = ours[..., : theirs.shape[-1]], ours[..., theirs.shape[-1] :]
    assert np.abs(real - theirs).max() < FLOAT32_ROUNDING * np.abs(theirs).max()
    assert (padding == -np.inf).all()


@pytest.fixture
def tokens() -> NDArray[np.int32]:
    """Four rows that fill the positions."""
    return np.random.default_rng(3).integers(0, 70, (4, 16)).astype(np.int32)


@pytest.mark.parametrize("family", ["gpt2", "gptj"])
def test_an_imported_model_computes_what_the_published_one_does(
    family: str,
    published: Callable[[str], dict[str, NDArray[Any]]],
    hf_configs: Mapping[str, dict[str, Any]],
    save: Callable[..., Path],
    tokens: NDArray[np.int32],
) -> None:
    """A published file placed on 2 x 2 devices gives the logits of the numpy model on the same tensors."""
    weights = published(family)
    config, parameters = read(save(weights, hf_configs[family]))
    program = program_of(config, devices=4, mesh={"tensor": 2})
    params = place(program, config, parameters)
    assert_equal(forward_of(program)(params, tokens), reference(family, weights, tokens))


@pytest.mark.parametrize(("devices", "mesh"), LAYOUTS)
@pytest.mark.parametrize("family", ["gpt2", "gptj"])
def test_an_exported_model_computes_what_ours_does(
    family: str,
    devices: int,
    mesh: dict[str, Any],
    small: Mapping[str, GptConfig],
    tmp_path: Path,
    tokens: NDArray[np.int32],
) -> None:
    """The numpy model on an exported file gives our model's logits, whatever layout the parameters came from."""
    program = program_of(small[family], devices=devices, mesh=mesh)
    params = random_params(program, seed=1)
    file = tmp_path / "model.safetensors"
    write(file, program.config, ((path, np.asarray(array)) for path, array in params.items()))
    assert_equal(forward_of(program)(params, tokens), reference(family, load_file(file), tokens))


def test_scores_are_divided_by_the_layer_where_the_config_says_so(
    published: Callable[[str], dict[str, NDArray[Any]]],
    hf_configs: Mapping[str, dict[str, Any]],
    save: Callable[..., Path],
    tokens: NDArray[np.int32],
) -> None:
    """The Mistral tweaks and the epsilon of a config.json are part of the imported function."""
    weights = published("gpt2")
    tweaks = {"scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True, "layer_norm_epsilon": 1e-2}
    config, parameters = read(save(weights, {**hf_configs["gpt2"], **tweaks}))
    program = program_of(config)
    logits = forward_of(program)(place(program, config, parameters), tokens)
    assert_equal(logits, reference("gpt2", weights, tokens, scale_by_inverse_layer=True, epsilon=1e-2))
