"""Random adapters beside every recorded model, written for PEFT and added to the model by us: `make test-hf`.

python -m tests.train.weights.hf.adapters_here FOLDER, in which `exports` has written the models
"""

import sys
import zlib
from pathlib import Path

import equinox as eqx
import jax
import numpy as np

from shardwise.job.spec.training import Lora
from shardwise.train.config import GptConfig
from shardwise.train.layout import axis_names, flatten
from shardwise.train.lora import initial, is_adapter, merged
from shardwise.train.model import Gpt
from shardwise.train.weights import read, write, write_adapters


def main() -> None:
    """Write NAME/adapters and NAME/merged below FOLDER for every model in FOLDER/published."""
    for published in sorted((Path(sys.argv[1]) / "published").iterdir()):
        out = Path(sys.argv[1]) / published.name
        for folder in ("adapters", "merged"):
            (out / folder).mkdir()
        config, parameters = read(published)
        lora = Lora(rank=3, alpha=6.0, mlp=not config.num_experts)
        template = with_adapters(config, lora)
        rng = np.random.default_rng(zlib.crc32(published.name.encode()))
        adapters = {
            path: rng.normal(0, 0.2, factor.shape).astype(np.float32)
            for path, factor in flatten(template).items()
            if is_adapter(path)
        }
        names = axis_names(template)
        weights = {path: stored[tuple(slice(None) for _ in stored.shape)] for path, stored in parameters}
        added = {path: np.asarray(x) for path, x in merged(weights, adapters, names, lora).items()}
        write(out / "merged" / "model.safetensors", config, added.items())
        write_adapters(out / "adapters" / "adapter_model.safetensors", config, adapters, names, lora)


def with_adapters(config: GptConfig, lora: Lora) -> Gpt:
    """Return the abstract model with its adapters."""
    model: Gpt = eqx.filter_eval_shape(initial, config, lora, key=jax.eval_shape(jax.random.key, 0))
    return model


if __name__ == "__main__":
    main()
