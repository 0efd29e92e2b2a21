"""The families with layer norm: GPT-2, GPT-J and GPT-NeoX.

GPT-2 keeps matrices as (in, out), all others as (out, in). Sources: the published files; Radford et al. (2019), Wang
and Komatsuzaki (2021), Black et al. (2022) for what they compute.
"""

from shardwise.train.weights.family import Family, Key
from shardwise.train.weights.parts import (
    GPT,
    PLAIN_ROPE,
    TANH_GELUS,
    choice,
    choices,
    flag,
    linear_rows,
    norm_keys,
    norm_rows,
    projection_rows,
    row,
    sizes,
)

_OLD_NAMES = {"embed_size": "n_embd", "num_layers": "n_layer", "mlp_size": "n_inner", "seq_len": "n_positions"}
_TABLE = {"vocab_size": ("wte.weight", 0), "embed_size": ("wte.weight", 1)}
_OLD_KEYS = (
    choice("activation_function", "activation", "gelu_new", TANH_GELUS),
    *norm_keys("layer_norm_epsilon", 1e-5),
    Key(name="embd_pdrop", field="embed_dropout", kind="written"),
    Key(name="resid_pdrop", field="residual_dropout", kind="written"),
)

GPT2 = Family(
    name="gpt2",
    title="GPT-2",
    architecture="GPT2LMHeadModel",
    prefix="transformer.",
    mark="h.0.attn.c_attn.weight",
    table="wte.weight",
    head="lm_head.weight",
    choices=choices(
        "scale_by_inverse_layer",
        **{**GPT, **PLAIN_ROPE, "position": "learned", "rotary_dim": 0, "tied_head": True, "attention_bias": True},
    ),
    keys=(
        *sizes(_OLD_NAMES, {**_TABLE, "mlp_size": ("h.0.mlp.c_fc.weight", 1), "seq_len": ("wpe.weight", 0)}),
        *_OLD_KEYS,
        flag("scale_attn_by_inverse_layer_idx", "scale_by_inverse_layer", default=False),
    ),
    heads_key="n_head",
    head_counts={768: 12, 1024: 16, 1280: 20, 1600: 25},
    fixed={"scale_attn_weights": (True,), "tie_word_embeddings": (True,)},
    written={"attn_pdrop": 0.0},
    rows=(
        row("wte.weight", "token_embedding", "vocab embed"),
        row("wpe.weight", "position_embedding", "position embed"),
        *norm_rows("h.{}.ln_1", "blocks.norm"),
        *linear_rows(
            "h.{}.attn.c_attn", "blocks.attention.qkv", "embed (qkv heads head_size)", "(qkv heads head_size)"
        ),
        *linear_rows("h.{}.attn.c_proj", "blocks.attention.out", "(heads head_size) embed", "embed"),
        *norm_rows("h.{}.ln_2", "blocks.mlp_norm"),
        *linear_rows("h.{}.mlp.c_fc", "blocks.mlp.up", "embed mlp", "mlp"),
        *linear_rows("h.{}.mlp.c_proj", "blocks.mlp.down", "mlp embed", "embed"),
        *norm_rows("ln_f", "norm"),
    ),
)

GPTJ = Family(
    name="gptj",
    title="GPT-J",
    architecture="GPTJForCausalLM",
    prefix="transformer.",
    mark="h.0.attn.q_proj.weight",
    table="wte.weight",
    head="lm_head.weight",
    choices=choices(
        "rotary_dim",
        **{**GPT, **PLAIN_ROPE, "block": "parallel", "tied_head": False, "head_bias": True, "attention_bias": False},
    ),
    keys=(
        *sizes(_OLD_NAMES, {**_TABLE, "mlp_size": ("h.0.mlp.fc_in.weight", 0)}),
        *_OLD_KEYS,
        Key(name="rotary_dim", field="rotary_dim", kind="count", default=64),
    ),
    heads_key="n_head",
    head_counts={4096: 16},
    fixed={"scale_attn_weights": (True,), "tie_word_embeddings": (False,)},
    written={"attn_pdrop": 0.0},
    rows=(
        row("wte.weight", "token_embedding", "vocab embed"),
        *norm_rows("h.{}.ln_1", "blocks.norm"),
        *projection_rows("h.{}.attn"),
        *linear_rows("h.{}.attn.out_proj", "blocks.attention.out", "embed (heads head_size)", "embed"),
        *linear_rows("h.{}.mlp.fc_in", "blocks.mlp.up", "mlp embed", "mlp"),
        *linear_rows("h.{}.mlp.fc_out", "blocks.mlp.down", "embed mlp", "embed"),
        *norm_rows("ln_f", "norm"),
        row("lm_head.weight", "head", "vocab embed"),
        row("lm_head.bias", "head_bias", "vocab"),
    ),
)

NEOX = Family(
    name="gpt_neox",
    title="GPT-NeoX",
    architecture="GPTNeoXForCausalLM",
    prefix="gpt_neox.",
    mark="layers.0.attention.query_key_value.weight",
    table="embed_in.weight",
    head="embed_out.weight",
    choices=choices("rotary_dim", "block", **GPT),
    keys=(
        *sizes(
            {
                "embed_size": "hidden_size",
                "num_layers": "num_hidden_layers",
                "mlp_size": "intermediate_size",
                "seq_len": "max_position_embeddings",
            },
            {
                "vocab_size": ("embed_in.weight", 0),
                "embed_size": ("embed_in.weight", 1),
                "mlp_size": ("layers.0.mlp.dense_h_to_4h.weight", 0),
            },
        ),
        choice("hidden_act", "activation", "gelu", {"gelu": "gelu-exact", **TANH_GELUS}),
        choice("use_parallel_residual", "block", True, {True: "parallel-two-norms", False: "sequential"}),
        *norm_keys("layer_norm_eps", 1e-5),
        flag("attention_bias", "attention_bias", default=True),
        flag("tie_word_embeddings", "tied_head", default=False),
    ),
    rope={"theta": "rotary_emb_base", "scaling": "rope_scaling", "share": "rotary_pct"},
    rope_share=0.25,
    rows=(
        row("embed_in.weight", "token_embedding", "vocab embed"),
        *norm_rows("layers.{}.input_layernorm", "blocks.norm"),
        *linear_rows(
            "layers.{}.attention.query_key_value",
            "blocks.attention.qkv",
            "(heads qkv head_size) embed",
            "(heads qkv head_size)",
        ),
        *linear_rows("layers.{}.attention.dense", "blocks.attention.out", "embed (heads head_size)", "embed"),
        *norm_rows("layers.{}.post_attention_layernorm", "blocks.mlp_norm"),
        *linear_rows("layers.{}.mlp.dense_h_to_4h", "blocks.mlp.up", "mlp embed", "mlp"),
        *linear_rows("layers.{}.mlp.dense_4h_to_h", "blocks.mlp.down", "embed mlp", "embed"),
        *norm_rows("final_layer_norm", "norm"),
        row("embed_out.weight", "head", "vocab embed"),
    ),
)
