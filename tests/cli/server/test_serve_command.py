"""The options of `shardwise serve`: what is wrong is said before a model is loaded; it serves in test_main_job."""

import socket
from pathlib import Path

import pytest
from tests.cli.conftest import QUICKSTART, Command

from shardwise.cli.serve import TOKEN_ENV, _shown, _token
from shardwise.job.load import dump, load
from shardwise.job.resolve import resolve
from shardwise.protocol.contract import ExitCode
from shardwise.protocol.errors import UsageError

GOOD = "a-token-that-is-long-enough"


@pytest.fixture(autouse=True)
def _without_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_ENV, raising=False)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return the directory of a run that has saved nothing yet."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").touch()
    (tmp_path / "run" / "job.yaml").write_text(dump(resolve(load(QUICKSTART, []))))
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read"),
        (b"", "given a token of 0 characters, expected 16 or more"),
        (b"  fifteen-letters\n", "given a token of 15 characters, expected 16 or more"),
        (b"sixteen letters with spaces", "of ASCII, no spaces"),
        (b"sixteen-letters-and\na-line", "of ASCII, no spaces"),
        ("sixteen-letters-é".encode(), "of ASCII, no spaces"),
        (b"sixteen-letters-\xff", "cannot be read"),
    ],
)
def test_a_file_that_has_no_token(content: bytes | None, words: str, command: Command, tmp_path: Path) -> None:
    """The file is named, and what is expected, but not what it holds."""
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    ended = command("serve", "anywhere", "--token-file", str(path))
    assert ended.code == ExitCode.USAGE
    assert ended.error.startswith(f"error: --token-file: {path}")
    assert words in ended.error
    assert "letters" not in ended.error


def test_a_variable_that_has_no_token(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable is named, but not what it holds; an empty one is no token either."""
    for token in ("short", ""):
        monkeypatch.setenv(TOKEN_ENV, token)
        ended = command("serve", "anywhere")
        assert ended.code == ExitCode.USAGE
        assert ended.error.startswith(f"error: {TOKEN_ENV}: given a token of {len(token)} characters")
        assert "short" not in ended.error


def test_where_the_token_is_from(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A file counts before the variable; without both a new one is made, which is told, each time another."""
    made = {_token(None) for _ in range(2)}
    assert (len(made), {is_new for _, is_new in made}) == (2, {True})
    assert all(len(token) > 30 for token, _ in made)
    monkeypatch.setenv(TOKEN_ENV, f"{GOOD}-of-the-variable")
    assert _token(None) == (f"{GOOD}-of-the-variable", False)
    (tmp_path / "token").write_text(f"\n {GOOD} \r\n")
    assert _token(tmp_path / "token") == (GOOD, False)
    monkeypatch.setenv(TOKEN_ENV, "short")
    assert _token(tmp_path / "token") == (GOOD, False)
    with pytest.raises(UsageError, match=TOKEN_ENV):
        _token(None)


def test_a_directory_that_is_no_run(command: Command, tmp_path: Path) -> None:
    """It is named, and nothing is listened to or loaded."""
    for directory in (tmp_path, tmp_path / "nothing"):
        ended = command("serve", str(directory))
        assert ended.code == ExitCode.USAGE
        assert str(directory) in ended.error
        assert "loading" not in ended.error


def test_a_port_that_is_taken(run: Path, command: Command) -> None:
    """It is said at once, before the model is loaded, with what to do."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = command("serve", str(run), "--port", str(port))
    assert ended.code == ExitCode.USAGE
    assert f"--host 127.0.0.1 --port {port}: cannot listen there (Address already in use" in ended.error
    assert "give another, or 0 for any free port" in ended.error
    assert "loading" not in ended.error


@pytest.mark.parametrize("host", ["192.0.2.1", "a" * 80, "::2"])
def test_a_host_that_is_not_this_machine(host: str, run: Path, command: Command) -> None:
    """It is named, in words."""
    ended = command("serve", str(run), "--host", host, "--port", "0")
    assert ended.code == ExitCode.USAGE
    assert f"--host {host} --port 0: cannot listen there" in ended.error


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (["--port", "65536"], "--port"),
        (["--port", "-1"], "--port"),
        (["--rows", "0"], "--rows"),
        (["--step=-1"], "--step"),
    ],
)
def test_a_number_that_cannot_be(options: list[str], name: str, command: Command) -> None:
    """The option is named."""
    ended = command("serve", "anywhere", *options)
    assert (ended.code, f"Invalid value for '{name}'" in ended.error) == (ExitCode.USAGE, True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--average"], "keeps no average of its weights"),
        (["--chat-template", "alpaca"], "--chat-template: given 'alpaca', expected one of chatml, llama3"),
    ],
)
def test_what_the_run_has_not(options: list[str], words: str, run: Path, command: Command) -> None:
    """An average that is not kept and a template that nobody knows are refused by name."""
    ended = command("serve", str(run), "--port", "0", *options)
    assert (ended.code, words in ended.error) == (ExitCode.USAGE, True)


@pytest.mark.parametrize(("host", "shown"), [("127.0.0.1", "127.0.0.1"), ("::1", "[::1]")])
def test_the_address_can_be_asked(host: str, shown: str) -> None:
    """It has the port that was free, and IPv6 in brackets, as a URL has."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, 0), family=family)
    except OSError as error:
        pytest.skip(f"this machine has no {host}: {error}")
    with listener:
        assert _shown(listener) == f"{shown}:{listener.getsockname()[1]}"
