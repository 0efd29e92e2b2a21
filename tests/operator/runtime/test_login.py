"""Where the API server is and who we are to it: what is read here, and what is left to the official client."""

import base64
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.cluster.api_server import ApiServer

from shardwise_operator.runtime.connection import Connection
from shardwise_operator.runtime.kinds import NODES
from shardwise_operator.runtime.login import TokenFile, login_of_pod, read_login
from shardwise_operator.runtime.metrics import Metrics
from shardwise_operator.runtime.official_client import official_login
from shardwise_operator.runtime.pace import Limiter
from shardwise_operator.runtime.transport import Api

_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


@pytest.fixture(autouse=True)
def _without_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in _PROXIES:
        monkeypatch.delenv(name, raising=False)


def _written(
    folder: Path, *, user: dict[str, Any] | None = None, cluster: dict[str, Any] | None = None, **more: Any
) -> str:
    """A kubeconfig; its path."""
    path = folder / "kubeconfig"
    whole = {
        "current-context": "c",
        "contexts": [{"name": "other", "context": {}}, {"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "http://127.0.0.1:1/", **(cluster or {})}}],
        "users": [{"name": "u", "user": {"token": "word"} if user is None else user}],
        **more,
    }
    path.write_text(yaml.safe_dump(whole), encoding="utf-8")
    return str(path)


def _asks(kubeconfig: str) -> list[str]:
    """What the API server answers to who this file says."""
    login = read_login(kubeconfig)
    assert login is not None
    pages = Api(Connection(login), Metrics(), limiter=Limiter(9, 9)).pages(NODES)
    return [node["metadata"]["name"] for page in pages for node in page.items]


def test_a_plain_file_is_read(tmp_path: Path) -> None:
    """The user and the cluster of its context; a token from a file beside it is taken too."""
    plain = read_login(_written(tmp_path))
    (tmp_path / "token").write_text("from-a-file\n", encoding="utf-8")
    from_file = read_login(_written(tmp_path, user={"tokenFile": "token"}))
    nobody = read_login(_written(tmp_path, user={}))

    assert plain is not None
    assert from_file is not None
    assert nobody is not None
    assert (plain.url, plain.authorization(), plain.tls) == ("http://127.0.0.1:1", "Bearer word", None)
    assert from_file.authorization() == "Bearer from-a-file"
    assert nobody.authorization() == ""


@pytest.mark.parametrize("inline", [True, False])
def test_certificates_open_the_api_server(api_server: ApiServer, tmp_path: Path, *, inline: bool) -> None:
    """Those of files beside the kubeconfig, and those that stand in it; of the latter no file is left behind."""
    config = yaml.safe_load(Path(api_server.kubeconfig).read_text(encoding="utf-8"))
    groups = (config["clusters"][0]["cluster"], config["users"][0]["user"])
    for group, name in ((0, "certificate-authority"), (1, "client-certificate"), (1, "client-key")):
        fields = groups[group]
        file, given = fields.pop(name, None), fields.pop(f"{name}-data", None)
        held = base64.b64decode(given) if given else (Path(api_server.kubeconfig).parent / file).read_bytes()
        if inline:
            fields[f"{name}-data"] = base64.b64encode(held).decode()
        else:
            (tmp_path / name).write_bytes(held)
            fields[name] = name
    path = tmp_path / "kubeconfig"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")

    assert _asks(str(path)) == _asks(str(api_server.kubeconfig))


@pytest.mark.parametrize(
    "fields",
    [
        {"user": {"exec": {"command": "login", "apiVersion": "client.authentication.k8s.io/v1"}}},
        {"user": {"auth-provider": {"name": "oidc"}}},
        {"user": {"username": "a", "password": "b"}},
        {"cluster": {"proxy-url": "http://proxy:3128"}},
        {"current-context": "none"},
        {"users": []},
        {"contexts": None},
        {"cluster": {"server": "https://127.0.0.1:1", "certificate-authority": "not-there"}},
        {"cluster": {"server": "https://127.0.0.1:1", "certificate-authority-data": "eA=="}},
    ],
    ids=str,
)
def test_what_is_not_plain_is_left_to_the_official_client(tmp_path: Path, fields: dict[str, Any]) -> None:
    """Plugins and proxies it knows, and of what is broken it says where."""
    assert read_login(_written(tmp_path, **fields)) is None


def test_several_files_and_none_are_left_to_it_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """$KUBECONFIG may be a list of files, which it merges; and a proxy may be asked for by the environment."""
    path = _written(tmp_path)
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    monkeypatch.setenv("KUBECONFIG", path)
    assert read_login("") is not None

    monkeypatch.setenv("KUBECONFIG", f"{path}:{tmp_path}/other")
    assert read_login("") is None
    assert read_login(str(tmp_path / "none")) is None
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    assert read_login(path) is None


def test_the_official_client_finds_the_same(api_server: ApiServer) -> None:
    """The same server, opened by the same certificates."""
    login = official_login(str(api_server.kubeconfig))
    own = read_login(str(api_server.kubeconfig))

    assert own is not None
    assert (login.url, login.authorization(), login.proxy) == (own.url, own.authorization(), "")
    assert next(Api(Connection(login), Metrics(), limiter=Limiter(9, 9)).pages(NODES)).items is not None


def test_a_plugin_says_who_we_are(tmp_path: Path) -> None:
    """By the official client: its token is sent."""
    answer = '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"told"}}'
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "echo",
        "args": [answer],
        "interactiveMode": "Never",
    }

    assert official_login(_written(tmp_path, user={"exec": plugin})).authorization() == "Bearer told"


def test_a_proxy_is_gone_through(tmp_path: Path) -> None:
    """That of the file; and one that this cannot speak with is refused by name, not passed by."""
    login = official_login(_written(tmp_path, cluster={"proxy-url": "http://127.0.0.1:9"}))
    other = official_login(_written(tmp_path, cluster={"proxy-url": "socks5://127.0.0.1:9"}))

    assert login.proxy == "http://127.0.0.1:9"
    with pytest.raises(ValueError, match=r"socks5://127\.0\.0\.1:9: expected one as in http://"):
        Connection(other)


def test_a_pods_address_may_be_of_ipv6(tmp_path: Path, api_server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has colons of its own."""
    (tmp_path / "token").write_text("word", encoding="utf-8")
    (tmp_path / "ca.crt").write_bytes((api_server.folder / "pki" / "ca.crt").read_bytes())
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")

    assert login_of_pod(tmp_path).url == "https://[fd00::1]:443"


def test_a_token_is_read_again_after_a_minute(tmp_path: Path) -> None:
    """Not before; and while its file cannot be read, the token before it goes on."""
    path, now = tmp_path / "token", [0.0]
    path.write_text("first\n", encoding="utf-8")
    token = TokenFile(path, lambda: now[0])
    path.write_text("second\n", encoding="utf-8")

    now[0] = 59.0
    assert token() == "Bearer first"
    now[0] = 60.0
    assert token() == "Bearer second"
    path.unlink()
    now[0] = 120.0
    assert token() == "Bearer second"


def test_the_official_client_is_not_imported_without_need(tmp_path: Path) -> None:
    """It takes 25 MiB, more than a third of what the operator has without a job."""
    code = (
        "import sys, shardwise_operator.main as main;"
        f"main.connect({_written(tmp_path)!r});"
        "print(sorted({'kubernetes', 'urllib3', 'requests'} & sys.modules.keys()))"
    )
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

    assert said.stdout.strip() == "[]"
