"""The boundary between light commands and those that train or read weights, which need JAX."""

from collections.abc import Iterator
from contextlib import contextmanager

from shardwise.protocol.errors import UsageError


@contextmanager
def trainer_imports() -> Iterator[None]:
    """Import the trainer inside this block: if its libraries are not installed, raise an error that says so.

    Raises:
        UsageError: a library of the extra `train` is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] == "shardwise":
            raise
        raise UsageError(
            f"this command trains or reads weights and needs {error.name}, which is not installed; "
            'install the trainer: pip install "shardwise[train]"'
        ) from error
