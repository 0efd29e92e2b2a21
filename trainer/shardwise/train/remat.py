"""What the backward pass keeps of a layer, by `model.remat`; all else it computes again."""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import haliax as hax
import jax

from shardwise.train.eight_bits import PRODUCT
from shardwise.train.host_memory import HOST
from shardwise.train.products import GATHERED

INPUT = "input of a layer"
"""The name of what enters a layer in checkpoint policies."""
_keep = jax.checkpoint_policies
# Of products in 8 bits what is scaled: from their sums the scales would have to be found again.
_products = _keep.save_from_both_policies(_keep.dots_with_no_batch_dims_saveable, _keep.save_only_these_names(PRODUCT))
# JAX keeps what has the name in the host's memory, and nothing else. It takes no copy of what the scan itself hands on,
# since all of a layer is computed from what has the name (docs/decisions/0066-memory-of-the-host.md).
_inputs_on_host = _keep.save_and_offload_only_these_names(
    names_which_can_be_saved=[], names_which_can_be_offloaded=[INPUT], offload_src="device", offload_dst=HOST
)


class _Products(hax.ScanCheckpointPolicy):  # type: ignore[misc]  # haliax ships no types
    """Keep a layer's matrix products for the backward pass and compute the rest again."""

    def checkpoint(self, _carry_name: str, _input_name: str, callable: Callable[..., Any]) -> Callable[..., Any]:  # noqa: A002
        return eqx.filter_checkpoint(callable, policy=_products, prevent_cse=False)


class _Activations(hax.ScanCheckpointPolicy):  # type: ignore[misc]  # haliax ships no types
    """Keep all of a layer for the backward pass but its gathered weights, which would be the whole model."""

    def checkpoint(self, _carry_name: str, _input_name: str, callable: Callable[..., Any]) -> Callable[..., Any]:  # noqa: A002
        policy = _keep.save_anything_except_these_names(GATHERED)
        return eqx.filter_checkpoint(callable, policy=policy, prevent_cse=False)


class _InputsOnHost(hax.ScanCheckpointPolicy):  # type: ignore[misc]  # haliax ships no types
    """Keep a layer's input in the host's memory, nothing on the device, and compute the rest again."""

    def checkpoint(self, _carry_name: str, _input_name: str, callable: Callable[..., Any]) -> Callable[..., Any]:  # noqa: A002
        return eqx.filter_checkpoint(callable, policy=_inputs_on_host, prevent_cse=False)


# What the backward pass keeps of a layer: its input only, there or here, its products too, or all but the weights. The
# checkpoint must surround the whole body of the scan: inside of it, the weights' slices would be kept, a second copy of
# the model.
# `prevent_cse=False` is safe inside of a scan, and lets XLA fuse over the checkpoint (see `jax.checkpoint`).
OF_A_LAYER = {"full": True, "offload": _InputsOnHost(), "dots": _Products(), "none": _Activations()}
# The same of a pipeline's visit, in which the checkpoints of layers are: what they keep, and not the visit's weights.
_inputs = _keep.save_only_these_names(INPUT)
OF_A_VISIT = {
    "full": _inputs,
    "dots": _keep.save_from_both_policies(_inputs, _products),
}
