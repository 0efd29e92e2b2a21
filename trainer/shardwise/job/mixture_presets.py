"""Published shapes of gpt-oss, and of mixtures of DeepSeek-V3's kind, in which a bias of the choice keeps loads even.

Sources: the published files; GLM-4.5 Team, "GLM-4.5" (2025) and rednote-hilab, "dots.llm1 Technical Report" (2025). The
positions of these two are those of the long first part of their training, and their balance has DeepSeek-V3's factor.
"""

from collections.abc import Mapping
from typing import Any

from shardwise.job.family_values import DOTS1, GLM45, GPT_OSS
from shardwise.job.spec import Experts, RopeScaling

_GPT_OSS: Mapping[str, Any] = {
    "heads": 64,
    "kv_heads": 8,
    "embed": 2880,
    "mlp": 2880,
    "seq_len": 131072,
    **GPT_OSS,
    "rope_scaling": RopeScaling(kind="yarn", factor=32.0, original_seq_len=4096, truncate=False),
}

MIXTURES: Mapping[str, Mapping[str, Any]] = {
    "gpt-oss-20b": {
        "layers": 24,
        **_GPT_OSS,
        "experts": Experts(count=32, per_token=4, router_bias=True, balance=0.001),
    },
    "gpt-oss-120b": {
        "layers": 36,
        **_GPT_OSS,
        "experts": Experts(count=128, per_token=4, router_bias=True, balance=0.001),
    },
    "glm4.5-air": {
        "layers": 46,
        "heads": 96,
        "kv_heads": 8,
        "embed": 4096,
        "mlp": 1408,
        "seq_len": 4096,
        **GLM45,
        "experts": Experts(
            count=128,
            per_token=8,
            score="sigmoid",
            pick_bias=True,
            shared=1408,
            dense_blocks=1,
            dense_mlp=10944,
            balance=0.0001,
        ),
    },
    "dots.llm1": {
        "layers": 62,
        "heads": 32,
        "embed": 4096,
        "mlp": 1408,
        "seq_len": 8192,
        **DOTS1,
        "experts": Experts(
            count=128,
            per_token=6,
            score="sigmoid",
            share_factor=2.5,
            pick_bias=True,
            shared=2816,
            dense_blocks=1,
            dense_mlp=10944,
            balance=0.0001,
        ),
    },
}
