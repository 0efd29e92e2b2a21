"""The server as a whole: the thread that makes texts, and the loop that answers requests, until a signal ends both."""

import signal
import socket

import uvicorn

from shardwise.cli.server.engine import Engine
from shardwise.cli.server.http import Api
from shardwise.cli.server.model import ServedModel
from shardwise.train.decoder import Decoder
from shardwise.train.generation import Generation

FINISH_SECONDS = 30
"""For requests under way when the server is stopped."""
_ENDING = (signal.SIGINT, signal.SIGTERM)


def answer_until_stopped(model: ServedModel, decoder: Decoder, token: str, listener: socket.socket) -> None:
    """Answer requests until SIGINT or SIGTERM, and those under way after it; raise what ends the making of texts.

    Args:
        model: of which texts are made.
        decoder: of the model.
        token: of every request.
        listener: where requests come.

    Raises:
        NonFiniteError: the parameters give logits that are not numbers.

    """

    def failing(_: Exception) -> None:
        server.should_exit = True

    engine = Engine(Generation(decoder), failing)
    config = uvicorn.Config(
        Api(model, engine, token).app(),
        log_level="error",
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=FINISH_SECONDS,
    )
    server = uvicorn.Server(config)
    # uvicorn raises the signal that has ended it once more, for whoever handled it before.
    before = [signal.signal(number, lambda *_: None) for number in _ENDING]
    engine.start()
    try:
        server.run(sockets=[listener])
    finally:
        for number, handler in zip(_ENDING, before, strict=True):
            signal.signal(number, handler)
        engine.stop()
    if engine.error is not None:
        raise engine.error
