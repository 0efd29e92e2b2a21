"""The optimizers' usual settings, and which of them has which field: what `resolve` fills in where a job leaves it out.

Keys are attribute names of the optimizer in `job/spec`.
"""

from collections.abc import Mapping

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
