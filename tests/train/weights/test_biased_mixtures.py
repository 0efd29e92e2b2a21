"""Published mixtures whose choice has a bias, or groups: what of their files is not read, and how they are written."""

import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.train.conftest import SMALL
from tests.train.weights.test_transformers import write_model

from shardwise.job.load import loads
from shardwise.job.resolve import resolve
from shardwise.protocol.errors import DataError
from shardwise.train.balance import PICK_BIAS
from shardwise.train.config import GptConfig
from shardwise.train.weights import model_section, read, write
from shardwise.train.weights.config_file import published_config
from shardwise.train.weights.families import family_of

FURTHER = {
    "model.layers.3.eh_proj.weight": (48, 96),
    "model.layers.3.mlp.experts.0.up_proj.weight": (40, 48),
    "model.layers.3.self_attn.o_proj.weight": (48, 48),
    "model.layers.3.shared_head.norm.weight": (48,),
}


@pytest.mark.parametrize("name", ["glm4-moe", "moonlight", "deepseek-v3"])
def test_a_layer_that_predicts_further_tokens_is_not_read(name: str, tmp_path: Path) -> None:
    """GLM's and DeepSeek's files have one behind the last; where config.json does not tell of it, it is refused.

    A person is told that it is left out, and an export says that it has none.
    """
    weights = write_model(name, tmp_path / "model")
    file, config_file = (tmp_path / "model" / name for name in ("model.safetensors", "config.json"))
    expected = dict(read(tmp_path / "model")[1])
    save_file({**weights, **{name: np.ones(shape, np.float32) for name, shape in FURTHER.items()}}, file)
    told: list[str] = []
    config, parameters = read(tmp_path / "model", tell=told.append)
    found = dict(parameters)

    assert config.num_layers == 3
    assert {path: stored.shape for path, stored in found.items()} == {p: stored.shape for p, stored in expected.items()}
    words = "is left out: it predicts further tokens (num_nextn_predict_layers in config.json)"
    assert told == [f"what is behind layer 2 {words}"]
    family = family_of(config)
    assert family is not None
    assert published_config(family, config, "float32")["num_nextn_predict_layers"] == 0
    described = json.loads(config_file.read_text())
    assert described["num_nextn_predict_layers"] == 1
    for number in (None, 0):
        config_file.write_text(json.dumps({**described, "num_nextn_predict_layers": number}))
        with pytest.raises(DataError, match="num_hidden_layers is 3, but the tensors have 4"):
            read(tmp_path / "model")


def test_biases_of_the_choice_are_written_in_float32(tmp_path: Path) -> None:
    """As they are published, whatever the format of the rest: bfloat16 has not the digits of many small steps."""
    weights = write_model("dots1", tmp_path / "model")
    config, parameters = read(tmp_path / "model")
    whole = [(path, stored[tuple(slice(None) for _ in stored.shape)]) for path, stored in parameters]
    rounded = [(path, array if path == PICK_BIAS else array.astype(jnp.bfloat16)) for path, array in whole]
    rounded.sort(key=lambda pair: pair[0] != PICK_BIAS)  # it may come first
    (tmp_path / "out").mkdir()
    write(tmp_path / "out" / "model.safetensors", config, rounded)

    written = load_file(tmp_path / "out" / "model.safetensors")
    name = "model.layers.1.mlp.gate.e_score_correction_bias"
    assert written[name].tobytes() == weights[name].tobytes()
    assert {str(array.dtype) for name, array in written.items() if "bias" not in name} == {"bfloat16"}


@pytest.mark.parametrize("name", ["mixtral", "qwen2-moe", "dots1-groups", "dots1", "glm4-moe", "deepseek-v2-groups"])
def test_a_job_may_have_the_section_of_an_import(name: str, tmp_path: Path) -> None:
    """It passes every check of a job file, and builds the model that was read."""
    write_model(name, tmp_path / "model")
    config, _ = read(tmp_path / "model")
    section = model_section(config)
    section["experts"]["balance"] = 0
    words = ("training.data.tokenizer=t.json", "training.mesh.fsdp=false", f"training.model={json.dumps(section)}")
    job = resolve(loads(SMALL, [*words]))

    built = GptConfig.of(job.spec.training, tokenizer_size=config.vocab_size, platform="cpu")
    assert {field: getattr(built, field) for field in vars(config)} == vars(config)
