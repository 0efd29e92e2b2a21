"""A small model of bytes as `shardwise serve` has it, and its server on a port of this machine; imported by tests."""

import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from threading import Thread
from typing import Any

import httpx
import jax.numpy as jnp
import uvicorn
from tests.train.small_gpt import Params, gpt2_config, program_of, random_params

from shardwise.cli.server.engine import Engine
from shardwise.cli.server.http import Api
from shardwise.cli.server.model import ServedModel
from shardwise.train.data.chat import ChatTokenizer
from shardwise.train.data.tokenizer import ByteTokenizer
from shardwise.train.decoder import Decoder
from shardwise.train.generation import Generation, Wish, of_prompts
from shardwise.train.sampling import Sampling
from shardwise.train.state import Program

TOKEN = "the-token-of-the-tests"  # noqa: S105  opens nothing
ENDLESS = 2**31 - 1
"""Tokens of a text that is not over before the test is."""
LIMIT_SECONDS = 120.0  # before a test gives up; nothing is measured with it
ROWS = 4
BROKEN = "this prompt is a mistake of the server"


class Tokenizer(ByteTokenizer):
    """Bytes; one text breaks it."""

    def prompt(self, text: str) -> list[int]:
        """Return the tokens of the text."""
        if text == BROKEN:
            raise ZeroDivisionError
        return super().prompt(text)


@dataclass(frozen=True)
class Small:
    """A small model whose programs are compiled, and which makes no end-of-text at temperature 0."""

    program: Program
    params: Params
    decoder: Decoder
    model: ServedModel

    @property
    def broken(self) -> Decoder:
        """The decoder of parameters that are no numbers."""
        return replace(self.decoder, weights=tuple(jnp.full_like(each, jnp.nan) for each in self.decoder.weights))

    def tokens(self, prompt: str, num_tokens: int) -> list[int]:
        """Return the tokens of a prompt and the likeliest that follow it."""
        wish = Wish(num_tokens=num_tokens, sampling=Sampling(temperature=0))
        asked = [*prompt.encode()]
        return asked + [token for each in of_prompts(self.decoder, [asked], wish) for token in each.tokens]

    def texts(self, prompt: Sequence[int], count: int = 1, *, num_tokens: int, **asked: Any) -> list[str]:
        """Return the texts that the model makes of a prompt, with nothing beside them."""
        seed, stop = asked.pop("seed", 0), self.model.tokenizer.end_of_text
        wish = Wish(num_tokens=num_tokens, sampling=Sampling(**asked), seed=seed, stop=stop)
        made: list[list[int]] = [[] for _ in range(count)]
        for each in of_prompts(self.decoder, [prompt] * count, wish):
            made[each.sequence] += each.tokens
        return [self.model.tokenizer.decode(tokens) for tokens in made]


def make_small() -> Small:
    """Make the model and compile its programs."""
    tokenizer = Tokenizer()
    program = program_of(gpt2_config(num_layers=1, seq_len=64, vocab_size=tokenizer.vocab_size))
    params = random_params(program)
    decoder = Decoder.of(program, params, ROWS)
    decoder.compile_all(lambda _: None)
    chat = ChatTokenizer(tokenizer, "chatml")
    model = ServedModel(name="small", program=program, tokenizer=tokenizer, chat=chat, has_scores=True)
    return Small(program, params, decoder, model)


def until(condition: Callable[[], bool]) -> None:
    """Wait for it."""
    end = time.monotonic() + LIMIT_SECONDS
    while not condition():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.002)  # a poll, not a wait: the condition decides


@dataclass(frozen=True)
class Server:
    """A server that answers, and a client with its token."""

    client: httpx.Client
    engine: Engine
    failures: list[Exception] = field(default_factory=list)

    def post(self, path: str, **fields: Any) -> httpx.Response:
        """Ask for texts."""
        return self.client.post(path, json=fields)

    def complete(self, **fields: Any) -> dict[str, Any]:
        """Return the answer to a request for completions."""
        return found(self.post("/v1/completions", **fields))

    def stream(self, path: str, **fields: Any) -> list[dict[str, Any]]:
        """Return the events of a stream, which says itself that it is over."""
        with self.client.stream("POST", path, json={**fields, "stream": True}) as response:
            assert response.headers["Content-Type"].startswith("text/event-stream"), response.read()
            events = events_of(response)
        assert events.pop() == "[DONE]"
        return [json.loads(event) for event in events]

    def metrics(self) -> Mapping[str, float]:
        """Return its figures by name."""
        lines = self.client.get("/metrics").text.splitlines()
        pairs = (line.rpartition(" ") for line in lines if not line.startswith("#"))
        return {name.removeprefix("shardwise_serve_"): float(value) for name, _, value in pairs}

    def until_idle(self) -> None:
        """Wait until no text waits or is in the making."""
        until(lambda: self.metrics()["texts"] == self.metrics()["texts_waiting"] == 0)


def found(response: httpx.Response) -> dict[str, Any]:
    """Return what a good answer holds."""
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def events_of(response: httpx.Response) -> list[str]:
    """Return what the events of a stream hold, up to its end."""
    return [line.removeprefix("data: ") for line in response.iter_lines() if line]


@contextmanager
def serving(model: ServedModel, decoder: Decoder) -> Iterator[Server]:
    """Answer requests in threads of this process; a mistake of the server is not shown."""
    failures = list[Exception]()
    engine = Engine(Generation(decoder), failures.append)
    config = uvicorn.Config(Api(model, engine, TOKEN).app(), log_level="critical", access_log=False, lifespan="off")
    server, listener = uvicorn.Server(config), socket.create_server(("127.0.0.1", 0))
    thread = Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    engine.start()
    thread.start()
    host, port = listener.getsockname()
    try:
        with client_of(f"http://{host}:{port}") as client:
            yield Server(client, engine, failures)
    finally:
        server.should_exit = True
        engine.stop()
        thread.join(LIMIT_SECONDS)
    assert not thread.is_alive()


def client_of(address: str, token: str = TOKEN) -> httpx.Client:
    """Return a client that has the token."""
    headers = {"Authorization": f"Bearer {token}"}
    return httpx.Client(base_url=address, headers=headers, timeout=LIMIT_SECONDS, trust_env=False)
