"""Compiles a program whose traffic is known by hand for hardware that is not here, and counts it as a plan does.

Run by `test_counting.py` with the Python of `.venv-plan`; the job whose hardware is meant comes in on standard input.
It judges nothing.
"""

import json
import sys
from dataclasses import asdict

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from shardwise.job.load import loads
from shardwise.plan.collectives import collectives
from shardwise.plan.hlo import parse
from shardwise.plan.targets import devices_for

AXES = {"outer": 4, "inner": 2}
TRIPS = 5
Array = jax.Array


def traffic(x: Array, w: Array, v: Array) -> tuple[Array, Array]:
    """What one device does: gathers over one axis in a loop, then a sum, a scatter and a shift.

    Args:
        x: bfloat16 [1024, 1024], a device's own.
        w: bfloat16 [256, 1024], a fourth of a matrix that the loop gathers over `outer`.
        v: bfloat16 [128, 1024], a fourth of another, gathered beside it: a compiler may make one collective of both.

    """

    def body(x: Array, _: None) -> tuple[Array, None]:
        whole = jax.lax.all_gather(w + x[0, 0], "outer", axis=0, tiled=True)
        other = jax.lax.all_gather(v + x[0, 1], "outer", axis=0, tiled=True)
        return jnp.tanh(x @ whole) + jnp.tanh(x @ other.T @ other), None

    x, _ = jax.lax.scan(body, x, length=TRIPS)
    product = jnp.matmul(x.T, x, preferred_element_type=jnp.float32)
    part = jax.lax.psum_scatter(product, "inner", scatter_dimension=0, tiled=True)
    total = jax.lax.psum(jnp.tanh(part), ("outer", "inner"))
    turned = jax.lax.ppermute(x * 2, "outer", [(i, (i + 1) % AXES["outer"]) for i in range(AXES["outer"])])
    return total, turned


def main() -> None:
    """Print the rows."""
    devices = devices_for(loads(sys.stdin.read()))
    mesh = Mesh(np.array(devices).reshape(tuple(AXES.values())), tuple(AXES))
    both, rows = P(("outer", "inner")), P("outer")
    program = jax.jit(
        jax.shard_map(traffic, mesh=mesh, in_specs=(both, rows, rows), out_specs=(P("inner"), both), check_vma=False)
    )
    shapes = [(8 * 1024, both), (4 * 256, rows), (4 * 128, rows)]
    given = [
        jax.ShapeDtypeStruct((size, 1024), jnp.bfloat16, sharding=NamedSharding(mesh, spec)) for size, spec in shapes
    ]
    text = program.lower(*given).compile().as_text()
    assert text is not None
    print(json.dumps([asdict(row) for row in collectives(parse(text), AXES)]))  # noqa: T201 - this is its answer


if __name__ == "__main__":
    main()
