"""The API server as its administrator sees it: JSON over HTTPS, and kubectl. For tests; the operator has its own."""

import json
import ssl
import urllib.request
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

from tests.cluster.commands import attempt, run


class RefusedError(Exception):
    """The API server answered with an error; `status` is its HTTP status, the text is its message."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {json.loads(text)['message'] if text.startswith('{') else text}")
        self.status = HTTPStatus(status)


class Client:
    """Requests to one API server with the certificate of its administrator."""

    def __init__(self, url: str, certificates: Path, kubeconfig: Path, programs: Path) -> None:
        """Read the certificates, which must exist; the server need not answer yet."""
        self.url, self.kubeconfig, self._kubectl = url, kubeconfig, programs / "kubectl"
        trust = ssl.create_default_context(cafile=certificates / "ca.crt")
        trust.load_cert_chain(certificates / "admin.crt", certificates / "admin.key")
        direct = urllib.request.ProxyHandler({})
        self._opener = urllib.request.build_opener(direct, urllib.request.HTTPSHandler(context=trust))

    def request(self, method: str, path: str, body: object = None, content_type: str = "application/json") -> Any:
        """Send one request.

        Args:
            method: GET, POST, PUT, PATCH or DELETE.
            path: from the first slash, with the query.
            body: an object to send as JSON.
            content_type: of the body; PATCH and server-side apply have their own.

        Returns:
            The answer's object; the text where it is not JSON.

        Raises:
            RefusedError: an answer of 400 or more.
            OSError: no answer.
        """
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": content_type, "Accept": "application/json"}
        asked = urllib.request.Request(self.url + path, data, headers, method=method)  # noqa: S310  our own https address
        try:
            with self._opener.open(asked, timeout=30) as answer:
                text = answer.read().decode()
        except HTTPError as refusal:
            with refusal:
                raise RefusedError(refusal.code, refusal.read().decode()) from None
        return json.loads(text) if text.startswith("{") else text

    def answers(self, path: str) -> bool:
        """Whether a GET of the path succeeds now."""
        try:
            self.request("GET", path)
        except (OSError, RefusedError):
            return False
        return True

    @property
    def ready_nodes(self) -> set[str]:
        """The nodes that are Ready."""
        return {
            node["metadata"]["name"]
            for node in self.request("GET", "/api/v1/nodes")["items"]
            for condition in node["status"].get("conditions", ())
            if condition["type"] == "Ready" and condition["status"] == "True"
        }

    def kubectl(self, *words: str | Path, stdin: str | None = None) -> str:
        """Run kubectl and return what it printed.

        Raises:
            ClusterError: it failed; the text has what it printed.
        """
        return run(self._kubectl, "--kubeconfig", self.kubeconfig, *words, stdin=stdin)

    def refused(self, *words: str | Path, stdin: str | None = None) -> str:
        """Run a kubectl that must fail, and return what it said."""
        code, printed = attempt(self._kubectl, "--kubeconfig", self.kubeconfig, *words, stdin=stdin)
        assert code, f"this should have been refused: {' '.join(map(str, words))}\n{stdin or ''}\n{printed}"
        return printed
