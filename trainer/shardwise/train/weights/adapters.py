"""Adapters as PEFT's file of them: two matrices for each published one, and adapter_config.json.

What is one product for us may be several published ones, as keys and values are: they get the same A, and each its part
of B. What is several for us may be one published one, as the queries, keys and values of a Phi are: it gets their A one
above the other, and a B that has the part of each in the columns of its own A, and zeros beside. Its rank is then as
many times ours as there are A, and so is its alpha: what PEFT multiplies by is their quotient.

A is [rank, in] and B [out, rank] for every kind of layer. Format: https://huggingface.co/docs/peft.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from shardwise.job.spec.training import Lora
from shardwise.protocol.errors import DataError
from shardwise.train.axes import SPLIT_BY_FSDP
from shardwise.train.config import GptConfig
from shardwise.train.linear import RANK
from shardwise.train.lora import factors_of
from shardwise.train.optimizer import Names
from shardwise.train.weights.family import Family
from shardwise.train.weights.joined import Joined, joined_of
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
        DataError: a model of no published family, or a mixture whose experts have adapters.

    """
    if any("experts" in names[path] for path in adapters):
        raise DataError(
            "each expert has adapters of its own, and the models that PEFT adapts hold all experts of a layer as one; "
            "export the model with them added"
        )
    family = check_exportable(config)
    adapted = [tensor for tensor in tensors(family.rows, config).values() if factors_of(tensor.path)[0] in adapters]
    modules = _modules(family, adapted)
    matrices = {name: matrix for one in modules for name, matrix in _matrices(family, one, adapters, names)}
    with replacing(path) as file:
        dtype = next(iter(matrices.values())).dtype
        writer = Writer(file, {name: matrix.shape for name, matrix in matrices.items()}, dtype)
        for name, matrix in matrices.items():
            writer.put(name, matrix)
    with replacing(path.parent / CONFIG_FILE) as file:  # last, so that it never stands without them
        file.write((json.dumps(_config(modules, names, lora), indent=2) + "\n").encode())


def _modules(family: Family, adapted: Sequence[Tensor]) -> list[Joined]:
    """Return the published tensors of weights that have adapters, most of which have one part."""
    joined = joined_of(family, adapted)
    parts = {part.name for one in joined for part in one.parts}
    return [*joined, *(Joined(name=one.name, parts=(one,)) for one in adapted if one.name not in parts)]


def _matrices(family: Family, one: Joined, adapters: Mapping[str, Array], names: Names) -> Iterator[tuple[str, Array]]:
    module = f"base_model.model.{published_name(family, one.name).removesuffix(_WEIGHT)}"
    first, then, places = {}, [], _places(one)
    for part in one.parts:
        a, b = (_ours(part, adapters[path], names[path]) for path in factors_of(part.path))
        first[part.path] = a
        before, after = (len(a) * count for count in (places[part.path], len(places) - 1 - places[part.path]))
        then.append(np.pad(b.T, ((0, 0), (before, after))))
    yield f"{module}.lora_A.weight", np.concatenate(list(first.values()))
    yield f"{module}.lora_B.weight", np.concatenate(then)


def _places(one: Joined) -> dict[str, int]:
    """Return which of the different A of a published tensor is that of each weight of ours, by its path."""
    return {path: place for place, path in enumerate(dict.fromkeys(part.path for part in one.parts))}


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


def _config(modules: Sequence[Joined], names: Names, lora: Lora) -> dict[str, Any]:
    assert lora.alpha is not None, "the job is resolved"
    counts = {".".join(one.name.removesuffix(_WEIGHT).split(".")[-2:]): len(_places(one)) for one in modules}
    several = {kind: count for kind, count in counts.items() if count > 1}
    parts = [part for one in modules for part in one.parts]
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": None,
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        # By the ends of names.
        "rank_pattern": {kind: lora.rank * count for kind, count in several.items()},
        "alpha_pattern": {kind: lora.alpha * count for kind, count in several.items()},
        "lora_dropout": 0.0,
        "bias": "none",
        # Whether matrices are [in, out], as GPT-2's are.
        "fan_in_fan_out": any(
            part.groups[0] == ("embed",) and "embed" in names[factors_of(part.path)[0]] for part in parts
        ),
        "target_modules": sorted(counts),
        "inference_mode": True,
    }
