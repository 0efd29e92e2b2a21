"""Answers to requests for texts, in the form of OpenAI's API: whole, or as a stream of what is new."""

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any

from starlette.requests import Request as HttpRequest
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from shardwise.cli.server.engine import EndedError
from shardwise.cli.server.logprobs import logprobs_of
from shardwise.cli.server.requests import CompletionRequest, RefusedError, Request
from shardwise.cli.server.texts import News, Text

NewsQueue = asyncio.Queue[News | Exception]


class Form(ABC):
    """How texts are written in the answers of one address."""

    whole: str
    """What the API calls an answer."""
    chunk: str
    """What it calls a part of a stream."""
    prefix: str
    """Of an answer's id."""

    @abstractmethod
    def choice(self, index: int, text: str, finish: str | None, logprobs: Any = None) -> dict[str, Any]:
        """Return a text as an answer has it, why it is over, and how likely its tokens are."""

    @abstractmethod
    def part(self, new: News, *, is_first: bool) -> dict[str, Any]:
        """Return what is new of a text as a stream has it."""


class Completions(Form):
    """Of texts that go on with a prompt."""

    whole = chunk = "text_completion"
    prefix = "cmpl"

    def choice(self, index: int, text: str, finish: str | None, logprobs: Any = None) -> dict[str, Any]:
        """Return a text as an answer has it, why it is over, and how likely its tokens are."""
        return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": finish}

    def part(self, new: News, *, is_first: bool) -> dict[str, Any]:  # noqa: ARG002  all parts are alike
        """Return what is new of a text as a stream has it."""
        return self.choice(new.number, new.text, new.finish)


class Conversations(Form):
    """Of texts that answer messages."""

    whole, chunk = "chat.completion", "chat.completion.chunk"
    prefix = "chatcmpl"

    def choice(self, index: int, text: str, finish: str | None, logprobs: Any = None) -> dict[str, Any]:
        """Return a text as an answer has it, why it is over, and how likely its tokens are."""
        message = {"role": "assistant", "content": text}
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": finish}

    def part(self, new: News, *, is_first: bool) -> dict[str, Any]:
        """Return what is new of a text as a stream has it; the first part says whose message it is."""
        role = {"role": "assistant"} if is_first else {}
        content = {"content": new.text} if new.text or is_first else {}
        return {"index": new.number, "delta": role | content, "logprobs": None, "finish_reason": new.finish}


class Stream(StreamingResponse):
    """Events with what is new, as it comes. Where the client goes away, nobody wants the texts any more."""

    media_type = "text/event-stream"

    def __init__(
        self, form: Form, request: Request, texts: Sequence[Text], news: NewsQueue, head: dict[str, Any]
    ) -> None:
        """Take what is made, where news of it comes, and what every event has."""
        super().__init__(_events(form, request, texts, news, head), headers={"Cache-Control": "no-store"})
        self._texts = texts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events; the client may be gone before the first."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            _give_up(self._texts)


async def _events(
    form: Form, request: Request, texts: Sequence[Text], news: NewsQueue, head: dict[str, Any]
) -> AsyncIterator[str]:
    begun: set[int] = set()
    head |= {"object": form.chunk}
    no_usage = {"usage": None} if request.has_usage else {}
    try:
        async for new in _all(len(texts), news):
            yield _event(head | {"choices": [form.part(new, is_first=new.number not in begun)]} | no_usage)
            begun.add(new.number)
    except EndedError as error:
        yield _event(RefusedError(500, str(error)).content)
        return
    if request.has_usage:
        yield _event(head | {"choices": [], "usage": usage(request, texts)})
    yield "data: [DONE]\n\n"


async def whole(
    form: Form, http: HttpRequest, request: Request, texts: Sequence[Text], news: NewsQueue
) -> dict[str, Any]:
    """Return an answer once all texts are over; where the client goes away, nobody wants them any more.

    Raises:
        RefusedError: the client has gone away.
        EndedError: no more texts are made.

    """
    collecting = asyncio.create_task(_collect(len(texts), news))
    leaving = asyncio.create_task(_gone(http))
    try:
        await asyncio.wait({collecting, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not collecting.done():
            raise gone_away()
        found = collecting.result()
    finally:
        _give_up(texts)
        for task in (collecting, leaving):
            task.cancel()
            with suppress(asyncio.CancelledError, EndedError):
                await task
    choices = await asyncio.to_thread(_choices, form, request, texts, found)
    return {"object": form.whole, "choices": choices, "usage": usage(request, texts)}


def _choices(form: Form, request: Request, texts: Sequence[Text], found: Sequence[News]) -> list[dict[str, Any]]:
    """Return texts as an answer has them; naming the tokens of long prompts takes a while."""
    is_echoed, count = False, None
    if isinstance(request, CompletionRequest):
        is_echoed, count = bool(request.echo), request.logprobs
    choices = []
    for text, over in zip(texts, found, strict=True):
        logprobs = None
        if count is not None and over.scores is not None:
            logprobs = logprobs_of(text, over.scores, count, with_prompt=is_echoed)
        before = text.before if is_echoed else ""
        choices.append(form.choice(text.index, before + over.text, over.finish, logprobs))
    return choices


async def _collect(count: int, news: NewsQueue) -> list[News]:
    """Return all of each text, in their order."""
    found = [""] * count
    last: dict[int, News] = {}
    async for new in _all(count, news):
        found[new.number] += new.text
        last[new.number] = new
    return [last[number]._replace(text=text) for number, text in enumerate(found)]


async def _all(count: int, news: NewsQueue) -> AsyncIterator[News]:
    """Yield what is new until all texts are over; raise what ends them."""
    while count:
        new = await news.get()
        if isinstance(new, Exception):
            raise new
        yield new
        count -= new.finish is not None


def gone_away() -> RefusedError:
    """Return the answer that nobody gets; it is counted."""
    return RefusedError(499, "the client went away")


async def _gone(http: HttpRequest) -> None:
    while (await http.receive())["type"] != "http.disconnect":
        pass


def _give_up(texts: Sequence[Text]) -> None:
    for text in texts:
        text.is_unwanted = True


def usage(request: Request, texts: Sequence[Text]) -> dict[str, int]:
    """Return how many tokens there were; a prompt counts once, however many texts are made of it."""
    asked = sum(len(text.prompt) for text in texts[:: request.n or 1])
    made = sum(text.num_tokens for text in texts)
    return {"prompt_tokens": asked, "completion_tokens": made, "total_tokens": asked + made}


def _event(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content, ensure_ascii=False)}\n\n"
