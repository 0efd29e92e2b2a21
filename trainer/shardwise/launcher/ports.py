"""A port for what another process will listen on: the coordinator of an incarnation, and a local run's leader."""

import errno
import random
import socket

_OURS = range(20_000, 30_000)
"""Below what systems give to outgoing connections, which could take it before it is used, and below node ports."""


def free_port(address: str) -> int:
    """A port of an address that nobody holds now; OSError where that address is not of this machine."""
    for port in random.sample(_OURS, len(_OURS)):
        with socket.socket() as probe:
            try:
                probe.bind((address, port))
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            else:
                return port
    raise OSError(errno.EADDRINUSE, f"no port of {_OURS.start} to {_OURS.stop - 1} is free", address)
