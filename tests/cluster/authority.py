"""Certificates of a test cluster and the kubeconfigs that carry them. Called by the API server and by the nodes."""

import base64
import json
from pathlib import Path

from tests.cluster.commands import run

_DAYS = ("-days", "365")
_NEW_KEY = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", *_DAYS)


class Authority:
    """A certificate authority in a folder: `NAME.crt` and `NAME.key` of whatever it has signed."""

    def __init__(self, folder: Path) -> None:
        """Make the authority and the key of service accounts in the new folder."""
        folder.mkdir()
        self.folder = folder
        self._make("ca", "/CN=shardwise-ca")
        key, public = folder / "service-account.key", folder / "service-account.pub"
        run("openssl", "ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", key)
        run("openssl", "ec", "-in", key, "-pubout", "-out", public)

    def sign(self, name: str, subject: str, *names: str) -> None:
        """Make a certificate for servers and clients.

        Args:
            name: of its files.
            subject: who it is, as `/O=group/CN=user`.
            names: where it serves, as `DNS:...` and `IP:...`.
        """
        self._make(
            name,
            subject,
            *("-CA", self.folder / "ca.crt", "-CAkey", self.folder / "ca.key"),
            *("-addext", "basicConstraints=critical,CA:FALSE"),
            *("-addext", "extendedKeyUsage=serverAuth,clientAuth"),
            *("-addext", f"subjectAltName={','.join(names) or f'DNS:{name}'}"),
        )

    def write_kubeconfig(self, path: Path, name: str, server: str) -> None:
        """Write all that user `name` needs, in one file: it can be copied, or mounted into a pod."""
        cluster = {"server": server, "certificate-authority-data": self._data("ca.crt")}
        user = {"client-certificate-data": self._data(f"{name}.crt"), "client-key-data": self._data(f"{name}.key")}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "shardwise", "cluster": cluster}],
            "users": [{"name": name, "user": user}],
            "contexts": [{"name": "shardwise", "context": {"cluster": "shardwise", "user": name}}],
            "current-context": "shardwise",
        }
        path.write_text(json.dumps(config, indent=2))
        path.chmod(0o600)

    def _make(self, name: str, subject: str, *words: str | Path) -> None:
        files = ("-keyout", self.folder / f"{name}.key", "-out", self.folder / f"{name}.crt")
        run(*_NEW_KEY, "-subj", subject, *words, *files)

    def _data(self, file: str) -> str:
        return base64.b64encode((self.folder / file).read_bytes()).decode()
