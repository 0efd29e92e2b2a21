"""Requests to the API server, one method for each verb. All requests go through here.

Objects are plain dicts. Every call has a time limit, waits for its turn, is counted, and raises one of `errors`.
Nothing is tried again here: that is for the caller, who knows whether the decision still holds.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass
from types import MappingProxyType
from typing import NoReturn

import orjson

from shardwise_operator.runtime.answers import EventStream, decoded, read_metadata
from shardwise_operator.runtime.connection import BROKEN, Answer, Connection
from shardwise_operator.runtime.errors import ConflictError, InvalidError, NotFoundError, NotLeadingError, error_of
from shardwise_operator.runtime.kinds import Kind, Object, Objects
from shardwise_operator.runtime.metrics import Metrics
from shardwise_operator.runtime.pace import Limiter

_PAGE_OBJECTS = 500
_WATCH_MARGIN_SECONDS = 10.0
_JSON = "application/json"
# Of the answer to a write only what the server has added is of use; the rest was sent to it.
_METADATA_ALONE = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
_METADATA_ALONE_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
# By the verb that Kubernetes calls a request by: the method of HTTP, and the type of the body.
_VERBS = {
    "get": ("GET", _JSON),
    "list": ("GET", _JSON),
    "watch": ("GET", _JSON),
    "create": ("POST", _JSON),
    "apply": ("PATCH", "application/apply-patch+yaml"),  # JSON is YAML
    "update": ("PUT", _JSON),
    "update_status": ("PUT", _JSON),
    "patch": ("PATCH", "application/merge-patch+json"),
    "delete": ("DELETE", _JSON),
}


@dataclass(frozen=True)
class Page:
    """Some of the objects of a list, and the version of the whole list."""

    items: Objects
    resource_version: str


@dataclass
class Api:
    """The API server for one part of this process, with a rate and a time limit of its own.

    Attributes:
        connection: what requests are sent through.
        metrics: counts them.
        limiter: their rate.
        read_seconds: their time limit.
        may_write: is asked before each write.
        field_manager: the owner of what is written.

    """

    connection: Connection
    metrics: Metrics
    _: KW_ONLY
    limiter: Limiter
    read_seconds: float = 30.0
    may_write: Callable[[], bool] = lambda: True
    field_manager: str = "shardwise"

    def get(self, kind: Kind, namespace: str, name: str) -> Object:
        """Return one object; NotFoundError if it does not exist."""
        return self._answer("get", kind, kind.path(namespace, name))

    def pages(
        self, kind: Kind, namespace: str = "", *, labels: str = "", metadata_alone: bool = False
    ) -> Iterator[Page]:
        """Yield the objects that `labels` selects, or only their metadata, in pages of one consistent list.

        Raises:
            GoneError: the list took so long that the server has dropped it; start again.
        """
        query = {"limit": str(_PAGE_OBJECTS), **_selecting(labels)}
        accept = _METADATA_ALONE_LIST if metadata_alone else _JSON
        while True:
            answer = self._answer("list", kind, kind.path(namespace), query, accept=accept)
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
            **_selecting(labels),
        }
        limit, accept = timeout_seconds + _WATCH_MARGIN_SECONDS, _METADATA_ALONE if metadata_alone else _JSON
        return EventStream(self._send("watch", kind, kind.path(namespace), query, accept=accept, stream_seconds=limit))

    def create(self, kind: Kind, obj: Object) -> Object:
        """Make an object; what was sent with its metadata of now. AlreadyExistsError where its name is taken.

        A field that the API server does not know is an InvalidError: a pod has those that a job's author wrote.
        """
        path, query = kind.path(obj["metadata"].get("namespace", "")), {"fieldValidation": "Strict"}
        made = self._answer("create", kind, path, query, body=obj, accept=_METADATA_ALONE)
        return obj | {"metadata": read_metadata(made)}

    def apply(self, kind: Kind, obj: Object, *, force: bool = True) -> Object:
        """Server-side apply as the field manager; a UID in the object's metadata is a precondition."""
        return self._answer("apply", kind, kind.path_of(obj), {"force": str(force).lower()}, body=obj)

    def replace(self, kind: Kind, obj: Object) -> Object:
        """Replace the whole object, if it still has this resourceVersion; else ConflictError."""
        return self._answer("update", kind, kind.path_of(obj), body=obj)

    def replace_status(self, kind: Kind, obj: Object) -> Object:
        """Replace the status alone, under the same condition; return the object with the server's metadata."""
        # The server ignores the spec in a status write, so it need not travel.
        sent = {field: value for field, value in obj.items() if field != "spec"}
        written = self._answer("update_status", kind, kind.path_of(obj, "status"), body=sent, accept=_METADATA_ALONE)
        return obj | {"metadata": read_metadata(written)}

    def patch(
        self, kind: Kind, namespace: str, name: str, patch: Object, *, uid: str = "", resource_version: str = ""
    ) -> Object:
        """Apply a JSON merge patch, if the object still has this UID and resourceVersion; else ConflictError."""
        # In a merge patch they are preconditions: the server refuses to change either of them.
        precondition = {"uid": uid, "resourceVersion": resource_version}
        metadata = patch.get("metadata", {}) | {field: value for field, value in precondition.items() if value}
        return self._answer("patch", kind, kind.path(namespace, name), body=patch | {"metadata": metadata})

    def delete(self, kind: Kind, namespace: str, name: str, *, uid: str, grace_seconds: int | None = None) -> None:
        """Delete the object with this UID; ConflictError if another has its name, nothing if none does."""
        body: Object = {"propagationPolicy": "Background", "preconditions": {"uid": uid}}
        if grace_seconds is not None:
            body["gracePeriodSeconds"] = grace_seconds
        with suppress(NotFoundError):
            self._answer("delete", kind, kind.path(namespace, name), body=body)

    def _answer(
        self,
        verb: str,
        kind: Kind,
        path: str,
        query: Mapping[str, str] = MappingProxyType({}),
        *,
        body: Object | None = None,
        accept: str = _JSON,
    ) -> Object:
        return decoded(self._send(verb, kind, path, query, body=body, accept=accept).data)

    def _send(
        self,
        verb: str,
        kind: Kind,
        path: str,
        query: Mapping[str, str],
        *,
        body: Object | None = None,
        accept: str,
        stream_seconds: float | None = None,
    ) -> Answer:
        """Send a request; with `stream_seconds`, its limit, the body is left to be read."""
        self.limiter.wait()
        if body is not None and not self.may_write():  # after the wait for a turn, which may have been long
            raise NotLeadingError(f"{verb} {path}: this process does not lead, or is no longer sure that it does")
        method, content_type = _VERBS[verb]
        owner = {"fieldManager": self.field_manager} if method in ("POST", "PUT", "PATCH") else {}
        began, status = time.monotonic(), "unreachable"
        try:
            answer = self.connection.send(
                method,
                path,
                query={**owner, **query},
                body=None if body is None else orjson.dumps(body, option=orjson.OPT_NON_STR_KEYS),  # keys may be enums
                content_type=content_type,
                read_seconds=stream_seconds or self.read_seconds,
                accept=accept,
                stream=stream_seconds is not None,
            )
            status = str(answer.status)
        finally:
            self.metrics.request(verb, kind.plural, status, time.monotonic() - began)
        if answer.status >= 400:
            self._refuse(method, answer)
        return answer

    def _refuse(self, method: str, answer: Answer) -> NoReturn:
        if (seconds := answer.headers.get("Retry-After", "")).isdecimal():
            self.limiter.pause(float(seconds))
        try:
            body = orjson.loads(answer.data)
        except (ValueError, *BROKEN):  # a proxy's page, or a body that broke off: the HTTP status is enough
            body = {"message": f"no message that could be read; {answer.reason or 'no reason'}"}
        error = error_of(answer.status, body if isinstance(body, dict) else {"message": str(body)})
        # The server refuses another UID in a patch as a change of an immutable field.
        if method == "PATCH" and isinstance(error, InvalidError) and "metadata.uid" in error.message:
            raise ConflictError(error.status, error.reason, error.message)
        raise error


def _selecting(labels: str) -> dict[str, str]:
    return {"labelSelector": labels} if labels else {}
