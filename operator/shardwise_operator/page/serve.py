"""Serve the page of all jobs, and the same as data, to holders of its token.

Every replica serves them: all have the jobs in their caches, whether they lead or stand by. What is made is kept for a
moment, so that many who reload cost no more than one.
"""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from http import HTTPStatus

from shardwise.page.form import PAGE_HEADERS, token_form, token_of
from shardwise.page.render import filled
from shardwise_operator.page.read_jobs import read_jobs
from shardwise_operator.runtime.access import TokenFile
from shardwise_operator.runtime.kinds import Object
from shardwise_operator.runtime.web import Answer, Page, Request, guarded

PATH, DATA_PATH = "/jobs", "/jobs.json"
PACKAGE, TEMPLATE = "shardwise_operator.page", "jobs.html"
_LEAST_SECONDS = 2.0
_SHARE = 0.02  # of one processor's time, however often it is asked for
_HTML, _JSON, _PLAIN = "text/html; charset=utf-8", "application/json", "text/plain; charset=utf-8"


@dataclass(eq=False)
class JobsPages:
    """The pages.

    Attributes:
        jobs: returns all jobs that the operator looks after.
        listed: returns whether the jobs are all in the cache; nothing is shown before.
        token: the token that both pages ask for.
        namespace: what is watched; empty, all namespaces.

    """

    jobs: Callable[[], Iterable[Object]]
    listed: Callable[[], bool]
    _: KW_ONLY
    token: TokenFile
    namespace: str = ""

    def __post_init__(self) -> None:
        self._lock = threading.Lock()
        self._page, self._data = b"", b""
        self._until = float("-inf")

    @property
    def pages(self) -> dict[str, Page]:
        """What is read: `/jobs`, a form for who comes without a token, and `/jobs.json`."""
        page, data = guarded(self._shown, self.token), guarded(self._told, self.token)
        return {PATH: lambda asked: page(asked) if asked.authorization else _form(), DATA_PATH: data}

    @property
    def forms(self) -> dict[str, Page]:
        """What the form is posted to: the page is its answer."""
        return {PATH: self._posted}

    def _posted(self, request: Request) -> Answer:
        return self._shown(request) if self.token.allows(token_of(request.form)) else _form(again=True)

    def _shown(self, _: Request) -> Answer:
        return self._answer(_HTML, lambda: self._page)

    def _told(self, _: Request) -> Answer:
        return self._answer(_JSON, lambda: self._data)

    def _answer(self, kind: str, body: Callable[[], bytes]) -> Answer:
        if not self.listed():
            return Answer(HTTPStatus.SERVICE_UNAVAILABLE, _PLAIN, b"the jobs are not listed yet\n", PAGE_HEADERS)
        with self._lock:
            if time.monotonic() >= self._until:
                self._make()
            return Answer(HTTPStatus.OK, kind, body(), PAGE_HEADERS)

    def _make(self) -> None:
        began = time.monotonic()
        document = read_jobs(self.jobs(), namespace=self.namespace, now=time.time())
        data = document.model_dump_json(exclude_defaults=True)
        self._page = filled(PACKAGE, TEMPLATE, title="Training jobs", data=data).encode()
        self._data = document.model_dump_json(exclude_none=True).encode()
        ended = time.monotonic()
        self._until = ended + max(_LEAST_SECONDS, (ended - began) / _SHARE)


def _form(*, again: bool = False) -> Answer:
    where = "The notes of the chart (helm get notes) say how to read it."
    form = token_form(PATH, title="All training jobs", label="The token of this page", where=where, again=again)
    return Answer(HTTPStatus.UNAUTHORIZED, _HTML, form, {**PAGE_HEADERS, "WWW-Authenticate": "Bearer"})
