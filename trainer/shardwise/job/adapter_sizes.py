"""How large the adapters of a model are, from its sizes alone: the factors that `train/lora.py` puts beside weights."""

from typing import NamedTuple

from shardwise.job.latent_sizes import products_of
from shardwise.job.sizes import is_gated, of_first_blocks
from shardwise.job.spec import Model
from shardwise.job.spec.training import Lora


class Factors(NamedTuple):
    """Parameters of factors."""

    by_fsdp: int
    """Of those that FSDP splits, which map from or to `embed`, or from a narrow vector of latent attention."""
    others: int

    def plus(self, other: "Factors") -> "Factors":
        """Return both together."""
        return Factors(self.by_fsdp + other.by_fsdp, self.others + other.others)


def adapter_parameters(model: Model, lora: Lora | None, *, of_a_token: bool = False) -> int | None:
    """Count the parameters in the adapters of a resolved job, or return None of one that trains its weights.

    `of_a_token` is whether to count those alone that one token goes through.
    """
    if lora is None:
        return None
    first, count = of_first_blocks(model)
    one = sum(block_adapters(model, lora)) + sum(expert_adapters(model, lora, of_a_token=of_a_token))
    return ((model.layers or 0) - count) * one + count * sum(block_adapters(first, lora))


def block_adapters(model: Model, lora: Lora) -> Factors:
    """Count the parameters in the adapters of one block of a resolved model, but for those of experts.

    What is one product has one adapter: queries, keys and values of as many heads, or else keys and values.
    """
    embed, heads, kv_heads, head_size = (
        size or 0 for size in (model.embed, model.heads, model.kv_heads, model.head_size)
    )
    values, products = heads * head_size, products_of(model)
    ins, of_ins = (1, 3 * values) if kv_heads == heads else (2, values + 2 * kv_heads * head_size)
    by_fsdp, others = (ins + 1) * embed, of_ins + values
    if products:
        *into, (found, _) = products
        by_fsdp, others = sum(side for side, _ in into) + embed, sum(outs for _, outs in into) + found
    attention = Factors(lora.rank * by_fsdp, lora.rank * others)
    inside = (model.experts.shared if model.experts else model.mlp) or 0
    return attention.plus(_of_mlps(model, lora, 1 if inside else 0, inside))


def expert_adapters(model: Model, lora: Lora, *, of_a_token: bool = False) -> Factors:
    """Count the same of the experts of one block, or of those that a token picks."""
    if model.experts is None:
        return Factors(0, 0)
    count = (model.experts.per_token if of_a_token else model.experts.count) or 0
    return _of_mlps(model, lora, count, count * (model.mlp or 0))


def _of_mlps(model: Model, lora: Lora, count: int, inside: int) -> Factors:
    """Count those of so many MLPs, which are so wide together."""
    each = lora.rank * (3 if is_gated(model) else 2) if lora.mlp else 0
    return Factors(each * count * (model.embed or 0), each * inside)
