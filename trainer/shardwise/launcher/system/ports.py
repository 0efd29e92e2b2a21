"""Free ports for others to listen on: an attempt's coordinator, where torch meets, and the leader of a local run."""

import errno
import random
import socket

_OURS = range(20_000, 30_000)
"""Below the range of outgoing connections, which could take a port before it is used, and below node ports."""


def free_port(address: str) -> int:
    """Return a port of `address` that is free now. Raise OSError if the address is not one of this machine."""
    for port in random.sample(_OURS, len(_OURS)):  # at random: two runs that start together get different ports
        with socket.socket() as probe:
            try:
                probe.bind((address, port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                return port
    raise OSError(errno.EADDRINUSE, f"no port of {_OURS.start} to {_OURS.stop - 1} is free", address)
