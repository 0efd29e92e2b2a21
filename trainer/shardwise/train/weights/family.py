"""What a published family is, as a value: names and layouts of its tensors, keys of its config.json, what it shares.

Nothing in the code asks which family it has. A new one that computes what `GptConfig` can say is another value, in
`gpt_families.py`, `llama_families.py` or another of these; what those are made of is in `parts.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from dataclasses import field as declared
from typing import Any, Literal

from shardwise.train.config import GptConfig
from shardwise.train.rotary import BASE
from shardwise.train.weights.tensors import Row

Kind = Literal["count", "share", "positive", "factor", "root", "cap", "flag", "choice", "written"]
"""A whole number; one above 0 up to 1; one above 0; the same, written with a point; one above 0 that is 1 over the root
of ours; one above 0 or null, which is none; true or false; one of a few; and what makes no difference to what a model
computes, which is written and never read."""
RopeKey = Literal["theta", "scaling", "local", "share"]


@dataclass(frozen=True, kw_only=True)
class Key:
    """A key of config.json that is a field of `GptConfig`."""

    name: str
    field: str
    kind: Kind
    default: Any = None
    """What it counts as if it is left out; None: what follows from other fields."""
    shape: tuple[str, int] | None = None
    """The tensor and the axis whose size it is: the key may then be left out, and must agree."""
    may_be_none: bool = False
    """Of a whole number: whether it may be 0."""
    times: str | None = None
    """Of a whole number: the field whose multiple ours is, by the number that is theirs."""
    values: Mapping[Any, Any] = declared(default_factory=dict)
    """Of a choice: ours by theirs; of those with the same meaning the first is written."""
    only_with: tuple[str, Any] | None = None
    """A field of an earlier key, and the value without which this key says nothing, and with which it is needed."""


@dataclass(frozen=True)
class Same:
    """A field that equals another one, or a property, in every model of a family."""

    field: str


@dataclass(frozen=True, kw_only=True)
class Family:
    """Models that share names, layouts and choices."""

    name: str
    """`model_type` in config.json."""
    title: str
    architecture: str
    prefix: str
    """Of all names but the head's."""
    mark: str
    """A tensor that all its models have."""
    table: str
    head: str
    """The names of the token table, and of a head of its own."""
    choices: Mapping[str, Any]
    """The fields of `GptConfig` that every model of the family shares; `Same` for those that follow another."""
    keys: tuple[Key, ...]
    heads_key: str = "num_attention_heads"
    head_counts: Mapping[int, int] = declared(default_factory=dict)
    """The heads of the published models by width, for files without a config.json."""
    fixed: Mapping[str, tuple[Any, ...]] = declared(default_factory=dict)
    """Keys whose values are the same in all models that can be computed; the first is written."""
    written: Mapping[str, Any] = declared(default_factory=dict)
    """Keys that make no difference to what a model computes, and are never read."""
    rope: Mapping[RopeKey, str] = declared(default_factory=dict)
    """The keys of rotary positions."""
    rope_theta: float = BASE
    rope_share: float = 1.0
    """The base, and how much of a head is turned, where config.json does not say."""
    local_rope_theta: float = BASE
    """The base in blocks with a window, likewise; for those families whose `rope` has a key of it."""
    stretches: tuple[str, ...] = ("linear", "llama3", "yarn")
    """The kinds of scaling that its models may have."""
    usual_scaling: Mapping[str, Any] = declared(default_factory=dict)
    """How positions are stretched where config.json does not say."""
    nests_rope: bool = False
    """Whether that key is in `rope_parameters` alone, which has an object for each kind of block."""
    rotary_pattern: int = 0
    """Every so many-th block is without positions, where config.json does not say; 0: its models have no such block."""
    has_experts: bool = False
    """Whether each block's MLP is a mixture of experts."""
    has_latent: bool = False
    """Whether keys and values are made of narrow vectors."""
    windows: Literal["none", "every", "pattern"] = "none"
    """Which blocks have a sliding window."""
    usual_window: int | None = 4096
    """How wide they are, where config.json does not say; None: there are none."""
    window_pattern: int = 0
    """Every so many-th block sees all, where config.json does not say."""
    joined: Mapping[str, tuple[str, ...]] = declared(default_factory=dict)
    """Tensors of a block whose rows are those of several in `rows`, one after the other, by the names in the files."""
    further_layers: str = ""
    """The key of how many layers follow the last one to predict further tokens, which are not read."""
    stacked: Mapping[str, tuple[str, ...]] = declared(default_factory=dict)
    """Tensors of a layer that hold those of all its experts (`stacked.py`): what follows `experts.` in their names, and
    what follows the number of an expert in those of `rows` whose columns they hold in turn."""
    quantizations: tuple[str, ...] = ()
    """The packed formats of weights in which such tensors may be read."""
    rows: tuple[Row, ...]


def differences(family: Family, config: GptConfig) -> dict[str, Any]:
    """Return the fields in which a model is not of this family, with the family's values."""
    expected = {name: required(value, config) for name, value in family.choices.items()}
    wrong = {name: value for name, value in expected.items() if getattr(config, name) != value}
    for key in family.keys:
        ours = list(key.values.values())
        if ours and getattr(config, key.field) not in ours:
            wrong[key.field] = " or ".join(map(str, dict.fromkeys(ours)))
        if key.times and (not getattr(config, key.field) or getattr(config, key.field) % getattr(config, key.times)):
            wrong[key.field] = f"a multiple of {getattr(config, key.times)}"
        if not says(key, vars(config)) and getattr(config, key.field) != key.default:
            wrong[key.field] = key.default
    if family.has_experts != (config.num_experts > 0):
        wrong["num_experts"] = "a number" if family.has_experts else 0
    if family.has_latent != config.is_latent:
        wrong["kv_rank"] = "a number" if family.has_latent else 0
    if family.has_latent and not _sharpens_by_stretching(config):
        wrong["query_pre_attn_scalar"] = f"the head size {config.head_size} or, with yarn, less"
    if config.rope_scaling is not None and config.rope_scaling.kind not in family.stretches:
        wrong["rope_scaling"] = f"none, or {' or '.join(family.stretches)}"
    if "local" in family.rope and _stretches_windows(config):
        wrong["local_rope_theta"] = "a number: there ropeScaling counts in no block with a slidingWindow"
    return wrong


def says(key: Key, fields: Mapping[str, Any]) -> bool:
    """Return whether a key says anything of a model with these fields."""
    return key.only_with is None or fields[key.only_with[0]] == key.only_with[1]


def required(value: Any, config: GptConfig) -> Any:
    """Return what a choice asks of this model."""
    return getattr(config, value.field) if isinstance(value, Same) else value


def _sharpens_by_stretching(config: GptConfig) -> bool:
    """Return whether the keys of latent attention can say what a model's scores are divided by."""
    scaling = config.rope_scaling
    if config.query_pre_attn_scalar == config.head_size:
        return True
    stretches = scaling is not None and scaling.kind == "yarn" and scaling.factor > 1
    return stretches and config.query_pre_attn_scalar < config.head_size


def _stretches_windows(config: GptConfig) -> bool:
    """Return whether a scaling counts in blocks with a window, which have no base of their own."""
    windowed, own_base = config.sliding_window is not None, config.local_rope_theta is not None
    return config.rope_scaling is not None and windowed and not own_base
