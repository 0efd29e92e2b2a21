"""shardwise_operator.page.serve: who gets the page of all jobs, and what it costs."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

import pytest
from tests.operator.page.rows import Job, many, told_of
from tests.page.browser import Browser

from shardwise_operator.page.serve import JobsPages
from shardwise_operator.runtime.access import TokenFile
from shardwise_operator.runtime.web import Request, WebServer

TOKEN = "t" * 48
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
ALLOWED = {"Authorization": f"Bearer {TOKEN}"}


@dataclass
class Served:
    """A server of the page, and what it has read."""

    port: int = 0
    listed: bool = True
    jobs: list[Job] = field(default_factory=many)
    reads: int = 0
    now: float = 0.0

    def read(self) -> list[Job]:
        """Return the jobs, as the cache would."""
        self.reads += 1
        return self.jobs

    def ask(self, method: str, path: str, body: str = "", headers: dict[str, str] | None = None) -> tuple[int, str]:
        """Return the status and the body of an answer."""
        answer, text = self.whole(method, path, body, headers)
        return answer.status, text

    def whole(
        self, method: str, path: str, body: str = "", headers: dict[str, str] | None = None
    ) -> tuple[HTTPResponse, str]:
        """Return an answer with its body."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body or None, headers or {})
            answer = connection.getresponse()
            return answer, answer.read().decode()
        finally:
            connection.close()


@pytest.fixture
def token(tmp_path: Path) -> Path:
    """Return the file of the token."""
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n", encoding="utf-8")
    return file


@pytest.fixture
def served(token: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """Return a server, whose clock the test moves."""
    made = Served()
    monkeypatch.setattr("shardwise_operator.page.serve.time.monotonic", lambda: made.now)
    page = JobsPages(made.read, lambda: made.listed, token=TokenFile(token), namespace="team")
    with WebServer("127.0.0.1:0", page.pages, forms=page.forms) as server:
        made.port = server.port
        yield made


def test_who_has_the_token_sees_the_jobs(served: Served) -> None:
    """By the header the page and its data, by the form the page: the same jobs in each, and nothing may keep them."""
    status, page = served.ask("GET", "/jobs", headers=ALLOWED)
    answer, posted = served.whole("POST", "/jobs", f"token={TOKEN}", FORM)
    told_status, data = served.ask("GET", "/jobs.json", headers=ALLOWED)

    assert (status, answer.status, told_status) == (200, 200, 200)
    assert posted == page
    assert [job["name"] for job in told_of(page)["jobs"]] == ["ended", "fast", "slow", "new", "waits"]
    assert [job["name"] for job in json.loads(data)["jobs"]] == ["ended", "fast", "slow", "new", "waits"]
    assert json.loads(data)["jobs"][0]["hostsReady"] == 0
    assert answer.getheader("Cache-Control") == "no-store"
    assert answer.getheader("Content-Security-Policy") == "frame-ancestors 'none'"
    assert answer.getheader("X-Content-Type-Options") == "nosniff"


@pytest.mark.parametrize(
    ("method", "path", "body", "headers"),
    [
        ("GET", "/jobs", "", {}),
        ("GET", f"/jobs?token={TOKEN}", "", {}),
        ("GET", "/jobs", "", {"Authorization": "Bearer "}),
        ("GET", "/jobs", "", {"Authorization": f"Bearer {TOKEN[1:]}"}),
        ("GET", "/jobs", "", {"Authorization": f"Basic {TOKEN}"}),
        ("GET", "/jobs", "", {"Authorization": TOKEN}),
        ("GET", "/jobs", "", {"Cookie": f"token={TOKEN}"}),
        ("GET", "/jobs.json", "", {}),
        ("GET", "/jobs.json", "", {"Authorization": f"Bearer {TOKEN}x"}),
        ("POST", "/jobs", "", {"Content-Length": "0", **FORM}),
        ("POST", "/jobs", "token=", FORM),
        ("POST", "/jobs", f"token={TOKEN}x", FORM),
        ("POST", "/jobs", f"other={TOKEN}", FORM),
        ("POST", "/jobs", f"a=b&token={TOKEN}", FORM),
        ("POST", "/jobs", "token=\u00e9", FORM),
    ],
)
def test_nobody_else_does(served: Served, method: str, path: str, body: str, headers: dict[str, str]) -> None:
    """Without the token, or with it in the wrong place, an answer is a 401, holds no name of a job, and reads none."""
    answer, text = served.whole(method, path, body, headers)

    assert answer.status == 401
    assert answer.getheader("WWW-Authenticate") == "Bearer"
    assert not any(name in text for name in ("fast", "slow", "ended", "waits"))
    assert served.reads == 0


def test_a_browser_gets_a_form(served: Served) -> None:
    """Who comes without a token is asked for it, and told when it was the wrong one."""
    form = served.ask("GET", "/jobs")[1]
    again = served.ask("POST", "/jobs", "token=wrong", FORM)[1]

    assert '<form method="post" action="/jobs">' in form
    assert 'role="alert"' not in form
    assert 'role="alert"' in again
    assert "default-src 'none'" in form


def test_a_browser_that_posts_the_form_draws_the_page(served: Served, browser: Browser) -> None:
    """As it is served, with all of its policies, the page's own script runs."""
    form = (
        f'<form method="post" action="http://127.0.0.1:{served.port}/jobs"><input name="token" value="{TOKEN}"></form>'
    )
    shown = browser.shown(f"<!doctype html>{form}<script>document.forms[0].submit()</script>")

    assert 'data-ready="true"' in shown
    assert shown.count('<td class="job"') == 5


@pytest.mark.parametrize(
    ("headers", "body"),
    [({"Content-Length": "5000"}, ""), ({"Content-Length": "-1"}, ""), ({"Content-Length": "x"}, "")],
)
def test_a_form_is_small(served: Served, headers: dict[str, str], body: str) -> None:
    """A length that is none, or too much, is refused before anything is read of it."""
    assert served.ask("POST", "/jobs", body, headers)[0] == 413
    assert served.ask("POST", "/jobs.json", f"token={TOKEN}", FORM)[0] == 404


def test_a_token_is_changed_without_a_restart(served: Served, token: Path) -> None:
    """The new token opens the page and the old one does not; a file that is gone or empty opens it to nobody."""
    token.write_text("n" * 48, encoding="utf-8")
    assert served.ask("GET", "/jobs", headers=ALLOWED)[0] == 401
    assert served.ask("GET", "/jobs", headers={"Authorization": f"Bearer {'n' * 48}"})[0] == 200
    token.write_text("", encoding="utf-8")
    assert served.ask("GET", "/jobs", headers={"Authorization": "Bearer "})[0] == 401
    token.unlink()
    assert served.ask("POST", "/jobs", "token=", FORM)[0] == 401


def test_a_page_is_kept_for_a_moment(served: Served) -> None:
    """Many who reload cost no more than one, and after two seconds the page has what has changed."""
    for path in ("/jobs", "/jobs.json", "/jobs"):
        served.ask("GET", path, headers=ALLOWED)
    assert served.reads == 1
    served.jobs = served.jobs[:1]
    assert len(json.loads(served.ask("GET", "/jobs.json", headers=ALLOWED)[1])["jobs"]) == 5
    served.now = 2.0
    assert len(json.loads(served.ask("GET", "/jobs.json", headers=ALLOWED)[1])["jobs"]) == 1
    assert served.reads == 2


def test_a_page_that_takes_long_is_kept_for_longer(served: Served, token: Path) -> None:
    """A page that takes a second to make takes no more than a fiftieth of a processor."""

    def slow() -> list[Job]:
        served.now += 1.0
        return many()

    page = JobsPages(slow, lambda: True, token=TokenFile(token)).pages["/jobs.json"]
    asked = Request(authorization=ALLOWED["Authorization"])
    page(asked)
    made_at = served.now
    served.now = made_at + 49.0
    page(asked)
    assert served.now == made_at + 49.0
    served.now = made_at + 50.0
    page(asked)
    assert served.now == made_at + 51.0


def test_half_a_list_is_not_shown(served: Served) -> None:
    """Until all jobs are in the cache there is no page; a table that lacks some would be believed."""
    served.listed = False
    assert served.ask("GET", "/jobs", headers=ALLOWED) == (503, "the jobs are not listed yet\n")
    assert served.reads == 0
    served.listed = True
    assert served.ask("GET", "/jobs", headers=ALLOWED)[0] == 200
