"""Small programs on simulated devices, made from whole job files as a run makes them."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from shardwise.job.resolve import resolve
from shardwise.job.spec import TrainingJob
from shardwise.train.config import GptConfig
from shardwise.train.dropout import Dropout
from shardwise.train.layout import Layout
from shardwise.train.state import Program

GPTJ: dict[str, Any] = {
    "block": "parallel",
    "position": "rotary",
    "rotary_dim": 4,
    "tied_head": False,
    "head_bias": True,
    "attention_bias": False,
}


@pytest.fixture
def gpt2_config() -> Callable[..., GptConfig]:
    """Makes the config of a small GPT-2; fields may be given."""

    def make(**fields: Any) -> GptConfig:
        small = {"num_layers": 3, "num_heads": 4, "embed_size": 32, "mlp_size": 96, "seq_len": 16, "vocab_size": 70}
        return GptConfig(**{**small, "init_std": 0.3, **fields})

    return make


@pytest.fixture
def gptj_config(gpt2_config: Callable[..., GptConfig]) -> Callable[..., GptConfig]:
    """Makes the config of a small GPT-J; fields may be given."""
    return lambda **fields: gpt2_config(**{**GPTJ, **fields})


@pytest.fixture
def make_program() -> Callable[..., Program]:
    """Makes the program of a config on `devices` devices; further arguments are the job's sections."""

    def make(config: GptConfig, *, devices: int = 1, **sections: Any) -> Program:
        training = {
            "model": {"preset": "tiny"},
            "data": {"train": [{"name": "text", "paths": ["text.txt"]}], "tokenizer": "byte"},
            "mesh": {},
            "batch": {"sequences": 8},
            "optimizer": {"name": "adamw", "learningRate": 1e-3},
            "steps": 10,
            **sections,
        }
        job = {
            "apiVersion": "shardwise.dev/v1alpha1",
            "kind": "TrainingJob",
            "metadata": {"name": "small"},
            "spec": {"hardware": {"accelerator": "cpu-sim", "topology": f"1x{devices}"}, "training": training},
        }
        resolved = resolve(TrainingJob.model_validate(job)).spec.training
        return Program.of(resolved, Layout.of(resolved, jax.devices()[:devices]), config)

    return make


@pytest.fixture
def random_params() -> Callable[..., dict[str, jax.Array]]:
    """Makes parameters whose every entry is random, biases and gains too, laid out as a program stores them."""

    def make(program: Program, seed: int = 0) -> dict[str, jax.Array]:
        rng = np.random.default_rng(seed)
        made = {}
        for path, abstract in program.abstract()["params"].items():
            values = rng.normal(1.0 if path.endswith("norm.weight") else 0.0, 0.3, abstract.shape)
            if program.names[path][0] == "vocab":  # the padding's rows are zero, as an import leaves them
                values[program.config.vocab_size :] = 0
            made[path] = jax.device_put(values.astype(abstract.dtype), abstract.sharding)
        return made

    return make


@pytest.fixture
def full_logits() -> Callable[..., np.ndarray[Any, np.dtype[np.float32]]]:
    """Computes float32 [batch, position, padded vocab] for int32 [batch, position] by the whole forward pass."""

    def run(
        program: Program,
        params: dict[str, jax.Array],
        tokens: np.ndarray[Any, Any],
        segments: np.ndarray[Any, Any] | None = None,
    ) -> np.ndarray[Any, np.dtype[np.float32]]:
        def forward(params: dict[str, jax.Array], tokens: jax.Array, segments: jax.Array | None) -> jax.Array:
            model = program.model(program.policy.cast_to_compute(params))
            hidden = model.hidden(tokens, segments, Dropout.none(), program.layout, reduce_float32=False)
            logits: jax.Array = model.logits(hidden, program.layout).rearrange(("batch", "position", "vocab")).array
            return logits

        with jax.set_mesh(program.layout.mesh):
            return np.asarray(jax.jit(forward)(params, tokens, segments))

    return run
