"""What the backward pass keeps of a layer, by `model.remat`; all else it computes again."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import haliax as hax
import jax

from shardwise.train.eight_bits import PRODUCT
from shardwise.train.products import GATHERED

_keep = jax.checkpoint_policies
# Of products in 8 bits what is scaled: from their sums the scales would have to be found again.
_products = _keep.save_from_both_policies(_keep.dots_with_no_batch_dims_saveable, _keep.save_only_these_names(PRODUCT))


class _Products(hax.ScanCheckpointPolicy):  # type: ignore[misc]  # haliax ships no types
    """Keep a layer's matrix products for the backward pass and compute the rest again."""

    def checkpoint(self, _carry_name: str, _input_name: str, callable: Callable[..., Any]) -> Callable[..., Any]:  # noqa: A002
        return eqx.filter_checkpoint(callable, policy=_products, prevent_cse=False)


class _Activations(hax.ScanCheckpointPolicy):  # type: ignore[misc]  # haliax ships no types
    """Keep all of a layer for the backward pass but its gathered weights, which would be the whole model."""

    def checkpoint(self, _carry_name: str, _input_name: str, callable: Callable[..., Any]) -> Callable[..., Any]:  # noqa: A002
        policy = _keep.save_anything_except_these_names(GATHERED)
        return eqx.filter_checkpoint(callable, policy=policy, prevent_cse=False)


# What the backward pass keeps of a layer: its input only, its products too, or all but the weights. The checkpoint must
# surround the whole body of the scan: inside of it, the weights' slices would be kept, a second copy of the model.
# `prevent_cse=False` is safe inside of a scan, and lets XLA fuse over the checkpoint (see `jax.checkpoint`).
OF_A_LAYER = {"full": True, "dots": _Products(), "none": _Activations()}
INPUT = "input of a layer"
"""The name of what enters a layer in checkpoint policies."""
# The same of a pipeline's visit, in which the checkpoints of layers are: what they keep, and not the visit's weights.
_inputs = _keep.save_only_these_names(INPUT)
OF_A_VISIT = {
    "full": _inputs,
    "dots": _keep.save_from_both_policies(_inputs, _products),
}
