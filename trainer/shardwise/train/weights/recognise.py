"""What model a set of published tensors is: the family from names, sizes from shapes, the rest from a config.json.

`published_config` is the way back. It opens no file.
"""

from collections.abc import Mapping
from typing import Any

from shardwise.protocol.errors import DataError
from shardwise.train.config import GptConfig
from shardwise.train.weights.families import FAMILIES, Family, Shape

_GELUS = ("gelu_new", "gelu_pytorch_tanh")  # both are the tanh form
_GPT2_WIDTHS = (768, 1024, 1280, 1600)
_GPT2_HEAD_SIZE = 64
_GPTJ_WIDTH = 4096
_GPTJ_HEADS = 16
_GPTJ_ROTARY_DIM = 64
_GPTJ_POSITIONS = 2048


def recognise(shapes: Mapping[str, Shape], published: Mapping[str, Any] | None, heads: int | None) -> GptConfig:
    """Return the config of a model with these tensors.

    Args:
        shapes: by name, without the "transformer." prefix.
        published: the config.json beside the file, if there is one.
        heads: the number of heads, if neither config.json nor a published size gives it.

    Raises:
        DataError: an unknown family, a size that nothing gives, a config.json of another model.
    """
    family = recognise_family(shapes)
    published = published or {}
    _check_published(family, published)
    sizes = _gpt2_sizes(shapes) if family.name == "gpt2" else _gptj_sizes(shapes, published)
    for key, field in _SIZE_KEYS.items():
        if _number(published, key, sizes[field]) != sizes[field]:
            raise DataError(
                f"config.json: {key} is {published[key]}, but the tensors have {sizes[field]}; "
                "put the weights in a folder with their own config.json"
            )
    num_heads = _heads(family, sizes["embed_size"], published, heads)
    rotary_dim = _rotary_dim(published, sizes["embed_size"] // num_heads) if family.name == "gptj" else 0
    chosen: dict[str, Any] = {
        "scale_by_inverse_layer": _flag(published, "scale_attn_by_inverse_layer_idx", default=False),
        **family.choices,
        **sizes,
    }
    return GptConfig(
        **chosen,
        num_heads=num_heads,
        rotary_dim=rotary_dim,
        norm_epsilon=_real(published, "layer_norm_epsilon", 1e-5),
        init_std=_real(published, "initializer_range", 0.02),
    )


def recognise_family(shapes: Mapping[str, Shape]) -> Family:
    """Return the family that these names belong to."""
    for family in FAMILIES:
        if family.mark in shapes:
            return family
    marks = " or ".join(f"{family.mark} ({family.title})" for family in FAMILIES)
    found = ", ".join(sorted(shapes)[:5]) or "no tensor"
    raise DataError(f"the weights are of no known family: expected a tensor {marks}, found {found} ...")


def published_config(family: Family, config: GptConfig, dtype: str) -> dict[str, Any]:
    """Return the config.json of a model, in Hugging Face's fields."""
    common = {
        "model_type": family.name,
        "vocab_size": config.vocab_size,
        "n_positions": config.seq_len,
        "n_embd": config.embed_size,
        "n_layer": config.num_layers,
        "n_head": config.num_heads,
        "n_inner": config.mlp_size,
        "activation_function": _GELUS[0],
        "layer_norm_epsilon": config.norm_epsilon,
        "initializer_range": config.init_std,
        "embd_pdrop": config.embed_dropout,
        "resid_pdrop": config.residual_dropout,
        "attn_pdrop": 0.0,
        "tie_word_embeddings": config.tied_head,
        "torch_dtype": dtype,
        "bos_token_id": None,  # its default, 50256, need not be a token of this model
        "eos_token_id": None,
    }
    if family.name == "gptj":
        return {"architectures": ["GPTJForCausalLM"], **common, "rotary_dim": config.rotary_dim}
    return {
        "architectures": ["GPT2LMHeadModel"],
        **common,
        "scale_attn_weights": True,
        "scale_attn_by_inverse_layer_idx": config.scale_by_inverse_layer,
    }


_SIZE_KEYS = {
    "vocab_size": "vocab_size",
    "n_positions": "seq_len",
    "n_embd": "embed_size",
    "n_layer": "num_layers",
    "n_inner": "mlp_size",
}


def _gpt2_sizes(shapes: Mapping[str, Shape]) -> dict[str, int]:
    vocab_size, embed_size = _matrix(shapes, "wte.weight")
    return {
        "num_layers": _num_layers(shapes),
        "embed_size": embed_size,
        "mlp_size": _matrix(shapes, "h.0.mlp.c_fc.weight")[1],
        "seq_len": _matrix(shapes, "wpe.weight")[0],
        "vocab_size": vocab_size,
    }


def _gptj_sizes(shapes: Mapping[str, Shape], published: Mapping[str, Any]) -> dict[str, int]:
    vocab_size, embed_size = _matrix(shapes, "wte.weight")
    return {
        "num_layers": _num_layers(shapes),
        "embed_size": embed_size,
        "mlp_size": _matrix(shapes, "h.0.mlp.fc_in.weight")[0],
        "seq_len": _number(published, "n_positions", _GPTJ_POSITIONS),  # no tensor has this size
        "vocab_size": vocab_size,
    }


def _matrix(shapes: Mapping[str, Shape], name: str) -> Shape:
    shape = shapes.get(name)
    if shape is None:
        raise DataError(f"{name}: missing; expected a matrix: get the whole file")
    if len(shape) != 2 or 0 in shape:
        raise DataError(f"{name}: given shape {shape}, expected a matrix: get the file anew")
    return shape


def _num_layers(shapes: Mapping[str, Shape]) -> int:
    return len({name.split(".")[1] for name in shapes if name.startswith("h.")})


def _heads(family: Family, embed_size: int, published: Mapping[str, Any], given: int | None) -> int:
    stated = _number(published, "n_head", 0) or given
    if given is not None and given != stated:
        raise DataError(f"heads: given {given}, but config.json says {stated}; leave --heads out")
    heads = stated or _published_heads(family, embed_size)
    if not heads:
        raise DataError(
            f"heads: no tensor tells their number, there is no config.json beside the file, and {family.title} was not "
            f"published with {embed_size} features; give --heads"
        )
    if heads < 0 or embed_size % heads:
        raise DataError(f"heads: given {heads}, expected a divisor of the model's {embed_size} features; check --heads")
    return heads


def _published_heads(family: Family, embed_size: int) -> int:
    if family.name == "gptj":
        return _GPTJ_HEADS if embed_size == _GPTJ_WIDTH else 0
    return embed_size // _GPT2_HEAD_SIZE if embed_size in _GPT2_WIDTHS else 0


def _rotary_dim(published: Mapping[str, Any], head_size: int) -> int:
    rotary_dim = _number(published, "rotary_dim", _GPTJ_ROTARY_DIM)
    if rotary_dim % 2 or not 0 < rotary_dim <= head_size:
        raise DataError(
            f"rotary_dim: {rotary_dim}, expected an even number up to the {head_size} features of a head; "
            "put the model's config.json with its rotary_dim beside the file"
        )
    return rotary_dim


def _check_published(family: Family, published: Mapping[str, Any]) -> None:
    """Refuse a config.json of a model that this trainer does not compute."""
    expected = {
        "model_type": (family.name,),
        "activation_function": _GELUS,
        "scale_attn_weights": (True,),
        "tie_word_embeddings": (family.choices["tied_head"],),
    }
    for key, values in expected.items():
        if key in published and published[key] not in values:
            allowed = " or ".join(map(str, values))
            raise DataError(
                f"config.json: {key} is {published[key]}, expected {allowed} for these tensors, which are "
                f"{family.title}'s; a model that differs in it cannot be imported"
            )


def _number(published: Mapping[str, Any], key: str, default: int) -> int:
    value = published.get(key)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise DataError(f"config.json: {key} is {value!r}, expected a whole number from 1; correct the file")
    return value


def _real(published: Mapping[str, Any], key: str, default: float) -> float:
    value = published.get(key, default)
    if not isinstance(value, int | float) or not 0 < value <= 1:
        raise DataError(f"config.json: {key} is {value!r}, expected a number above 0, at most 1; correct the file")
    return float(value)


def _flag(published: Mapping[str, Any], key: str, *, default: bool) -> bool:
    value = published.get(key, default)
    if not isinstance(value, bool):
        raise DataError(f"config.json: {key} is {value!r}, expected true or false; correct the file")
    return value
