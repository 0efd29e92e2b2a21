"""The boundary between light commands and those that need JAX.

Called by every command that trains or reads weights.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from shardwise.job.errors import UsageError


@contextmanager
def trainer_imports() -> Iterator[None]:
    """Import the trainer inside this block: where its libraries are not installed, say so in words.

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
