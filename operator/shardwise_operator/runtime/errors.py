"""What can go wrong between this process and the API server.

    KubernetesError
    |-- UnreachableError            no answer, or half of one: the request may or may not have been carried out
    |-- NotLeadingError             a write was not sent, because another process may lead by now
    `-- ApiError                    the server refused: status, reason, message
        |-- ForbiddenError          403: the role does not grant it, an admission plugin or a quota refuses it
        |-- NotFoundError           404
        |-- ConflictError           409: a precondition failed: another UID or resourceVersion
        |   `-- AlreadyExistsError  409 on create: the name is taken
        |-- GoneError               410: the resourceVersion or the page is too old; list again
        |-- InvalidError       400, 422: the object breaks its schema or a rule; the message says which
        `-- TooManyRequestsError    429: the server asks to slow down; the client's limiter already did

All but ForbiddenError and InvalidError are worth another try.
"""

from typing import Any


class KubernetesError(Exception):
    """The root of the tree."""


class UnreachableError(KubernetesError):
    """No answer came, or it broke off. A write may have been carried out all the same."""


class NotLeadingError(KubernetesError):
    """A write was not sent: this process does not lead, or is no longer sure that it does."""


class ApiError(KubernetesError):
    """The API server refused.

    Attributes:
        status: the HTTP status.
        reason: the reason for machines, as `AlreadyExists`; empty if the server gave none.
        message: the reason for people.
    """

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message


class ForbiddenError(ApiError):
    """403."""


class NotFoundError(ApiError):
    """404."""


class ConflictError(ApiError):
    """409: a precondition of the write does not hold."""


class AlreadyExistsError(ConflictError):
    """409 on create: the name is taken."""


class GoneError(ApiError):
    """410: the resourceVersion or the page is too old."""


class InvalidError(ApiError):
    """400 or 422: the object breaks its schema or a rule."""


class TooManyRequestsError(ApiError):
    """429: the server asks to slow down."""


_BY_STATUS: dict[int, type[ApiError]] = {
    400: InvalidError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    410: GoneError,
    422: InvalidError,
    429: TooManyRequestsError,
}


def error_of(status: int, answer: dict[str, Any]) -> ApiError:
    """Return the error that a `Status` object of the API server stands for, with its HTTP status."""
    reason, message = answer.get("reason") or "", answer.get("message") or ""
    kind = AlreadyExistsError if reason == "AlreadyExists" else _BY_STATUS.get(status, ApiError)
    return kind(status, reason, message)
