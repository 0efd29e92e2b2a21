"""How asyncio tasks are ended everywhere in this package."""

import asyncio
from contextlib import suppress
from typing import Any

_AGAIN_SECONDS = 0.5


async def cancel(*tasks: "asyncio.Future[Any]") -> None:
    """Cancel tasks and wait until all of them have ended, with whatever result."""
    # Cancel again and again, because one cancellation may get lost: until Python 3.12 `asyncio.wait_for` drops it if
    # its own result arrives at the same moment (https://github.com/python/cpython/issues/86296).
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=_AGAIN_SECONDS)
    for task in tasks:
        with suppress(asyncio.CancelledError):
            task.exception()  # once retrieved, asyncio does not log it as an exception that was never retrieved
