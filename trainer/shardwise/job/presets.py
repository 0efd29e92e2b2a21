"""Published model shapes and the optimizers' usual settings: what `resolve` fills in for fields that a job leaves out.

Keys are attribute names of the models in `job/spec`.
"""

from collections.abc import Mapping
from typing import Any

BYTE_TOKENIZER = "byte"
BYTE_VOCAB_SIZE = 257
VOCAB_MULTIPLE = 128
_GPT2_VOCAB_SIZE, _GPTJ_VOCAB_SIZE = 50257, 50400

SIZES = ("layers", "heads", "embed", "seq_len")

_GPT2 = {
    "block": "sequential",
    "position": "learned",
    "tied_head": True,
    "head_bias": False,
    "attention_bias": True,
}
_GPTJ = {
    "block": "parallel",
    "position": "rotary",
    "tied_head": False,
    "head_bias": True,
    "attention_bias": False,
}

PRESETS: Mapping[str, Mapping[str, Any]] = {
    "tiny": {"layers": 4, "heads": 4, "embed": 128, "seq_len": 128, **_GPT2},
    "gpt2-small": {"layers": 12, "heads": 12, "embed": 768, "seq_len": 1024, **_GPT2},
    "gpt2-medium": {"layers": 24, "heads": 16, "embed": 1024, "seq_len": 1024, **_GPT2},
    "gpt2-large": {"layers": 36, "heads": 20, "embed": 1280, "seq_len": 1024, **_GPT2},
    "gpt2-xl": {"layers": 48, "heads": 25, "embed": 1600, "seq_len": 1024, **_GPT2},
    "gptj-6b": {"layers": 28, "heads": 16, "embed": 4096, "seq_len": 2048, "rotary_dim": 64, **_GPTJ},
}

# A model without a preset is GPT-2's kind of block, at its own sizes.
NO_PRESET: Mapping[str, Any] = _GPT2

# The fields that each optimizer has, beside name, learningRate, schedule and clipNorm; the others refuse them.
OPTIMIZERS: Mapping[str, Mapping[str, float]] = {
    "adamw": {"beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.1},
    "adam": {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8},
    "lion": {"beta1": 0.9, "beta2": 0.99, "epsilon": 1e-2, "weight_decay": 0.1},
    "muon": {"momentum": 0.95, "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.1},
}

# For each of these fields, the optimizers that have it. Muon's second rate has no default of its own.
OWNERS: Mapping[str, tuple[str, ...]] = {
    **{
        field: tuple(name for name, fields in OPTIMIZERS.items() if field in fields)
        for field in ("beta1", "beta2", "epsilon", "weight_decay", "momentum")
    },
    "adam_learning_rate": ("muon",),
}

CHECKPOINT_EVERY = "10m"


def padded_vocab_size(vocab_size: int) -> int:
    """Return the rows of the token table as stored: the next multiple of 128, whatever the mesh."""
    return -(-vocab_size // VOCAB_MULTIPLE) * VOCAB_MULTIPLE


def published_vocab_size(preset: str | None) -> int:
    """Return the tokens that a preset's published model knows; without a preset GPT-2's."""
    return _GPTJ_VOCAB_SIZE if preset == "gptj-6b" else _GPT2_VOCAB_SIZE
