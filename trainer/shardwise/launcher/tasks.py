"""The end of asyncio tasks, for everything in this package that starts some."""

import asyncio
from contextlib import suppress
from typing import Any

_AGAIN_SECONDS = 0.5


async def cancel(*tasks: "asyncio.Future[Any]") -> None:
    """Cancel tasks and wait until they have ended, whatever came of them.

    One cancellation may get lost: until Python 3.12, `asyncio.wait_for` drops it when its result comes just then.
    """
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=_AGAIN_SECONDS)
    for task in tasks:
        with suppress(asyncio.CancelledError):
            task.exception()  # seen, so that nobody complains that it was not
