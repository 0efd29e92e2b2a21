"""How large latent attention is: its products, and the narrow vectors that move between devices."""

from collections.abc import Sequence

from shardwise.job.spec import Model

Products = Sequence[tuple[int, int]]
"""The products of attention, where they are not the usual ones: what each maps, to how many values."""


def latent_products(
    *, embed: int, heads: int, head_size: int, rotary_dim: int, kv_rank: int, q_rank: int, value_size: int
) -> Products:
    """Return the products of latent attention: to and from narrow vectors, and the way out."""
    queries = heads * head_size
    of_queries = [(embed, q_rank), (q_rank, queries)] if q_rank else [(embed, queries)]
    of_heads = (kv_rank, heads * (head_size - rotary_dim + value_size))
    return (*of_queries, (embed, kv_rank + rotary_dim), of_heads, (heads * value_size, embed))


def products_of(model: Model) -> Products:
    """Return the products of a resolved model's attention, if they are not the usual ones."""
    latent = model.latent
    if latent is None:
        return ()
    return latent_products(
        embed=model.embed or 0,
        heads=model.heads or 0,
        head_size=model.head_size or 0,
        rotary_dim=model.rotary_dim or 0,
        kv_rank=latent.kv_rank or 0,
        q_rank=latent.q_rank or 0,
        value_size=latent.value_size or 0,
    )


def narrow_share(model: Model) -> float:
    """Return how wide the narrow vectors of latent attention are together, in parts of the stream; 0 without it."""
    latent = model.latent
    wide = (latent.kv_rank or 0) + (model.rotary_dim or 0) + (latent.q_rank or 0) if latent else 0
    return wide / (model.embed or 1)
