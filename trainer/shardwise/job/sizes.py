"""How large a model is, from its sizes alone: parameters, the keys that a token is compared with, and its arithmetic.

Model FLOPs per token = 6 x (parameters in matrices that a token is multiplied with; 4 x those that stay as they are
beside adapters, which have no gradient) + 6 x heads x (head size + value size, mostly the same) x (keys that a token
sees on average, summed over the layers). The 6 is 2 for a multiply and add, times 3 for the forward and the backward
pass; attention has a product with each key and one with its value. Of preferences there is a third more of both, for
the model as it was. A causal token sees half of the positions on average, and within a sliding window the window less
what it lacks at the start. Recomputation in the backward pass is not counted: this is model, not hardware, utilisation.
Formula: Chowdhery et al., "PaLM" (2022), appendix B.
"""

from shardwise.job.latent_sizes import Products, products_of
from shardwise.job.spec import Model

GATED = ("swiglu", "geglu", "swiglu-clamped")
"""The activations that multiply a second product."""


def block_matrix_parameters(
    *,
    embed: int,
    heads: int,
    kv_heads: int,
    head_size: int,
    inside: int,
    is_gated: bool,
    routes: int = 0,
    products: Products = (),
) -> int:
    """Count the parameters in the matrices of one block; no biases and gains.

    `inside` is the width of its MLP or of all MLPs of a mixture together or, for the matrices that one token is
    multiplied with, of those that it goes through; `routes` are the experts that a router chooses from, and one more
    where the MLP of all tokens has a gate.
    """
    attention = 2 * embed * head_size * (heads + kv_heads)  # queries and the way out, keys and values
    if products:
        attention = sum(ins * outs for ins, outs in products)
    return attention + (3 if is_gated else 2) * embed * inside + routes * embed


def keys_seen_twice(layers: int, seq_len: int, window: int | None, pattern: int | None) -> int:
    """Return twice the keys that a token sees on average, summed over the layers."""
    if window is None or window >= seq_len:
        return layers * seq_len
    num_global = 0 if pattern is None else layers // pattern
    local = 2 * window - window * window // seq_len
    return num_global * seq_len + (layers - num_global) * local


def flops_per_token(
    *,
    matrix_parameters: int,
    values: int,
    seen_twice: int,
    adapters: int | None = None,
    more_forwards: int = 0,
) -> int:
    """Return the model FLOPs of one trained token, forward and backward.

    Args:
        matrix_parameters: in all matrices that it is multiplied with.
        values: heads x (head size + value size), as `attention_values` returns it.
        seen_twice: as `keys_seen_twice` returns it.
        adapters: parameters of those that it goes through and that are trained in place of the matrices, or None.
        more_forwards: how often a model goes forward beside that.

    """
    products = 6 * matrix_parameters if adapters is None else 4 * matrix_parameters + 6 * adapters
    forward = 2 * matrix_parameters + values * seen_twice
    return products + 3 * values * seen_twice + more_forwards * forward


def block_matrices(model: Model, *, of_a_token: bool = False) -> int:
    """Count the parameters in the matrices of one block of a resolved model, or of those that a token goes through."""
    embed, heads, kv_heads, head_size, mlp = _of_block(model)
    experts = model.experts
    of_all = (experts.count or 0) * mlp + (experts.shared or 0) if experts else mlp
    return block_matrix_parameters(
        embed=embed,
        heads=heads,
        kv_heads=kv_heads,
        head_size=head_size,
        inside=inside_of_a_token(model) if of_a_token else of_all,
        is_gated=is_gated(model),
        routes=(experts.count or 0) + bool(experts.shared_gate) if experts else 0,
        products=products_of(model),
    )


def all_block_matrices(model: Model, *, of_a_token: bool = False) -> int:
    """Count the same of all blocks together, the first ones of a mixture with their own MLP."""
    first, count = of_first_blocks(model)
    others = ((model.layers or 0) - count) * block_matrices(model, of_a_token=of_a_token)
    return others + count * block_matrices(first)


def of_first_blocks(model: Model) -> tuple[Model, int]:
    """Return the model whose blocks are all like the first ones, and how many of these have one MLP before a mixture.

    Without such blocks it is the model itself, and 0.
    """
    experts = model.experts
    if not experts or not experts.dense_blocks:
        return model, 0
    return model.model_copy(update={"experts": None, "mlp": experts.dense_mlp}), experts.dense_blocks


def inside_of_a_token(model: Model) -> int:
    """Return the values of a token inside of all MLPs that it goes through in a block."""
    mlp, experts = model.mlp or 0, model.experts
    return (experts.per_token or 0) * mlp + (experts.shared or 0) if experts else mlp


def values_of_heads(model: Model) -> tuple[int, int]:
    """Return the values of all heads of a token's query in a resolved model, and of its key or its value.

    If these are not as wide, that is their mean.
    """
    _, heads, kv_heads, head_size, _ = _of_block(model)
    return heads * head_size, kv_heads * (head_size + _value_size(model)) // 2


def attention_values(model: Model) -> int:
    """Return the values of all heads that a key costs a token: of the product with it, and of that with its value."""
    _, heads, _, head_size, _ = _of_block(model)
    return heads * (head_size + _value_size(model))


def is_gated(model: Model) -> bool:
    """Return whether the feed-forward layer multiplies its activation by a second product."""
    return model.activation in GATED


def num_parameters(model: Model, vocab_size: int) -> int:
    """Return the weights and biases of a resolved model with so many tokens, without the table's padding."""
    embed, heads, kv_heads, head_size, _ = _of_block(model)
    norm = 2 if model.norm == "layer" else 1  # gains, and the biases of a layer norm
    before = 0 if model.pre_norm is False else 1 if model.block == "parallel" else 2
    norms = before + (2 if model.post_norm else 0)
    block = norms * norm * embed
    of_qk = heads + kv_heads if model.qk_norm_over == "all-heads" else 2
    block += norm * head_size * of_qk if model.qk_norm else 0
    block += norm * ((model.latent.kv_rank or 0) + (model.latent.q_rank or 0)) if model.latent else 0
    block += head_size * (heads + 2 * kv_heads) if model.attention_bias else 0
    block += embed if model.attention_out_bias else 0
    block += heads if model.attention_sinks else 0
    head = (0 if model.tied_head else vocab_size * embed) + (vocab_size if model.head_bias else 0)
    positions = (model.seq_len or 0) * embed if model.position == "learned" else 0
    blocks = all_block_matrices(model) + all_biases_of_mlps(model) + (model.layers or 0) * block
    blocks += _biases_of_routers(model)
    return vocab_size * embed + positions + blocks + norm * embed + head


def num_parameters_of_a_token(model: Model, vocab_size: int) -> int:
    """Return those that one token goes through: of a mixture's experts the few that it picks."""
    others = all_block_matrices(model) - all_block_matrices(model, of_a_token=True)
    others += all_biases_of_mlps(model) - all_biases_of_mlps(model, of_a_token=True)
    return num_parameters(model, vocab_size) - others


def _biases_of_routers(model: Model) -> int:
    """Count the biases of routers, those of their logits and those that only choose."""
    experts = model.experts
    if not experts:
        return 0
    return (bool(experts.router_bias) + bool(experts.pick_bias)) * _mixtures(model) * (experts.count or 0)


def _mixtures(model: Model) -> int:
    """Count the blocks that have experts."""
    return (model.layers or 0) - (model.experts.dense_blocks or 0) if model.experts else 0


def _value_size(model: Model) -> int:
    return (model.latent.value_size if model.latent else model.head_size) or 0


def all_biases_of_mlps(model: Model, *, of_a_token: bool = False) -> int:
    """Count the biases of all blocks' MLPs, or of those that a token goes through."""
    if not model.mlp_bias:
        return 0
    ups, experts, embed = 2 if is_gated(model) else 1, model.experts, model.embed or 0
    one = ups * (model.mlp or 0) + embed
    if experts is None:
        return (model.layers or 0) * one
    shared = ups * experts.shared + embed if experts.shared else 0
    mixture = ((experts.per_token if of_a_token else experts.count) or 0) * one + shared
    dense = ups * (experts.dense_mlp or 0) + embed
    return _mixtures(model) * mixture + (experts.dense_blocks or 0) * dense


def _of_block(model: Model) -> tuple[int, int, int, int, int]:
    """Return embed, heads, heads of keys, head size and mlp."""
    embed, heads, kv_heads, head_size, mlp = (
        size or 0 for size in (model.embed, model.heads, model.kv_heads, model.head_size, model.mlp)
    )
    return embed, heads, kv_heads, head_size, mlp
