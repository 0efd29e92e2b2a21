"""The keys of rotary positions in a config.json, as they are named before and from version 5 of transformers.

    before:  rope_theta, rope_scaling {rope_type, factor, ...}, rope_local_base_freq, rotary_pct
    from 5:  rope_parameters {rope_theta, rope_type, factor, ..., partial_rotary_factor}, or one such for each kind of
             block: {full_attention: {...}, sliding_attention: {...}}

Both are read; what is written is the older form, which both versions read.
"""

from collections.abc import Mapping
from typing import Any

from shardwise.job.resolve import yarn_attention_factor
from shardwise.job.spec import RopeScaling
from shardwise.protocol.errors import DataError
from shardwise.train.config import GptConfig
from shardwise.train.rotary import BASE
from shardwise.train.weights.family import Family

# Ours by theirs, for each kind of scaling; `rope_type` and the base are beside them.
_FIELDS: Mapping[str, Mapping[str, str]] = {
    "linear": {"factor": "factor"},
    "llama3": {
        "factor": "factor",
        "original_max_position_embeddings": "original_seq_len",
        "low_freq_factor": "low_frequency_factor",
        "high_freq_factor": "high_frequency_factor",
    },
    "yarn": {
        "factor": "factor",
        "original_max_position_embeddings": "original_seq_len",
        "beta_fast": "beta_fast",
        "beta_slow": "beta_slow",
        "attention_factor": "attention_factor",
    },
}
_BESIDE = ("rope_type", "type", "rope_theta", "partial_rotary_factor")
_LOCAL_BASE = 10_000.0


def read_rope(family: Family, published: Mapping[str, Any], seq_len: int) -> dict[str, Any]:
    """Return the fields of rotary positions; `rotary_share` is how much of a head they turn.

    Raises:
        DataError: a scaling that this trainer does not compute.
    """
    stated = published.get("rope_parameters") or {}
    full, local = stated.get("full_attention", stated), stated.get("sliding_attention", {})
    theta_key, scaling_key = family.rope["theta"], family.rope["scaling"]
    scaling = published.get(scaling_key) or full
    fields = {
        "rope_theta": float(full.get("rope_theta") or published.get(theta_key) or BASE),
        "rope_scaling": _scaling(family, scaling, seq_len),
    }
    if "local" in family.rope:
        if local.get("rope_type", "default") != "default":
            raise _wrong(family, "rope_parameters.sliding_attention.rope_type", local["rope_type"], ("default",))
        theta = local.get("rope_theta") or published.get(family.rope["local"]) or _LOCAL_BASE
        fields["local_rope_theta"] = float(theta)
    if "share" in family.rope:
        share = full.get("partial_rotary_factor") or published.get(family.rope["share"]) or family.rope_share
        fields["rotary_share"] = float(share)
    return fields


def rope_keys(family: Family, config: GptConfig) -> dict[str, Any]:
    """Return the keys of a model's rotary positions."""
    if not family.rope:
        return {}
    scaling = config.rope_scaling
    written: dict[str, Any] = {
        family.rope["theta"]: config.rope_theta,
        family.rope["scaling"]: None if scaling is None else _written(scaling),
    }
    if "local" in family.rope:
        written[family.rope["local"]] = config.local_rope_theta or config.rope_theta
    if "share" in family.rope:
        share = config.rotary_dim / config.head_size
        # Their product must not fall below the whole number, which is cut off.
        exact = int(config.head_size * share) == config.rotary_dim
        written[family.rope["share"]] = share if exact else (config.rotary_dim + 0.5) / config.head_size
    return written


def _scaling(family: Family, given: Mapping[str, Any], seq_len: int) -> RopeScaling | None:
    kind = given.get("rope_type", given.get("type", "default"))
    if kind == "default":
        return None
    if kind not in _FIELDS:
        raise _wrong(family, "rope_scaling.rope_type", str(kind), ("default", *_FIELDS))
    fields = {ours: given[theirs] for theirs, ours in _FIELDS[kind].items() if given.get(theirs) is not None}
    if unknown := sorted(given.keys() - _FIELDS[kind].keys() - {*_BESIDE}):
        raise _wrong(family, f"rope_scaling.{unknown[0]}", str(given[unknown[0]]), ("no such key",))
    if "factor" not in fields:
        raise _wrong(family, "rope_scaling.factor", "missing", ("a number from 1",))
    if kind != "linear":
        fields.setdefault("original_seq_len", seq_len)
        fields["original_seq_len"] = int(fields["original_seq_len"])
    return _resolved(
        kind, {name: float(value) if name != "original_seq_len" else value for name, value in fields.items()}
    )


def _resolved(kind: Any, fields: Mapping[str, Any]) -> RopeScaling:
    scaling = RopeScaling(kind=kind, **fields)
    if kind == "yarn" and scaling.attention_factor is None:
        return scaling.model_copy(update={"attention_factor": yarn_attention_factor(scaling.factor)})
    return scaling


def _written(scaling: RopeScaling) -> dict[str, Any]:
    values = {theirs: getattr(scaling, ours) for theirs, ours in _FIELDS[scaling.kind].items()}
    return {"rope_type": scaling.kind, **values}


def _wrong(family: Family, name: str, given: str, expected: tuple[str, ...]) -> DataError:
    return DataError(
        f"config.json: {name} is {given}, expected {' or '.join(expected)} for {family.title}; a model that differs in "
        "it cannot be imported"
    )
