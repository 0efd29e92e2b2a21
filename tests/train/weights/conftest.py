"""Published models in small: random tensors under Hugging Face's names, and their files."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tests.train.small_gpt import gpt2_config, gptj_config

from shardwise.train.config import GptConfig

Weights = dict[str, NDArray[Any]]

LAYERS, EMBED, MLP, POSITIONS, VOCAB = 3, 32, 96, 16, 70
CONFIGS: Mapping[str, dict[str, Any]] = {
    "gpt2": {"model_type": "gpt2", "n_head": 4, "activation_function": "gelu_new", "n_embd": EMBED},
    "gptj": {"model_type": "gptj", "n_head": 4, "rotary_dim": 4, "n_positions": POSITIONS, "n_layer": LAYERS},
}
MATRICES: Mapping[str, dict[str, tuple[int, ...]]] = {
    "gpt2": {
        "attn.c_attn.weight": (EMBED, 3 * EMBED),
        "attn.c_attn.bias": (3 * EMBED,),
        "attn.c_proj.weight": (EMBED, EMBED),
        "attn.c_proj.bias": (EMBED,),
        "mlp.c_fc.weight": (EMBED, MLP),
        "mlp.c_fc.bias": (MLP,),
        "mlp.c_proj.weight": (MLP, EMBED),
        "mlp.c_proj.bias": (EMBED,),
        "ln_2.weight": (EMBED,),
        "ln_2.bias": (EMBED,),
    },
    "gptj": {
        "attn.q_proj.weight": (EMBED, EMBED),
        "attn.k_proj.weight": (EMBED, EMBED),
        "attn.v_proj.weight": (EMBED, EMBED),
        "attn.out_proj.weight": (EMBED, EMBED),
        "mlp.fc_in.weight": (MLP, EMBED),
        "mlp.fc_in.bias": (MLP,),
        "mlp.fc_out.weight": (EMBED, MLP),
        "mlp.fc_out.bias": (EMBED,),
    },
}
OUTSIDE: Mapping[str, dict[str, tuple[int, ...]]] = {
    "gpt2": {"wpe.weight": (POSITIONS, EMBED)},
    "gptj": {"lm_head.weight": (VOCAB, EMBED), "lm_head.bias": (VOCAB,)},
}


@pytest.fixture
def published() -> Callable[[str], Weights]:
    """Makes a published model of a family: random tensors by name, without the prefix."""

    def make(family: str) -> Weights:
        shapes = {"wte.weight": (VOCAB, EMBED), "ln_f.weight": (EMBED,), "ln_f.bias": (EMBED,), **OUTSIDE[family]}
        for layer in range(LAYERS):
            inside = {"ln_1.weight": (EMBED,), "ln_1.bias": (EMBED,), **MATRICES[family]}
            shapes |= {f"h.{layer}.{name}": shape for name, shape in inside.items()}
        rng = np.random.default_rng(7)
        loc = {name: 1.0 if ".ln_" in f".{name}" and name.endswith("weight") else 0.0 for name in shapes}
        return {name: rng.normal(loc[name], 0.3, shape).astype(np.float32) for name, shape in shapes.items()}

    return make


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., Path]:
    """Writes tensors with the format's own library, and a config.json beside them; returns the file."""

    def write(weights: Mapping[str, NDArray[Any]], config: Mapping[str, Any] | None, folder: str = "published") -> Path:
        path = tmp_path / folder / "model.safetensors"
        path.parent.mkdir(exist_ok=True)
        save_file(dict(weights), path)
        if config is not None:
            (path.parent / "config.json").write_text(json.dumps(config), encoding="utf-8")
        return path

    return write


@pytest.fixture
def small() -> Mapping[str, GptConfig]:
    """The configs of the published models in small, by family."""
    return {"gpt2": gpt2_config(init_std=0.02), "gptj": gptj_config(init_std=0.02)}


@pytest.fixture
def hf_configs() -> Mapping[str, dict[str, Any]]:
    """The config.json that goes with `published`, by family."""
    return CONFIGS
