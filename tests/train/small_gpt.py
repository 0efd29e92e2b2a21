"""Small GPTs on simulated devices, made from whole job files as a run makes them; imported by tests."""

from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from numpy.typing import NDArray

from shardwise.job.resolve import resolve
from shardwise.job.spec import Training, TrainingJob
from shardwise.train.config import GptConfig
from shardwise.train.dropout import Dropout
from shardwise.train.layout import Layout
from shardwise.train.model import whole_table
from shardwise.train.state import Program

Params = dict[str, jax.Array]
Forward = Callable[..., NDArray[np.float32]]
SMALL: Mapping[str, Any] = {
    "num_layers": 3,
    "num_heads": 4,
    "embed_size": 32,
    "mlp_size": 96,
    "seq_len": 16,
    "vocab_size": 70,
}
GPTJ: Mapping[str, Any] = {
    "block": "parallel",
    "position": "rotary",
    "rotary_dim": 4,
    "tied_head": False,
    "head_bias": True,
    "attention_bias": False,
}


def gpt2_config(**fields: Any) -> GptConfig:
    """The config of a small GPT-2; fields may be given."""
    return GptConfig(**{**SMALL, **fields})


def gptj_config(**fields: Any) -> GptConfig:
    """The config of a small GPT-J; fields may be given."""
    return gpt2_config(**{**GPTJ, **fields})


def training_of(*, devices: int = 1, **sections: Any) -> Training:
    """A resolved job's training on so many devices; its sections may be given."""
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
    return resolve(TrainingJob.model_validate(job)).spec.training


def program_of(config: GptConfig, *, devices: int = 1, **sections: Any) -> Program:
    """The program of a config; further arguments are the job's sections."""
    training = training_of(devices=devices, **sections)
    return Program.of(training, Layout.of(training, jax.devices()[:devices]), config)


def random_params(program: Program, seed: int = 0) -> Params:
    """Parameters whose every entry is random, biases and gains too, laid out as the program stores them."""
    rng = np.random.default_rng(seed)
    made = {}
    for path, abstract in program.abstract()["params"].items():
        values = rng.normal(1.0 if path.endswith("norm.weight") else 0.0, 0.3, abstract.shape)
        if "vocab" in program.names[path]:  # the last axis; the padding's entries are zero, as an import leaves them
            values[..., program.config.vocab_size :] = 0
        made[path] = jax.device_put(values.astype(abstract.dtype), abstract.sharding)
    return made


def forward_of(program: Program) -> Forward:
    """Compiles, at its first call, (params, int32 [batch, position], segments or None) -> all logits.

    They are float32 [batch, position, padded vocab], by the whole forward pass.
    """

    def forward(params: Params, tokens: jax.Array, segments: jax.Array | None) -> jax.Array:
        model = program.model(params)
        table = whole_table(model.token_embedding, program.layout)
        hidden = model.hidden(table, tokens, segments, Dropout.none(), program.layout)
        logits: jax.Array = model.logits(hidden, program.layout).rearrange(("batch", "position", "vocab")).array
        return logits

    jitted = jax.jit(forward)

    def run(params: Params, tokens: NDArray[Any], segments: NDArray[Any] | None = None) -> NDArray[np.float32]:
        with jax.set_mesh(program.layout.mesh):
            return np.asarray(jitted(params, tokens, segments))

    return run
