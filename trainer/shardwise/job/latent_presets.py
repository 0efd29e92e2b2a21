"""The published shapes of models with latent attention, beside those in `job/presets.py`.

Keys are attribute names of the model in `job/spec`. The positions are those of the long first part of their training.
"""

from collections.abc import Mapping
from typing import Any

from shardwise.job.family_values import DEEPSEEK
from shardwise.job.spec import Experts, Latent, RopeScaling

_LATENT = Latent(kv_rank=512, value_size=128)

LATENT_PRESETS: Mapping[str, Mapping[str, Any]] = {
    "deepseek-v2-lite": {
        "layers": 27,
        "heads": 16,
        "embed": 2048,
        "mlp": 1408,
        "seq_len": 4096,
        **DEEPSEEK,
        "latent": _LATENT,
        "rope_scaling": RopeScaling(kind="yarn", factor=40.0, original_seq_len=4096, attention_factor=1.0),
        # 192 over the fourth power of 0.0707 ln(40) + 1, by whose square its authors multiply scores where they stretch
        # positions; to 12 digits, as an import has it.
        "query_pre_attn_scalar": 75.9820879321,
        "experts": Experts(
            count=64, per_token=6, share_one=False, shared=2816, dense_blocks=1, dense_mlp=10944, balance=0.001
        ),
    },
    "moonlight-16b-a3b": {
        "layers": 27,
        "heads": 16,
        "embed": 2048,
        "mlp": 1408,
        "seq_len": 8192,
        **DEEPSEEK,
        "rope_theta": 50_000.0,
        "norm_epsilon": 1e-5,
        "latent": _LATENT,
        "experts": Experts(
            count=64,
            per_token=6,
            score="sigmoid",
            share_factor=2.446,
            pick_bias=True,
            shared=2816,
            dense_blocks=1,
            dense_mlp=11264,
            balance=0.001,
        ),
    },
}

LATENT_VOCAB_SIZES: Mapping[str, int] = {"deepseek-v2-lite": 102400, "moonlight-16b-a3b": 163840}
