"""Our parameters as a published safetensors file with the config.json that Hugging Face's loaders want beside it.

The writer needs one parameter as it is given and one copy of one published tensor (a layer's matrix, or the token
table) at a time; the format allows that, since every tensor's place is known from the config before the first one is
written.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from shardwise.protocol.errors import DataError
from shardwise.train.balance import PICK_BIAS
from shardwise.train.config import GptConfig
from shardwise.train.weights.config_file import NO_TOKENS, published_config
from shardwise.train.weights.families import FAMILIES, family_of
from shardwise.train.weights.family import Family, differences
from shardwise.train.weights.fit import MODEL_KEYS, free_keys
from shardwise.train.weights.joined import Joined, joined_of
from shardwise.train.weights.reading import CONFIG_FILE
from shardwise.train.weights.safetensors_file import DTYPES, Writer, replacing
from shardwise.train.weights.stacked import place_of, published_shapes
from shardwise.train.weights.tensors import Array, Tensor, tensors

_MOST_NAMED = 3


def write(
    path: Path,
    config: GptConfig,
    parameters: Iterable[tuple[str, Array]],
    known: Mapping[str, Any] = NO_TOKENS,
) -> None:
    """Write a model as one safetensors file, and its config.json into the same folder; each whole or not at all.

    Args:
        path: the file; an older one is replaced.
        config: of the model.
        parameters: every parameter by path, in any order, all of one dtype (float32, float16 or bfloat16), which is
            the file's, but for the biases of the choice of experts, which are float32.
        known: keys of config.json that do not follow from the config, such as the tokens that begin and end a text.

    Raises:
        DataError: a model of no published family, a folder whose config.json is another model's.

    """
    family = check_exportable(config)
    waiting = tensors(family.rows, config)
    iterator = iter(parameters)
    first = [next(iterator)]
    if first[0][0] == PICK_BIAS:
        first += [next(iterator)]
    dtype = first[-1][1].dtype
    if dtype not in DTYPES.values():
        raise DataError(f"the parameters are {dtype}, expected float32, float16 or bfloat16")
    published = published_config(family, config, str(dtype), known)
    _refuse_other_model(path.parent / CONFIG_FILE, published, free=_free_keys(family, config) | known.keys())
    with replacing(path) as file:
        joined = {part.name: one for one in joined_of(family, waiting.values()) for part in one.parts}
        apart = {name: tensor for name, tensor in waiting.items() if name not in joined}
        named = {**published_shapes(family, apart), **{one.name: one.shape for one in joined.values()}}
        shapes = {published_name(family, name): shape for name, shape in named.items()}
        biases = [published_name(family, tensor.name) for tensor in waiting.values() if tensor.path == PICK_BIAS]
        writer = Writer(file, shapes, dtype, in_float32=biases)
        for parameter, array in chain(first, iterator):
            for tensor in _of(parameter, waiting):
                _put(writer, family, tensor, tensor.published(array), joined.get(tensor.name))
                del waiting[tensor.name]
        assert not waiting, sorted(waiting)
    with replacing(path.parent / CONFIG_FILE) as file:  # last, so that it never stands without its weights
        file.write((json.dumps(published, indent=2) + "\n").encode())


def check_exportable(config: GptConfig) -> Family:
    """Return the published family of a model; DataError naming the fields that make it none of the nearest."""
    family = family_of(config)
    if family is not None:
        return family
    reasons = [
        f"not {family.title}: "
        + ", ".join(f"{MODEL_KEYS[field]} is {getattr(config, field)}, not {value}" for field, value in wrong.items())
        for family, wrong in sorted(
            ((family, differences(family, config)) for family in FAMILIES), key=lambda pair: len(pair[1])
        )[:_MOST_NAMED]
    ]
    raise DataError("\n  ".join(["no published format holds this model; its checkpoints do:", *reasons]))


def published_name(family: Family, name: str) -> str:
    """Return the name of a tensor with the family's prefix, which all have but the head."""
    return name if name.split(".", maxsplit=1)[0] == family.head.split(".")[0] else family.prefix + name


def _put(writer: Writer, family: Family, tensor: Tensor, array: Array, joined: Joined | None) -> None:
    place = place_of(family, tensor.name)
    if joined is not None:
        writer.put_rows(published_name(family, joined.name), joined.first_row(tensor.name), array)
    elif place is None:
        writer.put(published_name(family, tensor.name), array)
    else:
        name = published_name(family, place.name)
        writer.put_columns(name, place.expert, array, part=place.part, parts=place.parts)


def _of(path: str, waiting: Mapping[str, Tensor]) -> list[Tensor]:
    found = [tensor for tensor in waiting.values() if tensor.path == path]
    assert found, path
    return found


def _free_keys(family: Family, config: GptConfig) -> frozenset[str]:
    """Return the keys of config.json that may differ between exports of one model."""
    fields = {field for field, key in MODEL_KEYS.items() if key not in free_keys(config)}
    names = {key.name for key in family.keys if key.field not in fields}
    return frozenset({*names, *family.written, "torch_dtype"})


def _refuse_other_model(path: Path, published: Mapping[str, Any], *, free: Collection[str]) -> None:
    """Raise DataError for a config.json of another model; another release may have known more keys, or fewer."""
    if not path.exists():
        return
    try:
        there: Any = json.loads(path.read_bytes())
    except ValueError:
        there = None
    shared = [key for key in published if key not in free and isinstance(there, dict) and key in there]
    wrong = [f"{key} is {there[key]!r}, not {published[key]!r}" for key in shared if there[key] != published[key]]
    if wrong or not shared:
        raise DataError(
            f"{path}: describes another model ({', '.join(wrong[:_MOST_NAMED]) or 'nothing of this one'}); "
            "export into a folder of its own"
        )
