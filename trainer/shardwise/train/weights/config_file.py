"""A family's config.json: its keys as fields of `GptConfig`, and a config as its keys. It opens no file.

Every error names the model type and the key. Keys that no family has, such as those of tokenizers, are passed over.
"""

from collections.abc import Mapping
from typing import Any

from shardwise.protocol.errors import DataError
from shardwise.train.config import GptConfig
from shardwise.train.weights.family import Family, Key, says
from shardwise.train.weights.key_values import one_of, real, refused, rooted, section, squared, whole
from shardwise.train.weights.latent_keys import latent_keys, read_latent
from shardwise.train.weights.rope_keys import read_rope, rope_keys
from shardwise.train.weights.rotary_pattern_keys import read_rotary_pattern, rotary_pattern_keys
from shardwise.train.weights.tensors import Shape
from shardwise.train.weights.window_keys import read_windows, window_keys

_QUANTIZATION = "quantization_config"
# The defaults of transformers need not be tokens of a model.
NO_TOKENS: Mapping[str, Any] = {"bos_token_id": None, "eos_token_id": None}


def read_fields(family: Family, published: Mapping[str, Any], shapes: Mapping[str, Shape]) -> dict[str, Any]:
    """Return the fields of the model's config but the heads and, of rotary positions, the share of a head.

    Raises:
        DataError: a key of a model that this trainer does not compute, or one that contradicts the tensors.
    """
    _check_fixed(family, published)
    fields: dict[str, Any] = {}
    for key in family.keys:
        is_read = key.kind != "written" and says(key, fields)
        value = _value(family, key, published, shapes) if is_read else None
        if value is not None:
            fields[key.field] = value * fields[key.times] if key.times else value
    if family.has_latent:
        latent, published = read_latent(family, published, shapes)
        fields |= latent
    if not fields.get("num_dense_blocks"):
        fields.pop("dense_mlp_size", None)
    fields |= read_windows(family, published, fields["num_layers"])
    if family.rope:
        has_windows = fields.get("sliding_window") is not None
        fields |= read_rope(family, published, fields["seq_len"], has_windows=has_windows)
        fields |= read_rotary_pattern(family, published, fields["num_layers"])
    return fields


def published_config(
    family: Family, config: GptConfig, dtype: str, known: Mapping[str, Any] = NO_TOKENS
) -> dict[str, Any]:
    """Return the config.json of a model of this family, in Hugging Face's keys; those of `known` as they are."""
    rope = rope_keys(family, config)
    return {
        "architectures": [family.architecture],
        "model_type": family.name,
        **{key.name: _published(key, config) for key in family.keys},
        family.heads_key: config.num_heads,
        **{name: values[0] for name, values in family.fixed.items()},
        **family.written,
        **(latent_keys(config, rope) if family.has_latent else rope),
        **rotary_pattern_keys(family, config),
        **window_keys(family, config),
        "torch_dtype": dtype,
        **known,
    }


def _value(family: Family, key: Key, published: Mapping[str, Any], shapes: Mapping[str, Shape]) -> Any:
    """Return our value of a key, or None for what follows from other fields."""
    name = key.name
    if key.only_with is not None and published.get(name) is None:
        raise refused(family, name, "missing", "a whole number from 1")
    match key.kind:
        case "count":
            return _count(family, key, published, shapes)
        case "choice":
            return key.values[one_of(family, name, published.get(name, key.default), key.values)]
        case "flag":
            value = published.get(name, key.default)
            if not isinstance(value, bool):
                raise refused(family, name, repr(value), "true or false")
            return value
        case "cap":
            value = published.get(name, key.default)
            return None if value is None else real(family, name, value)
        case "positive" | "factor":
            value = published.get(name)
            return real(family, name, key.default if value is None else value)
        case _:
            is_root = key.kind == "root"
            value = real(family, name, published.get(name, key.default), most=None if is_root else 1)
            return squared(value) if is_root else value


def _count(family: Family, key: Key, published: Mapping[str, Any], shapes: Mapping[str, Shape]) -> int | None:
    size = None
    if key.shape is not None:
        tensor, axis = key.shape
        size = _matrix(shapes, tensor)[axis]
    elif key.field == "num_layers":
        start = family.mark.split(".")[0]
        size = len({name.split(".")[1] for name in shapes if name.startswith(f"{start}.")})
    if size is None:
        is_none = key.may_be_none and published.get(key.name) == 0
        return None if is_none else whole(family, published, key.name, key.default or 0) or None
    if whole(family, published, key.name, size) != size:
        raise DataError(
            f"config.json: {key.name} is {published[key.name]}, but the tensors have {size}; "
            "put the weights in a folder with their own config.json"
        )
    return size


def _matrix(shapes: Mapping[str, Shape], name: str) -> Shape:
    shape = shapes.get(name)
    if shape is None:
        raise DataError(f"{name}: missing; expected a matrix: get the whole file")
    if len(shape) != 2 or 0 in shape:
        raise DataError(f"{name}: given shape {shape}, expected a matrix: get the file anew")
    return shape


def _check_fixed(family: Family, published: Mapping[str, Any]) -> None:
    """Refuse a config.json of a model that this trainer does not compute."""
    quantized = published.get(_QUANTIZATION)
    if family.quantizations and quantized is not None:
        method = section(family, _QUANTIZATION, quantized).get("quant_method")
        one_of(family, f"{_QUANTIZATION}.quant_method", method, family.quantizations)
    elif quantized is not None:  # a format of the weights that this trainer does not read
        one_of(family, _QUANTIZATION, quantized, (None,))
    expected = {"model_type": (family.name,), **family.fixed}
    for name, values in expected.items():
        if name in published:
            one_of(family, name, published[name], values)


def _published(key: Key, config: GptConfig) -> Any:
    """Return their value of a field."""
    value = getattr(config, key.field)
    if key.times:
        return value // getattr(config, key.times)
    if key.kind == "root":
        return rooted(value)
    if key.kind == "positive" and value == int(value):
        return int(value)  # transformers takes a whole number only
    return next((theirs for theirs, ours in key.values.items() if ours == value), value)
