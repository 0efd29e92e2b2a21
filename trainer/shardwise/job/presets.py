"""Published model shapes: what `resolve` fills in for fields of the model that a job leaves out.

Keys are attribute names of the models in `job/spec`.
"""

from collections.abc import Mapping
from typing import Any

from shardwise.job.family_values import (
    GEMMA2,
    GEMMA3,
    GPT2,
    GPTJ,
    GRANITE3,
    LLAMA,
    LLAMA3,
    MISTRAL,
    NEOX,
    OLMO2,
    OLMO3,
    QWEN2,
    QWEN3,
    SMOLLM3,
)
from shardwise.job.latent_presets import LATENT_PRESETS, LATENT_VOCAB_SIZES
from shardwise.job.mixture_presets import MIXTURES
from shardwise.job.rounding import padded
from shardwise.job.spec import Experts, RopeScaling

BYTE_TOKENIZER = "byte"
BYTE_VOCAB_SIZE = 257
VOCAB_MULTIPLE = 128

SIZES = ("layers", "heads", "embed", "seq_len")
ROTARY = ("rotary_dim", "rotary_pairs", "rope_theta", "local_rope_theta", "rope_scaling", "rotary_pattern")
"""The fields that only a model with rotary positions has."""

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "tiny": {"layers": 4, "heads": 4, "embed": 128, "seq_len": 128, **GPT2},
    "gpt2-small": {"layers": 12, "heads": 12, "embed": 768, "seq_len": 1024, **GPT2},
    "gpt2-medium": {"layers": 24, "heads": 16, "embed": 1024, "seq_len": 1024, **GPT2},
    "gpt2-large": {"layers": 36, "heads": 20, "embed": 1280, "seq_len": 1024, **GPT2},
    "gpt2-xl": {"layers": 48, "heads": 25, "embed": 1600, "seq_len": 1024, **GPT2},
    "gptj-6b": {"layers": 28, "heads": 16, "embed": 4096, "seq_len": 2048, "rotary_dim": 64, **GPTJ},
    # The positions are those of the long first part of their training, where their authors tell.
    "llama2-7b": {"layers": 32, "heads": 32, "embed": 4096, "mlp": 11008, "seq_len": 4096, **LLAMA},
    "llama3.1-8b": {
        "layers": 32,
        "heads": 32,
        "kv_heads": 8,
        "embed": 4096,
        "mlp": 14336,
        "seq_len": 8192,
        **LLAMA3,
        "rope_scaling": RopeScaling(kind="llama3", factor=8.0, original_seq_len=8192),
    },
    "llama3.2-1b": {
        "layers": 16,
        "heads": 32,
        "kv_heads": 8,
        "embed": 2048,
        "mlp": 8192,
        "seq_len": 8192,
        **LLAMA3,
        "rope_scaling": RopeScaling(kind="llama3", factor=32.0, original_seq_len=8192),
        "tied_head": True,
    },
    "mistral-7b": {"layers": 32, "heads": 32, "kv_heads": 8, "embed": 4096, "mlp": 14336, "seq_len": 8192, **MISTRAL},
    "phi4-14b": {
        "layers": 40,
        "heads": 40,
        "kv_heads": 10,
        "embed": 5120,
        "mlp": 17920,
        "seq_len": 16384,
        **LLAMA,
        "rope_theta": 250_000.0,
    },
    "mixtral-8x7b": {
        "layers": 32,
        "heads": 32,
        "kv_heads": 8,
        "embed": 4096,
        "mlp": 14336,
        "seq_len": 8192,
        **LLAMA,
        "rope_theta": 1e6,
        "experts": Experts(count=8, per_token=2, balance=0.02),
    },
    "qwen2.5-0.5b": {
        "layers": 24,
        "heads": 14,
        "kv_heads": 2,
        "embed": 896,
        "mlp": 4864,
        "seq_len": 4096,
        **QWEN2,
        "tied_head": True,
    },
    "qwen2.5-7b": {"layers": 28, "heads": 28, "kv_heads": 4, "embed": 3584, "mlp": 18944, "seq_len": 4096, **QWEN2},
    "qwen1.5-moe-a2.7b": {
        "layers": 24,
        "heads": 16,
        "embed": 2048,
        "mlp": 1408,
        "seq_len": 8192,
        **QWEN2,
        "experts": Experts(count=60, per_token=4, share_one=False, shared=5632, shared_gate=True, balance=0.001),
    },
    "qwen3-0.6b": {
        "layers": 28,
        "heads": 16,
        "kv_heads": 8,
        "embed": 1024,
        "mlp": 3072,
        "seq_len": 4096,
        **QWEN3,
        "tied_head": True,
    },
    "qwen3-8b": {"layers": 36, "heads": 32, "kv_heads": 8, "embed": 4096, "mlp": 12288, "seq_len": 4096, **QWEN3},
    "qwen3-30b-a3b": {
        "layers": 48,
        "heads": 32,
        "kv_heads": 4,
        "embed": 2048,
        "mlp": 768,
        "seq_len": 4096,
        **QWEN3,
        "experts": Experts(count=128, per_token=8, balance=0.001),
    },
    "granite3.3-2b": {
        "layers": 40,
        "heads": 32,
        "kv_heads": 8,
        "embed": 2048,
        "mlp": 8192,
        "seq_len": 131072,
        **GRANITE3,
        "query_pre_attn_scalar": 4096.0,  # scores are divided by the head size, not by its root
        "logit_divisor": 8.0,
    },
    "smollm3-3b": {
        "layers": 36,
        "heads": 16,
        "kv_heads": 4,
        "embed": 2048,
        "mlp": 11008,
        "seq_len": 65536,
        **SMOLLM3,
    },
    "olmo2-1b": {"layers": 16, "heads": 16, "embed": 2048, "mlp": 8192, "seq_len": 4096, **OLMO2},
    "olmo2-7b": {"layers": 32, "heads": 32, "embed": 4096, "mlp": 11008, "seq_len": 4096, **OLMO2},
    "olmo3-7b": {
        "layers": 32,
        "heads": 32,
        "embed": 4096,
        "mlp": 11008,
        "seq_len": 65536,
        **OLMO3,
        "rope_scaling": RopeScaling(kind="yarn", factor=8.0, original_seq_len=8192),
    },
    "gemma2-2b": {
        "layers": 26,
        "heads": 8,
        "kv_heads": 4,
        "head_size": 256,
        "embed": 2304,
        "mlp": 9216,
        "seq_len": 8192,
        **GEMMA2,
    },
    "gemma3-1b": {
        "layers": 26,
        "heads": 4,
        "kv_heads": 1,
        "head_size": 256,
        "embed": 1152,
        "mlp": 6912,
        "seq_len": 32768,
        **GEMMA3,
    },
    "pythia-410m": {"layers": 24, "heads": 16, "embed": 1024, "seq_len": 2048, "rotary_dim": 16, **NEOX},
    **LATENT_PRESETS,
    **MIXTURES,
}

_GPT2_VOCAB_SIZE = 50257
_VOCAB_SIZES: Mapping[str, int] = {
    "gptj-6b": 50400,
    "llama2-7b": 32000,
    "llama3.1-8b": 128256,
    "llama3.2-1b": 128256,
    "mistral-7b": 32000,
    "phi4-14b": 100352,
    "mixtral-8x7b": 32000,
    "qwen2.5-0.5b": 151936,
    "qwen2.5-7b": 152064,
    "qwen1.5-moe-a2.7b": 151936,
    "qwen3-0.6b": 151936,
    "qwen3-8b": 151936,
    "qwen3-30b-a3b": 151936,
    "gpt-oss-20b": 201088,
    "gpt-oss-120b": 201088,
    "granite3.3-2b": 49159,
    "smollm3-3b": 128256,
    "olmo2-1b": 100352,
    "olmo2-7b": 100352,
    "olmo3-7b": 100278,
    "gemma2-2b": 256000,
    "gemma3-1b": 262144,
    "pythia-410m": 50304,
    **LATENT_VOCAB_SIZES,
    "glm4.5-air": 151552,
    "dots.llm1": 152064,
}

# A model without a preset is GPT-2's kind of block, at its own sizes.
NO_PRESET: Mapping[str, Any] = GPT2

CHECKPOINT_EVERY = "10m"


def padded_vocab_size(vocab_size: int) -> int:
    """Return the rows of the token table as stored: the next multiple of `VOCAB_MULTIPLE`, whatever the mesh."""
    return padded(vocab_size, VOCAB_MULTIPLE)


def published_vocab_size(preset: str | None) -> int:
    """Return the tokens that a preset's published model knows; without a preset GPT-2's."""
    return _VOCAB_SIZES.get(preset or "", _GPT2_VOCAB_SIZE)
