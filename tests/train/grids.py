"""Meshes of simulated devices for the trainer's tests."""

import math
from typing import Any

import jax
import numpy as np

from shardwise.train.layout import Layout


def layout_over(
    *,
    replica: int = 1,
    outer: int = 1,
    inner: int = 1,
    context: int = 1,
    pipeline: int = 1,
    tensor: int = 1,
    **choices: Any,
) -> Layout:
    """A layout over as many devices as these axes need; `choices` are `Layout.over`'s."""
    shape = (replica, outer, inner, context, pipeline, tensor)
    return Layout.over(np.array(jax.devices()[: math.prod(shape)]).reshape(shape), **choices)
