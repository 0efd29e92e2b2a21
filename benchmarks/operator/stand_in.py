"""Answers `/status` for host 0 of every job: KWOK's pods run nothing, and a poll that nobody answers measures nothing.

Started by `stage.py` as a process of its own. All pods have addresses of one range that is routed to this machine, so
one listener has them all. It wants a token of the right form, and cannot know whether it is the job's.
"""

import asyncio
import re
import signal
import time

from shardwise.protocol.pods import AGENT_PORT
from shardwise.protocol.run_status import CheckpointStatus, RunProgress, RunStatus

_TOKEN = re.compile(rb"\r\nauthorization: bearer [0-9a-f]{64}\r\n", re.IGNORECASE)
_STEPS = 1_000_000


class _Run:
    """Every job's run: it has joined, and steps from the signal on, so that a start has no writes of progress in it."""

    began: float | None = None

    @classmethod
    def step(cls) -> int:
        """The last step, of one a second."""
        return 0 if cls.began is None else int(time.monotonic() - cls.began)

    @classmethod
    def begin(cls) -> None:
        """Take steps from now on."""
        cls.began = time.monotonic()


def main() -> None:
    """Answer until killed."""
    asyncio.run(_serve())


async def _serve() -> None:
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, _Run.begin)
    server = await asyncio.start_server(answer, "0.0.0.0", AGENT_PORT, backlog=1024)  # noqa: S104  any pod's address
    await server.serve_forever()


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the one request of a connection, and close it, as it asks."""
    try:
        asked = await reader.readuntil(b"\r\n\r\n")
        if _TOKEN.search(asked):
            writer.write(_message(b"200 OK", _status().model_dump_json().encode()))
        else:
            writer.write(_message(b"401 Unauthorized", b"{}"))
        await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):  # the operator has closed it
        pass
    finally:
        writer.close()


def _message(status: bytes, body: bytes) -> bytes:
    return b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (status, len(body), body)


def _status() -> RunStatus:
    """Return the status of a run as it is now."""
    step = _Run.step()
    return RunStatus(
        name="job",
        phase="running",
        attempt=0,
        ray_session=0,
        hosts=(),
        progress=RunProgress(
            step=step,
            of=_STEPS,
            loss=2.0 + 1.0 / (1 + step),
            tokens_per_second=100_000.0,
            mfu=0.5,
            step_seconds=1.0,
            eta_seconds=float(_STEPS - step),
        ),
        checkpoint=CheckpointStatus(step=step // 60 * 60) if step >= 60 else None,
        goodput={"step": float(step), "start": 10.0},
    )


if __name__ == "__main__":
    main()
