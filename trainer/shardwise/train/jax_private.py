"""The private parts of JAX that the trainer uses, all of them, so that an upgrade of JAX breaks this file alone.

`jax._src.distributed.global_state.client` is the client of the coordination service, whose key-value store carries text
between processes. `jax.distributed` starts that service and publishes no name for the store; checkpoint libraries reach
for the same client. The public alternative is `jax.experimental.multihost_utils` (`process_allgather`,
`broadcast_one_to_all`): it sends arrays through the devices, so it must not run in a thread beside a step.

`_splash_attention_bwd` is the backward pass of the Pallas kernel for TPUs with the logarithms of its sums as an
argument. A ring needs it (docs/decisions/0033-ring.md): they are those of all keys, not of the few that are there,
which the kernel's own gradient would take. The public alternative calls the kernel twice.

`Lowered.compiler_ir` returns the module that is compiled, which nothing promises: channels are written into it
(docs/decisions/0043-channels.md). JAX's lowering rules take them from a constant. `Lowered._lowering` knows what the
compiler is given beside that module, by which programs are kept (docs/decisions/0069-programs-by-their-text.md). The
public alternative knows the module alone, which does not say on which devices it runs, in which order.

`Client.deserialize_executable` loads every kept program, ours and those of JAX's own cache, in XLA's own form, which
nothing promises. The order of its collectives is put back there (docs/decisions/0049-order-of-kept-programs.md). The
public alternative is to compile at each start: 22 s instead of 0.6 s for the tiny preset on two hosts.

`_jax.make_gloo_tcp_collectives` starts the thread in which a process receives what other processes on CPUs send to it.
There is no name for that thread, and no option for its priority (docs/decisions/0051-receivers.md).

When an upgrade breaks something here, `test_jax_private.py`, `test_kept_order.py` and `test_executables.py` of
`tests/train` say what.
"""

import os
import re
from collections.abc import Iterator
from functools import wraps
from itertools import count
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np
from jax._src import distributed
from jax.extend.mlir import ir
from jax.stages import Lowered
from jaxlib import _jax, xla_client

from shardwise.train.kept_order import in_order

Array = jax.Array
_TASKS = Path("/proc/self/task")  # Linux alone has priorities of threads
_LOWEST_PRIORITY = 19
_GIVEN = (
    "global_in_avals",
    "global_out_avals",
    "in_layouts",
    "in_shardings",
    "kept_var_idx",
    "out_layouts",
    "out_shardings",
)


class KeyValueStore(Protocol):
    """The key-value store of JAX's coordination service, served by rank 0. Every method may raise JaxRuntimeError."""

    def key_value_set(self, key: str, value: str) -> None:
        """Store text under a key that has none yet."""

    def blocking_key_value_get(self, key: str, timeout_in_ms: int) -> str:
        """Wait until the key has text, and return it."""

    def key_value_delete(self, key: str) -> None:
        """Remove the key, and all keys below it (`key/...`)."""


def key_value_store() -> KeyValueStore:
    """Return the store of this process; `jax.distributed.initialize` must have returned."""
    store: Any = distributed.global_state.client
    client: KeyValueStore = store
    return client


def with_own_channels(lowered: Lowered) -> Lowered:
    """Give each collective of a program a channel of its own, in place: JAX writes the same number into all of them."""
    numbers = count(1)

    def renumber(operation: Any) -> Any:
        if "channel_handle" in operation.attributes:
            words = re.sub(r"handle = \d+", f"handle = {next(numbers)}", str(operation.attributes["channel_handle"]))
            operation.attributes["channel_handle"] = ir.Attribute.parse(words)
        return ir.WalkResult.ADVANCE

    module: Any = lowered.compiler_ir("stablehlo")
    with module.context:
        module.operation.walk(renumber)
    return lowered


def compiled_from(lowered: Lowered) -> Iterator[bytes]:
    """Yield all that a lowered program gives to the compiler and to what calls the result: two that agree are one."""
    inner: Any = lowered._lowering  # noqa: SLF001
    given = inner.compile_args
    yield lowered.as_text().encode()
    beside = {
        "trees": [lowered.in_tree, lowered.out_tree],
        "options": inner._compiler_options_kvs,  # noqa: SLF001
        "devices": [device.id for device in inner._device_list],  # noqa: SLF001
        **{name: given[name] for name in _GIVEN},
    }
    yield str(beside).encode()
    for constant in inner.const_args:
        yield np.asarray(constant).tobytes()


def load_in_order() -> None:
    """Have this process put the collectives of each CPU program in order that it loads, by whatever cache."""
    load = xla_client.Client.deserialize_executable
    if hasattr(load, "__wrapped__"):
        return

    @wraps(load)
    def load_ordered(client: xla_client.Client, serialized: bytes, *arguments: Any, **options: Any) -> Any:
        ordered = in_order(serialized) if client.platform == "cpu" else serialized
        return load(client, ordered, *arguments, **options)

    xla_client.Client.deserialize_executable = load_ordered


def receive_with_low_priority() -> None:
    """Have the threads that receive from other processes on CPUs run when nothing else wants the processor.

    gloo's thread polls without a pause as long as something has come that its process does not ask for yet. Until then
    it would take half a processor from those who compute.
    """
    make = _jax.make_gloo_tcp_collectives
    if hasattr(make, "__wrapped__") or not _TASKS.is_dir():
        return

    @wraps(make)
    def make_with_low_priority(*arguments: Any, **options: Any) -> Any:
        before = {*_TASKS.iterdir()}
        made = make(*arguments, **options)
        for thread in {*_TASKS.iterdir()} - before:
            os.setpriority(os.PRIO_PROCESS, int(thread.name), _LOWEST_PRIORITY)
        return made

    _jax.make_gloo_tcp_collectives = make_with_low_priority


def splash_gradients(
    kernel: Any, operands: tuple[Array, Array, Array, Any], out: Array, log_sum: Array, slope: Array
) -> tuple[Array, Array, Array]:
    """Return the gradients of one sequence's queries, keys and values, as far as they meet in a splash kernel.

    Args:
        kernel: a `SplashAttentionKernel`.
        operands: its queries, keys, values and `SegmentIds` or None.
        out: [heads, query, head_size], the output over all keys, of which the kernel's may be a part.
        log_sum: float32 [heads, query], the logarithm of the sum over all of them.
        slope: the gradient of that output.

    """
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels  # noqa: PLC0415

    kept = (*operands, None, out, log_sum, kernel.dq_mask_info, kernel.dkv_mask_info)
    of_q, of_k, of_v = kernels._splash_attention_bwd(**kernel.kwargs, res=kept, do=slope)[3:6]  # noqa: SLF001
    return of_q, of_k, of_v
