"""Published shapes of mixtures of DeepSeek-V3's kind, in which a bias of the choice keeps loads even.

Sources: the published files; GLM-4.5 Team, "GLM-4.5" (2025) and rednote-hilab, "dots.llm1 Technical Report" (2025). The
positions are those of the long first part of their training, and the factor of the balance is DeepSeek-V3's.
"""

from collections.abc import Mapping
from typing import Any

from shardwise.job.family_values import DOTS1, GLM45
from shardwise.job.spec import Experts

BIASED_MIXTURES: Mapping[str, Mapping[str, Any]] = {
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
