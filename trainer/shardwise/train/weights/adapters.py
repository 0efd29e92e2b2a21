"""Adapters as PEFT's file of them: two matrices for each published one, and adapter_config.json.

What is one product for us may be several published ones, as keys and values are: they get the same A, and each its part
of B. A is [rank, in] and B [out, rank] for every kind of layer. Format: https://huggingface.co/docs/peft.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from shardwise.job.spec.training import Lora
from shardwise.protocol.errors import DataError
from shardwise.train.axes import SPLIT_BY_FSDP
from shardwise.train.config import GptConfig
from shardwise.train.lora import RANK, factors_of
from shardwise.train.optimizer import Names
from shardwise.train.weights.family import Family
from shardwise.train.weights.safetensors_file import Writer, replacing
from shardwise.train.weights.tensors import Array, Tensor, tensors
from shardwise.train.weights.writing import check_exportable, published_name

CONFIG_FILE = "adapter_config.json"
_WEIGHT = ".weight"


def write_adapters(path: Path, config: GptConfig, adapters: Mapping[str, Array], names: Names, lora: Lora) -> None:
    """Write all factors of a model's adapters as one safetensors file, and their config into the same folder.

    Args:
        path: the file, of the name that PEFT looks for; an older one is replaced.
        config: of the model without adapters.
        adapters: every factor by our path, of one dtype, which is the file's.
        names: the axis names of the model with adapters, by path.
        lora: what the adapters are.

    Raises:
        DataError: a model of no published family, or of one whose files join what has adapters of its own here.

    """
    family = check_exportable(config)
    if family.joined:
        raise DataError(
            f"{family.title}: its files hold several projections as one ({', '.join(family.joined)}), which have "
            "adapters of their own each; export the model with them added"
        )
    matrices = dict(_matrices(family, config, adapters, names))
    with replacing(path) as file:
        dtype = next(iter(matrices.values())).dtype
        writer = Writer(file, {name: matrix.shape for name, matrix in matrices.items()}, dtype)
        for name, matrix in matrices.items():
            writer.put(name, matrix)
    with replacing(path.parent / CONFIG_FILE) as file:  # last, so that it never stands without them
        file.write((json.dumps(_config(_adapted(family, config, adapters), names, lora), indent=2) + "\n").encode())


def _matrices(
    family: Family, config: GptConfig, adapters: Mapping[str, Array], names: Names
) -> Iterator[tuple[str, Array]]:
    for tensor in _adapted(family, config, adapters):
        module = f"base_model.model.{published_name(family, tensor.name).removesuffix(_WEIGHT)}"
        a, b = (_ours(tensor, adapters[path], names[path]) for path in factors_of(tensor.path))
        yield f"{module}.lora_A.weight", a
        yield f"{module}.lora_B.weight", b.T


def _adapted(family: Family, config: GptConfig, adapters: Mapping[str, Array]) -> list[Tensor]:
    """Return the published tensors of weights that have adapters."""
    return [tensor for tensor in tensors(family.rows, config).values() if factors_of(tensor.path)[0] in adapters]


def _ours(tensor: Tensor, factor: Array, names: tuple[str, ...]) -> Array:
    """Return a factor of one published matrix as [rank, in or out], out of one of all layers with these axes."""
    side = next(axis for axis in SPLIT_BY_FSDP if axis in tensor.names)
    if side in names:
        of_layer: Array = factor[tensor.layer].transpose()
        return of_layer
    # It has the axes of the weight, but for the rank in the place of that side, and is taken apart as the weight is.
    as_weight = factor.transpose([names.index(RANK if name == side else name) for name in tensor.names])
    matrix = replace(tensor, sizes={**tensor.sizes, side: factor.shape[names.index(RANK)]}).published(as_weight)
    return matrix if tensor.groups[0] == (side,) else matrix.transpose()


def _config(adapted: list[Tensor], names: Names, lora: Lora) -> dict[str, Any]:
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": None,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "bias": "none",
        # Whether matrices are [in, out], as GPT-2's are.
        "fan_in_fan_out": any(
            tensor.groups[0] == ("embed",) and "embed" in names[factors_of(tensor.path)[0]] for tensor in adapted
        ),
        "target_modules": sorted({".".join(tensor.name.removesuffix(_WEIGHT).split(".")[-2:]) for tensor in adapted}),
        "inference_mode": True,
    }
