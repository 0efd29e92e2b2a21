"""Requests to the API server, one method for each verb. All requests go through here.

Objects are plain dicts. Every call has a time limit, waits for its turn, is counted, and raises one of `errors`.
Nothing is tried again here: that is for the caller, who knows whether the decision still holds.
"""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from urllib3 import BaseHTTPResponse
from urllib3.exceptions import HTTPError

from shardwise_operator.runtime.connection import Connection
from shardwise_operator.runtime.errors import (
    ConflictError,
    InvalidError,
    NotFoundError,
    NotLeadingError,
    UnreachableError,
    error_of,
)
from shardwise_operator.runtime.kinds import Kind, Object, Objects
from shardwise_operator.runtime.metrics import Metrics
from shardwise_operator.runtime.pace import Limiter
from shardwise_operator.runtime.stream import EventStream

FIELD_MANAGER = "shardwise"

_PAGE_OBJECTS = 500
_WATCH_MARGIN_SECONDS = 10.0
_JSON = "application/json"
# Of the answer to a write only what the server has added is of use; the rest was sent to it.
_METADATA_ALONE = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_METADATA_ALONE_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
_MERGE = "application/merge-patch+json"
_APPLY = "application/apply-patch+yaml"  # JSON is YAML


@dataclass(frozen=True)
class Page:
    """Some of the objects of a list, and the version of the whole list."""

    items: Objects
    resource_version: str


class Api:
    """The API server for one part of this process, with a rate and a time limit of its own."""

    def __init__(
        self,
        connection: Connection,
        metrics: Metrics,
        *,
        limiter: Limiter,
        read_seconds: float = 30.0,
        may_write: Callable[[], bool] = lambda: True,
        field_manager: str = FIELD_MANAGER,
    ) -> None:
        """Send through `connection`; every write asks `may_write` first, and is owned by `field_manager`."""
        self._connection = connection
        self._metrics = metrics
        self._limiter = limiter
        self._read_seconds = read_seconds
        self._may_write = may_write
        self._field_manager = field_manager

    def get(self, kind: Kind, namespace: str, name: str) -> Object:
        """Return one object; NotFoundError if it does not exist."""
        return self._read("get", kind, kind.path(namespace, name), {})

    def pages(
        self, kind: Kind, namespace: str = "", *, labels: str = "", metadata_alone: bool = False
    ) -> Iterator[Page]:
        """Yield the objects that `labels` selects, or only their metadata, in pages of one consistent list.

        Raises:
            GoneError: the list took so long that the server has dropped it; start again.
        """
        query = {"limit": str(_PAGE_OBJECTS)} | ({"labelSelector": labels} if labels else {})
        accept = _METADATA_ALONE_LIST if metadata_alone else _JSON
        while True:
            answer = self._read("list", kind, kind.path(namespace), query, accept=accept)
            named = {"apiVersion": kind.api_version, "kind": kind.kind}  # the server leaves these out in a list
            items = [named | item for item in answer["items"] or ()]  # null for an empty list of metadata
            yield Page(items, answer["metadata"]["resourceVersion"])
            if not (token := answer["metadata"].get("continue")):
                return
            query["continue"] = token

    def watch(
        self,
        kind: Kind,
        namespace: str = "",
        *,
        labels: str = "",
        metadata_alone: bool = False,
        resource_version: str,
        timeout_seconds: float,
    ) -> EventStream:
        """Watch from `resource_version` on, for about `timeout_seconds`; longer silence ends it as unreachable.

        Raises:
            GoneError: `resource_version` is too old; list again. The stream may raise it too.
        """
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(max(1, round(timeout_seconds))),
        } | ({"labelSelector": labels} if labels else {})
        limit, accept = timeout_seconds + _WATCH_MARGIN_SECONDS, _METADATA_ALONE if metadata_alone else _JSON
        return EventStream(
            self._send(
                "watch", kind, "GET", kind.path(namespace), query, accept=accept, read_seconds=limit, stream=True
            )
        )

    def create(self, kind: Kind, obj: Object) -> Object:
        """Make an object; what was sent with its metadata of now. AlreadyExistsError where its name is taken.

        A field that the API server does not know is an InvalidError: a pod has those that a job's author wrote.
        """
        path, query = kind.path(_namespace(obj)), {"fieldValidation": "Strict"}
        made = self._write("create", kind, "POST", path, obj, accept=_METADATA_ALONE, query=query)
        return obj | {"metadata": _read_metadata(made)}

    def apply(self, kind: Kind, obj: Object, *, force: bool = True) -> Object:
        """Server-side apply as the field manager; a UID in the object's metadata is a precondition."""
        query = {"force": str(force).lower()}
        return self._write("apply", kind, "PATCH", _path(kind, obj), obj, content_type=_APPLY, query=query)

    def replace(self, kind: Kind, obj: Object) -> Object:
        """Replace the whole object, if it still has this resourceVersion; else ConflictError."""
        return self._write("update", kind, "PUT", _path(kind, obj), obj)

    def replace_status(self, kind: Kind, obj: Object) -> Object:
        """Replace the status alone, under the same condition; return the object with the server's metadata."""
        # The server ignores the spec in a status write, so it need not travel.
        sent = {field: value for field, value in obj.items() if field != "spec"}
        path = _path(kind, obj, "status")
        written = self._write("update_status", kind, "PUT", path, sent, accept=_METADATA_ALONE)
        return obj | {"metadata": _read_metadata(written)}

    def patch(
        self, kind: Kind, namespace: str, name: str, patch: Object, *, uid: str = "", resource_version: str = ""
    ) -> Object:
        """Apply a JSON merge patch, if the object still has this UID and resourceVersion; else ConflictError."""
        # In a merge patch they are preconditions: the server refuses to change either of them.
        precondition = {"uid": uid, "resourceVersion": resource_version}
        metadata = patch.get("metadata", {}) | {field: value for field, value in precondition.items() if value}
        path, body = kind.path(namespace, name), patch | {"metadata": metadata}
        return self._write("patch", kind, "PATCH", path, body, content_type=_MERGE)

    def delete(self, kind: Kind, namespace: str, name: str, *, uid: str, grace_seconds: int | None = None) -> None:
        """Delete the object with this UID; ConflictError if another has its name, nothing if none does."""
        body: Object = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        try:
            self._write("delete", kind, "DELETE", kind.path(namespace, name), body)
        except NotFoundError:
            return

    def _read(self, verb: str, kind: Kind, path: str, query: dict[str, str], *, accept: str = _JSON) -> Object:
        return _decoded(self._send(verb, kind, "GET", path, query, accept=accept).data)

    def _write(
        self,
        verb: str,
        kind: Kind,
        method: str,
        path: str,
        body: Object,
        *,
        accept: str = _JSON,
        content_type: str = _JSON,
        query: dict[str, str] | None = None,
    ) -> Object:
        if method != "DELETE":
            query = {"fieldManager": self._field_manager} | (query or {})
        try:
            answer = self._send(
                verb, kind, method, path, query or {}, body=body, accept=accept, content_type=content_type
            )
        except InvalidError as error:
            if (
                method == "PATCH" and "metadata.uid" in error.message
            ):  # the server refuses another UID in a patch as a change of an immutable field
                raise ConflictError(error.status, error.reason, error.message) from error
            raise
        return _decoded(answer.data)

    def _send(  # noqa: PLR0913  as above
        self,
        verb: str,
        kind: Kind,
        method: str,
        path: str,
        query: dict[str, str],
        *,
        body: Object | None = None,
        accept: str = _JSON,
        content_type: str = _JSON,
        read_seconds: float | None = None,
        stream: bool = False,
    ) -> BaseHTTPResponse:
        self._limiter.wait()
        if body is not None and not self._may_write():  # after the wait for a turn, which may have been long
            raise NotLeadingError(f"{verb} {path}: this process does not lead, or is no longer sure that it does")
        began, status = time.monotonic(), "unreachable"
        try:
            answer = self._connection.send(
                method,
                path,
                query=query,
                body=None if body is None else json.dumps(body, separators=(",", ":")).encode(),
                content_type=content_type,
                read_seconds=read_seconds or self._read_seconds,
                accept=accept,
                stream=stream,
            )
            status = str(answer.status)
        finally:
            self._metrics.request(verb, kind.plural, status, time.monotonic() - began)
        if answer.status >= 400:
            self._refuse(answer)
        return answer

    def _refuse(self, answer: BaseHTTPResponse) -> None:
        if (seconds := answer.headers.get("Retry-After", "")).isdecimal():
            self._limiter.pause(float(seconds))
        try:
            body = json.loads(answer.data)
        except (ValueError, HTTPError):  # a proxy's page, or a body that broke off: the HTTP status is enough
            body = {"message": f"no message that could be read; {answer.reason or 'no reason'}"}
        raise error_of(answer.status, body if isinstance(body, dict) else {"message": str(body)})


def _decoded(data: bytes) -> Object:
    try:
        answer: Any = json.loads(data)
    except ValueError as error:
        raise UnreachableError(f"an answer that is not JSON: {data[:200]!r}") from error
    if not isinstance(answer, dict):
        raise UnreachableError(f"an answer that is no object: {data[:200]!r}")
    return answer


def _read_metadata(answer: Object) -> Object:
    """Return the metadata without its managedFields, which are often half of an object and of no use here."""
    try:
        return {field: value for field, value in answer["metadata"].items() if field != "managedFields"}
    except (KeyError, AttributeError) as error:
        raise UnreachableError(f"an answer without metadata: {str(answer)[:200]!r}") from error


def _path(kind: Kind, obj: Object, subresource: str = "") -> str:
    return kind.path(_namespace(obj), obj["metadata"]["name"], subresource)


def _namespace(obj: Object) -> str:
    namespace: str = obj["metadata"].get("namespace", "")
    return namespace
