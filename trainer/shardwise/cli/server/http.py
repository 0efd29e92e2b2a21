"""The HTTP of a model's texts: who may ask, and what is answered at which address."""

import asyncio
import hmac
import time
from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from uuid import uuid4

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from shardwise.cli.server.answers import Completions, Conversations, Form, NewsQueue, Stream, gone_away, whole
from shardwise.cli.server.engine import EndedError, Engine
from shardwise.cli.server.metrics import Metrics
from shardwise.cli.server.model import ServedModel
from shardwise.cli.server.requests import ChatRequest, CompletionRequest, RefusedError, Request, read
from shardwise.cli.server.texts import News

MAX_BODY_BYTES = 1 << 20
_HEADERS: Mapping[int, Mapping[str, str]] = {
    HTTPStatus.UNAUTHORIZED: {"WWW-Authenticate": "Bearer"},
    HTTPStatus.TOO_MANY_REQUESTS: {"Retry-After": "1"},
}
Handler = Callable[[HttpRequest], Awaitable[Response]]


class Api:
    """Answers requests with the texts of one engine."""

    def __init__(self, model: ServedModel, engine: Engine, token: str) -> None:
        """Take whose texts they are, what makes them, and the token that every request has to have."""
        self._model, self._engine, self._token = model, engine, token
        self._created = int(time.time())
        self._metrics = Metrics(engine)

    def app(self) -> Starlette:
        """Return the application."""
        routes = [
            Route("/health", self._health),
            Route("/metrics", self._answering(self._page_of_metrics)),
            Route("/v1/models", self._answering(self._models)),
            Route("/v1/models/{name}", self._answering(self._the_model)),
            Route("/v1/completions", self._answering(self._complete), methods=["POST"]),
            Route("/v1/chat/completions", self._answering(self._chat), methods=["POST"]),
        ]
        kinds = (RefusedError, EndedError, HTTPException, Exception)
        return Starlette(routes=routes, exception_handlers=dict.fromkeys(kinds, self._refuse))

    def _answering(self, answer: Handler) -> Handler:
        """Return what asks for the token first."""

        async def handle(request: HttpRequest) -> Response:
            given = request.headers.get("Authorization", "").encode("utf-8", "replace")
            if not hmac.compare_digest(given, f"Bearer {self._token}".encode()):
                raise RefusedError(401, "expected this server's token: Authorization: Bearer ...")
            response = await answer(request)
            self._metrics.answered(response.status_code)
            return response

        return handle

    async def _refuse(self, request: HttpRequest, error: Exception) -> Response:
        """Answer with an error in the API's form. What nobody expected is raised again behind this, and shown."""
        headers: dict[str, str] = {}
        if isinstance(error, HTTPException):
            headers |= error.headers or {}
            error = RefusedError(error.status_code, f"{request.method} {request.url.path}: {error.detail}")
        elif not isinstance(error, RefusedError):
            error = RefusedError(500, str(error) if isinstance(error, EndedError) else "the server made a mistake")
        headers |= _HEADERS.get(error.status, {})
        self._metrics.answered(error.status)
        return JSONResponse(error.content, error.status, headers)

    async def _health(self, _: HttpRequest) -> Response:
        is_well = self._engine.error is None
        return PlainTextResponse("ready\n" if is_well else "failed\n", 200 if is_well else 503)

    async def _page_of_metrics(self, _: HttpRequest) -> Response:
        return Response(self._metrics.page(), media_type=CONTENT_TYPE_LATEST)

    async def _models(self, _: HttpRequest) -> Response:
        return JSONResponse({"object": "list", "data": [self._described()]})

    async def _the_model(self, http: HttpRequest) -> Response:
        self._model.check_name(http.path_params["name"])
        return JSONResponse(self._described())

    def _described(self) -> dict[str, str | int]:
        return {"id": self._model.name, "object": "model", "created": self._created, "owned_by": "shardwise"}

    async def _complete(self, http: HttpRequest) -> Response:
        return await self._answer(http, read(CompletionRequest, await _body(http)), Completions())

    async def _chat(self, http: HttpRequest) -> Response:
        return await self._answer(http, read(ChatRequest, await _body(http)), Conversations())

    async def _answer(self, http: HttpRequest, request: Request, form: Form) -> Response:
        loop, news = asyncio.get_running_loop(), NewsQueue()

        def tell(new: News | Exception) -> None:
            try:
                loop.call_soon_threadsafe(news.put_nowait, new)
            except RuntimeError:  # the loop is closed, and with it every connection: nobody listens
                return

        texts = self._model.texts(request, tell)
        if not self._engine.add(texts):
            raise RefusedError(429, f"{self._engine.num_waiting} texts wait already; come again in a second")
        head = {"id": f"{form.prefix}-{uuid4().hex}", "created": int(time.time()), "model": self._model.name}
        if request.stream:
            return Stream(form, request, texts, news, head)
        return JSONResponse(head | await whole(form, http, request, texts, news))


async def _body(request: HttpRequest) -> bytes:
    """Return a body; RefusedError as soon as it is too long, and nothing more is read of it."""
    body = bytearray()
    try:
        async for part in request.stream():
            body += part
            if len(body) > MAX_BODY_BYTES:
                raise RefusedError(413, f"the body is longer than {MAX_BODY_BYTES:,} bytes, expected at most as many")
    except ClientDisconnect as error:
        raise gone_away() from error
    return bytes(body)
