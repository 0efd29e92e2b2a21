"""What model a set of published tensors is: the family by names, sizes by shapes, the rest by keys of config.json.

`config_file.published_config` is the way back. It opens no file.
"""

from collections.abc import Mapping
from typing import Any

from shardwise.job.spec import RopeScaling
from shardwise.protocol.errors import DataError
from shardwise.protocol.text import any_of
from shardwise.train.config import GptConfig
from shardwise.train.weights.config_file import read_fields
from shardwise.train.weights.families import FAMILIES
from shardwise.train.weights.family import Family, Same
from shardwise.train.weights.key_values import refused, whole
from shardwise.train.weights.tensors import Shape

_SHARED_HEADS = "num_key_value_heads"


def recognise(shapes: Mapping[str, Shape], published: Mapping[str, Any] | None, heads: int | None) -> GptConfig:
    """Return the config of a model with these tensors.

    Args:
        shapes: by name, without the family's prefix.
        published: the config.json beside the file, if there is one.
        heads: the number of heads, if neither config.json nor a published size gives it.

    Raises:
        DataError: an unknown family, a size that nothing gives, a config.json of another model.
    """
    published = published or {}
    family = recognise_family(shapes, published)
    fields = {name: value for name, value in family.choices.items() if not isinstance(value, Same)}
    fields |= read_fields(family, published, shapes)
    fields["num_heads"] = _heads(family, fields["embed_size"], fields.get("head_size"), published, heads)
    _check_shared(family, fields["num_heads"], fields.get("num_kv_heads"))
    head_size = fields.get("head_size") or fields["embed_size"] // fields["num_heads"]
    if fields["position"] == "rotary":
        fields.setdefault("rotary_dim", int(head_size * fields.pop("rotary_share", 1.0)))
        _check_rotary_dim(family, fields["rotary_dim"], head_size)
        _check_factors(family, fields.get("rope_scaling"), fields["rotary_dim"] // 2)
    return GptConfig(**fields)


def recognise_family(shapes: Mapping[str, Shape], published: Mapping[str, Any]) -> Family:
    """Return the family that these names, and where several share them the config.json, belong to."""
    given = published.get("model_type")
    marked = [family for family in FAMILIES if family.mark in shapes]
    named = [family for family in marked if family.name == given]
    if named or len(marked) == 1:
        return (named or marked)[0]
    known = [family.name for family in marked or FAMILIES]
    if marked and given is None:
        titles = any_of(family.title for family in marked)
        raise DataError(
            f"the tensors may be those of {titles}: put the model's config.json beside the file; its model_type tells"
        )
    if given is not None and given not in known:
        raise DataError(f"config.json: model_type is {given}, expected {any_of(known)}: no other can be imported")
    marks = " or ".join(f"{family.mark} ({family.title})" for family in FAMILIES)
    found = ", ".join(sorted(shapes)[:5]) or "no tensor"
    raise DataError(f"the weights are of no known family: expected a tensor {marks}, found {found} ...")


def _heads(
    family: Family, embed_size: int, head_size: int | None, published: Mapping[str, Any], given: int | None
) -> int:
    stated = whole(family, published, family.heads_key, 0) or given
    if given is not None and given != stated:
        raise DataError(f"heads: given {given}, but config.json says {stated}; leave --heads out")
    heads = stated or family.head_counts.get(embed_size, 0)
    if not heads:
        raise DataError(
            f"heads: no tensor tells their number, no config.json beside the file has {family.heads_key}, and "
            f"{family.title} was not published with {embed_size} features; give --heads"
        )
    if heads < 0 or (head_size is None and embed_size % heads):
        raise DataError(f"heads: given {heads}, expected a divisor of the model's {embed_size} features; check --heads")
    return heads


def _check_shared(family: Family, heads: int, kv_heads: int | None) -> None:
    if kv_heads is not None and heads % kv_heads:
        raise refused(family, _SHARED_HEADS, kv_heads, f"a divisor of its {heads} heads")


def _check_factors(family: Family, scaling: RopeScaling | None, num_pairs: int) -> None:
    """Require LongRoPE's factors to be one for each pair that positions turn."""
    if scaling is None or scaling.kind != "longrope":
        return
    for name, factors in (("short_factor", scaling.short_factors), ("long_factor", scaling.long_factors)):
        if len(factors) != num_pairs:
            raise refused(family, f"rope_scaling.{name}", f"{len(factors)} numbers", f"{num_pairs} numbers")


def _check_rotary_dim(family: Family, rotary_dim: int, head_size: int) -> None:
    if rotary_dim % 2 or not 0 < rotary_dim <= head_size:
        name = family.rope.get("share", "head_dim") if family.rope else "rotary_dim"
        raise DataError(
            f"rotary_dim: {rotary_dim}, expected an even number up to the {head_size} features of a head; "
            f"put the model's config.json with its {name} beside the file"
        )
