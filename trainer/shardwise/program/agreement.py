"""What all processes agree to do at a step: the largest of what each asks for.

The word of one step travels through the devices beside it, and is read one step later. So no process waits for another
one's Python, and each gets the same answer at the same step.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from shardwise.protocol.contract import Control
from shardwise.train.peers import Peers


class Agreement:
    """The agreement of the processes of one attempt, each of which calls `exchange` once a step."""

    def __init__(self, peers: Peers) -> None:
        """Compile the program that finds the largest word; nothing of the kind for a single process."""
        self._alone = peers.count == 1
        self._sent: jax.Array | None = None
        if self._alone:
            return
        mesh = Mesh(np.array(jax.devices()), ("device",))
        self._each, whole = NamedSharding(mesh, PartitionSpec("device")), NamedSharding(mesh, PartitionSpec())
        self._shape = (mesh.size,)
        words = jax.ShapeDtypeStruct(self._shape, jnp.int32, sharding=self._each)
        with jax.set_mesh(mesh):  # whatever mesh the program has set
            self._largest = jax.jit(jnp.max, out_shardings=whole).lower(words).compile()

    def receive(self) -> Control:
        """Return what was agreed on at the step before; nothing at the first."""
        return Control.NONE if self._sent is None else Control(int(self._sent.addressable_data(0)))

    def exchange(self, own: Control) -> Control:
        """Return what is agreed on now, if there is one process; else send this word, for the next step to receive."""
        if self._alone:
            return own
        word = np.full(1, own, np.int32)
        self._sent = self._largest(jax.make_array_from_callback(self._shape, self._each, lambda _: word))
        return Control.NONE
