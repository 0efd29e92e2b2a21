"""The keys of rotary positions in a config.json, as they are named before and from version 5 of transformers.

    before:  rope_theta, rope_scaling {rope_type, factor, ...}, rope_local_base_freq, rotary_pct
    from 5:  rope_parameters {rope_theta, rope_type, factor, ..., partial_rotary_factor}, or one such for each kind of
             block: {full_attention: {...}, sliding_attention: {...}}

Both are read, and where both are there, the inner key counts; what is written is the older form, which both versions
read, and of models whose kinds of blocks have no other keys the newer one too.
"""

from collections.abc import Mapping
from typing import Any

from shardwise.job.resolve import attention_factor
from shardwise.job.spec import RopeScaling
from shardwise.train.config import GptConfig
from shardwise.train.weights.family import Family
from shardwise.train.weights.key_values import one_of, real, refused, section, whole

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
    "longrope": {
        "factor": "factor",
        "original_max_position_embeddings": "original_seq_len",
        "attention_factor": "attention_factor",
        "short_factor": "short_factors",
        "long_factor": "long_factors",
    },
}
_SHARE, _ORIGINAL = "partial_rotary_factor", "original_max_position_embeddings"
_NEEDED: Mapping[str, tuple[str, ...]] = {
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
    "longrope": ("short_factor", "long_factor", _ORIGINAL),
}
_LISTS = ("short_factor", "long_factor")
_TRUNCATE = "truncate"
_UNSCALED = {"rope_type": "default"}
_BESIDE = ("rope_type", "type", "rope_theta", _SHARE, _TRUNCATE)
_FULL, _LOCAL = "full_attention", "sliding_attention"


def read_rope(family: Family, published: Mapping[str, Any], seq_len: int, *, has_windows: bool) -> dict[str, Any]:
    """Return the fields of rotary positions; `rotary_share` is how much of a head they turn.

    Raises:
        DataError: a scaling that this trainer does not compute.
    """
    theta_key, scaling_key = family.rope["theta"], family.rope["scaling"]
    newer = section(family, "rope_parameters", published.get("rope_parameters"))
    older = section(family, scaling_key, published.get(scaling_key))
    full = {**section(family, _FULL, newer.get(_FULL, {} if older else newer)), **older} or dict(family.usual_scaling)
    stated = full.get("rope_theta", published.get(theta_key))
    theta = family.rope_theta if stated is None else real(family, theta_key, stated)
    fields = {
        "rope_theta": theta,
        "rope_scaling": _scaling(family, {_ORIGINAL: published.get(_ORIGINAL), **full}, seq_len),
    }
    if family.nests_rope:
        _check_nested(family, newer, theta, has_windows=has_windows)
    if "local" in family.rope and has_windows:
        local = _local_theta(family, published, newer)
        # What is also the base of the other blocks is no base of their own, unless those are stretched.
        if local != theta or fields["rope_scaling"] is not None:
            fields["local_rope_theta"] = local
    share_key = family.rope.get("share", _SHARE)
    share = full.get(_SHARE, published.get(share_key))
    share = family.rope_share if share is None else real(family, share_key, share, most=1)
    if "share" not in family.rope:
        one_of(family, share_key, share, (1,))
    return {**fields, "rotary_share": share}


def rope_keys(family: Family, config: GptConfig) -> dict[str, Any]:
    """Return the keys of a model's rotary positions."""
    if not family.rope:
        return {}
    scaling = config.rope_scaling
    written: dict[str, Any] = {
        family.rope["theta"]: config.rope_theta,
        family.rope["scaling"]: _written(scaling, config.seq_len) if scaling else _unscaled(family),
    }
    if scaling and scaling.kind == "longrope":
        written[_ORIGINAL] = scaling.original_seq_len
    local = config.local_rope_theta or config.rope_theta
    if family.nests_rope:
        full = {"rope_type": "default", **(written[family.rope["scaling"]] or {}), "rope_theta": config.rope_theta}
        written["rope_parameters"] = {_FULL: full, _LOCAL: {"rope_type": "default", "rope_theta": local}}
    elif "local" in family.rope:
        written[family.rope["local"]] = local
    if "share" in family.rope:
        share = config.rotary_dim / config.head_size
        # Their product must not fall below the whole number, which is cut off.
        exact = int(config.head_size * share) == config.rotary_dim
        written[family.rope["share"]] = share if exact else (config.rotary_dim + 0.5) / config.head_size
    return written


def _local_theta(family: Family, published: Mapping[str, Any], newer: Mapping[str, Any]) -> float:
    local = section(family, _LOCAL, newer.get(_LOCAL))
    one_of(family, f"rope_parameters.{_LOCAL}.rope_type", local.get("rope_type", "default"), ("default",))
    name = family.rope["local"]
    theta = local.get("rope_theta", published.get(name))
    return family.local_rope_theta if theta is None else real(family, name, theta)


def _check_nested(family: Family, newer: Mapping[str, Any], theta: float, *, has_windows: bool) -> None:
    """Refuse what transformers 4 and 5 read differently, or neither as it is written."""
    if newer and not newer.keys() & {_FULL, _LOCAL}:
        raise refused(family, "rope_parameters", "one object", f"{_FULL} and {_LOCAL} in it")
    if not newer and has_windows and theta != family.local_rope_theta:
        expected = f"{family.local_rope_theta:g}, or rope_parameters with {_FULL} and {_LOCAL},"
        raise refused(family, family.rope["theta"], theta, expected)


def _scaling(family: Family, given: Mapping[str, Any], seq_len: int) -> RopeScaling | None:
    kind = given.get("rope_type", given.get("type", "default"))
    if one_of(family, "rope_scaling.rope_type", kind, ("default", *family.stretches)) == "default":
        return None
    known = _FIELDS[kind]
    if unknown := sorted(given.keys() - known.keys() - {*_BESIDE, _ORIGINAL}):
        raise refused(family, f"rope_scaling.{unknown[0]}", repr(given[unknown[0]]), "no such key")
    truncate = given.get(_TRUNCATE, True)
    if not isinstance(truncate, bool | None) or (kind != "yarn" and truncate is not True):
        raise refused(family, f"rope_scaling.{_TRUNCATE}", repr(truncate), "true" + " or false" * (kind == "yarn"))
    stated = {theirs: given[theirs] for theirs in known if given.get(theirs) is not None}
    if missing := [theirs for theirs in _NEEDED[kind] if theirs not in stated]:
        raise refused(family, f"rope_scaling.{missing[0]}", "missing", "a number")
    fields: dict[str, Any] = {
        known[theirs]: real(family, f"rope_scaling.{theirs}", value, least=1.0 if theirs == "factor" else 0.0, most=1e6)
        for theirs, value in stated.items()
        if theirs not in (_ORIGINAL, *_LISTS)
    }
    if _ORIGINAL in known:
        fields[known[_ORIGINAL]] = whole(family, stated, _ORIGINAL, seq_len)
    if kind == "yarn":
        fields["truncate"] = bool(truncate)  # null is false for transformers
    if kind == "longrope":
        fields |= {known[name]: _numbers(family, f"rope_scaling.{name}", given[name]) for name in _LISTS}
        fields.setdefault("factor", max(1.0, seq_len / fields["original_seq_len"]))
    scaling = RopeScaling(kind=kind, **fields)
    return scaling if scaling.attention_factor else _with_gain(scaling)


def _numbers(family: Family, name: str, values: Any) -> tuple[float, ...]:
    if not isinstance(values, list):
        raise refused(family, name, repr(values), "a list of numbers")
    return tuple(real(family, name, value, most=1e6) for value in values)


def _with_gain(scaling: RopeScaling) -> RopeScaling:
    return scaling.model_copy(update={"attention_factor": attention_factor(scaling)})


def _unscaled(family: Family) -> dict[str, Any] | None:
    return dict(_UNSCALED) if family.usual_scaling else None


def _written(scaling: RopeScaling, seq_len: int) -> dict[str, Any]:
    found = {theirs: getattr(scaling, ours) for theirs, ours in _FIELDS[scaling.kind].items()}
    values = {theirs: list(value) if theirs in _LISTS else value for theirs, value in found.items()}
    if _is_of_three_keys(scaling, seq_len):
        return {"type": scaling.kind, **{theirs: values[theirs] for theirs in _LISTS}}
    return {"rope_type": scaling.kind, **values, **({} if scaling.truncate else {_TRUNCATE: False})}


def _is_of_three_keys(scaling: RopeScaling, seq_len: int) -> bool:
    """Return whether the rest of LongRoPE follows from the positions; transformers 4 allows these keys alone."""
    follows = scaling.kind == "longrope" and scaling.factor * (scaling.original_seq_len or 0) == seq_len
    return follows and scaling == _with_gain(scaling)
