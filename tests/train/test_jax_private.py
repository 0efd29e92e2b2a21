"""shardwise.train.jax_private: JAX still has the private parts that the trainer uses. Look here after an upgrade."""

import inspect
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
from jax import P

from shardwise.launcher.system.ports import free_port
from shardwise.train.jax_private import with_own_channels

SCRIPT = """
import sys
import jax
from shardwise.train.jax_private import key_value_store
print("import", flush=True)
address = sys.argv[1]
jax.distributed.initialize(address, num_processes=1, process_id=0, cluster_detection_method="deactivate")
store = key_value_store()
for method in ("key_value_set", "blocking_key_value_get", "key_value_delete"):
    assert callable(getattr(store, method)), method
print("client", flush=True)
store.key_value_set("a/1", "text")
assert store.blocking_key_value_get("a/1", 1000) == "text"
print("text", flush=True)
store.key_value_delete("a")
try:
    store.blocking_key_value_get("a/1", 1)
except jax.errors.JaxRuntimeError:
    print("delete", flush=True)
"""

RECEIVER = """
import os
import sys
import jax
from shardwise.train.jax_private import receive_with_low_priority
receive_with_low_priority()
jax.distributed.initialize(sys.argv[1], num_processes=1, process_id=0, cluster_detection_method="deactivate")
jax.devices()
threads = [int(thread) for thread in os.listdir("/proc/self/task")]
print(*(os.getpriority(os.PRIO_PROCESS, thread) for thread in threads if os.getpriority(os.PRIO_PROCESS, thread)))
print(os.getpriority(os.PRIO_PROCESS, os.getpid()))
"""

BROKEN = {
    "import": "JAX no longer has the module `jax._src.distributed`",
    "client": "`jax._src.distributed.global_state.client` is no longer a key-value store with its three methods",
    "text": "the store no longer returns the text that was stored under a key",
    "delete": "deleting a key no longer removes those below it, or reading none no longer raises JaxRuntimeError",
}


def test_the_backward_pass_of_the_splash_kernel() -> None:
    """It takes what a kernel was made with, what it was given and has found, and the output's gradient."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels  # noqa: PLC0415
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks  # noqa: PLC0415

    made = kernels.make_splash_mha(masks.MultiHeadMask([masks.CausalMask((128, 128))]), head_shards=1, q_seq_shards=1)
    taken = inspect.signature(kernels._splash_attention_bwd).parameters

    assert set(taken) == {*made.kwargs, "res", "do"}, (
        f"with JAX {jax.__version__} `_splash_attention_bwd` takes other arguments. Mend "
        "trainer/shardwise/train/jax_private.py; tests/train/test_ring.py says whether its numbers are right."
    )


def test_the_key_value_store_of_the_coordination_service() -> None:
    """It can be reached, stores text, and deletes a key with all below it; otherwise the message names what broke."""
    done = _alone(SCRIPT)

    passed = done.stdout.split()
    broken = [text for step, text in BROKEN.items() if step not in passed]
    assert not broken, (
        f"with JAX {jax.__version__} {broken[0]}. Mend trainer/shardwise/train/jax_private.py; its docstring names the "
        f"public alternative.\n{done.stderr}"
    )


def _alone(script: str) -> subprocess.CompletedProcess[str]:
    """Run a script of one process that has the address of its own coordinator as its argument."""
    address = f"127.0.0.1:{free_port('127.0.0.1')}"
    return subprocess.run([sys.executable, "-c", script, address], check=False, capture_output=True, text=True)


def test_what_receives_from_other_processes_leaves_the_processor_to_those_who_compute() -> None:
    """One thread of a process, by which gloo polls, has the lowest priority; those that compute keep theirs."""
    done = _alone(RECEIVER)

    assert done.stdout.splitlines() == ["19", "0"], (
        f"with JAX {jax.__version__} no thread, or another one, begins in `_jax.make_gloo_tcp_collectives`: mend "
        f"trainer/shardwise/train/jax_private.py\n{done.stderr}"
    )


def test_channels_are_written_into_the_program_that_is_compiled() -> None:
    """Of two sums of a program each has a channel of its own."""
    mesh = jax.make_mesh((8,), ("device",))
    sums = jax.shard_map(
        lambda x, y: (jax.lax.psum(x, "device"), jax.lax.pmax(y, "device")),
        mesh=mesh,
        in_specs=P("device"),
        out_specs=P(),
    )
    given = jax.ShapeDtypeStruct((8,), jnp.float32, sharding=jax.NamedSharding(mesh, P("device")))
    compiled = with_own_channels(jax.jit(sums).lower(given, given)).compile().as_text() or ""

    assert len(set(re.findall(r"channel_id=\d+", compiled))) == 2, (
        f"with JAX {jax.__version__} it is not the module of `compiler_ir` that is compiled: mend "
        "trainer/shardwise/train/jax_private.py"
    )
