"""shardwise.cli.live: whom a run directory may have asked, and with what."""

import http.server
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from shardwise.cli.live import ask
from shardwise.cli.run_directory import Fetched
from shardwise.launcher.agent.client import NoLeaderError
from shardwise.protocol.contract import LOGS, STATUS

_SECRET = "what-opens-something-else"  # noqa: S105  it opens nothing


@dataclass
class Listener:
    """Who listens at an address, and what was sent there."""

    url: str
    heard: list[str | None] = field(default_factory=list)


@pytest.fixture
def listener() -> Iterator[Listener]:
    """Whoever listens where a run directory says that its leader does."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            found.heard.append(self.headers["Authorization"])
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        found = Listener(f"http://127.0.0.1:{server.server_port}")
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield found
        server.shutdown()


def _say(directory: Path, listener: Listener, token: Path) -> None:
    """Write what a launcher does into the run directory."""
    (directory / LOGS).mkdir(exist_ok=True)
    (directory / LOGS / STATUS).write_text(json.dumps({"url": listener.url, "tokenFile": str(token)}))


@pytest.fixture
def token(tmp_path: Path) -> Path:
    """A file with a secret, in a folder of its own, with the name of a launcher's."""
    path = tmp_path / "scratch" / "status-token"
    path.parent.mkdir()
    path.write_text(_SECRET)
    return path


def test_the_launcher_of_a_live_run_is_asked_with_its_token(tmp_path: Path, listener: Listener, token: Path) -> None:
    """Whose name and owner are those of what it has written itself."""
    _say(tmp_path, listener, token)
    assert ask(tmp_path, "GET", "/status") == {}
    assert listener.heard == [f"Bearer {_SECRET}"]


@pytest.mark.parametrize("kind", ["another name", "a link"])
def test_no_other_file_is_sent(kind: str, tmp_path: Path, listener: Listener, token: Path) -> None:
    """Whoever has written the run directory gets no file of this person's that it names, nor by a link to it."""
    own = token.with_name("id_rsa")
    token.rename(own)
    if kind == "a link":
        token.symlink_to(own)
    _say(tmp_path, listener, token if kind == "a link" else own)
    with pytest.raises(NoLeaderError):
        ask(tmp_path, "GET", "/status")
    assert listener.heard == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file away")
def test_no_token_of_another_person_is_sent(tmp_path: Path, listener: Listener, token: Path) -> None:
    """That of one's own launcher stays here when somebody else's run directory names it."""
    _say(tmp_path, listener, token)
    os.chown(tmp_path / LOGS / STATUS, 65534, -1)
    with pytest.raises(NoLeaderError, match="is not its launcher's"):
        ask(tmp_path, "GET", "/status")
    assert listener.heard == []


def test_a_run_in_a_bucket_is_not_asked(tmp_path: Path, listener: Listener, token: Path) -> None:
    """Its files are fetched as this person's own, so that their owner says nothing."""
    _say(tmp_path, listener, token)
    fetched = Fetched(url="s3://bucket/run", live=True, files={})
    (tmp_path / ".fetched.json").write_text(fetched.model_dump_json())
    with pytest.raises(NoLeaderError, match="s3://bucket/run"):
        ask(tmp_path, "GET", "/status")
    assert listener.heard == []


@pytest.mark.parametrize(
    "said", ["", "[1]", "{}", '{"url": 1, "tokenFile": "status-token"}', '{"url": "x", "tokenFile": []}']
)
def test_a_damaged_word_of_who_leads_is_no_leader(tmp_path: Path, said: str) -> None:
    """A file that a kill has cut, or another program has written, is named, and nothing is asked."""
    (tmp_path / LOGS).mkdir()
    (tmp_path / LOGS / STATUS).write_text(said)
    with pytest.raises(NoLeaderError, match=f"{LOGS}/{STATUS}: does not say where"):
        ask(tmp_path, "GET", "/status")
