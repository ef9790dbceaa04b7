"""Exceptions: one class for each kind of failure, and what the server says of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import grpc
from google.protobuf.message import Message

from ._messages import message_class, options_of

DETAILS_KEY = "grpc-status-details-bin"
RETRY_KEY = "retry-after-ms"


class BerthError(Exception):
    """A call that failed.

    The subclasses stand for the codes of docs/api.md. A code without a subclass is a BerthError itself.
    """

    def __init__(self, message: str, *, code: grpc.StatusCode | None = None, field: str | None = None,
                 reason: str | None = None, retry_after: float | None = None,
                 details: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.message = message
        # The code of gRPC.
        self.code = code
        # The field of the request that the message names, such as "sampling.temperature".
        self.field = field
        # Why the server refused the request, such as "QUEUE_FULL".
        self.reason = reason
        # Seconds after which a retry may succeed. None: the server does not say, or none can succeed.
        self.retry_after = retry_after
        # What belongs to the reason: "setting", "limit", "value", "tenant".
        self.details = dict(details or {})


class InvalidArgumentError(BerthError):
    """The request is wrong. `field` names the field."""


class ResourceExhaustedError(BerthError):
    """The server or the tenant is at a limit. `reason` names it, and `retry_after` is the delay before a retry."""


class UnavailableError(BerthError):
    """The server drains, or it cannot be reached. Try another one."""


class DeadlineExceededError(BerthError, TimeoutError):
    """The timeout of the call passed."""


class CancelledError(BerthError):
    """The call was cancelled."""


class NotFoundError(BerthError):
    """There is no such session."""


class AlreadyExistsError(BerthError):
    """A request with this request_id is running."""


class FailedPreconditionError(BerthError):
    """The server is not set up for the call, or the session cannot be resumed now."""


class UnauthenticatedError(BerthError):
    """The token or certificate is missing, unknown or expired."""


class PermissionDeniedError(BerthError):
    """The caller's roles do not allow the call."""


class DataLossError(BerthError):
    """The file of the session is torn."""


class InternalError(BerthError):
    """A fault of the server."""


class IncompleteOutputError(BerthError):
    """The output was cut before its structure ended, so that it cannot be read. `text` is what came."""

    def __init__(self, message: str, text: str = "") -> None:
        super().__init__(message)
        self.text = text


_CLASSES: dict[grpc.StatusCode, type[BerthError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidArgumentError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: ResourceExhaustedError,
    grpc.StatusCode.UNAVAILABLE: UnavailableError,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceededError,
    grpc.StatusCode.CANCELLED: CancelledError,
    grpc.StatusCode.NOT_FOUND: NotFoundError,
    grpc.StatusCode.ALREADY_EXISTS: AlreadyExistsError,
    grpc.StatusCode.FAILED_PRECONDITION: FailedPreconditionError,
    grpc.StatusCode.UNAUTHENTICATED: UnauthenticatedError,
    grpc.StatusCode.PERMISSION_DENIED: PermissionDeniedError,
    grpc.StatusCode.DATA_LOSS: DataLossError,
    grpc.StatusCode.INTERNAL: InternalError,
}


def field_of(message: str, request: Message) -> str | None:
    """The field that a message such as "sampling.top_p: 2 is outside (0, 1]" names. None: it names no field."""
    match = re.match(r"([a-z_][a-z0-9_]*(?:\[\d+\])?(?:\.[a-z_][a-z0-9_]*(?:\[\d+\])?)*): ", message)
    if match is None:
        return None
    first = re.sub(r"\W.*", "", match.group(1))
    # A field of a group may be named alone.
    return match.group(1) if first in request.DESCRIPTOR.fields_by_name or first in options_of(request.DESCRIPTOR) else None


def _details(trailing: Iterable[tuple[str, str | bytes]]) -> dict[str, Any]:
    """Reason, delay and details from the trailing metadata."""
    metadata = {key: value for key, value in trailing}  # not by dict(): grpc.aio's has keys
    found: dict[str, Any] = {}
    milliseconds = metadata.get(RETRY_KEY)
    if isinstance(milliseconds, str) and milliseconds.isdecimal():
        found["retry_after"] = int(milliseconds) / 1000
    status = metadata.get(DETAILS_KEY)
    if not isinstance(status, bytes):
        return found
    for detail in getattr(message_class("google.rpc.Status").FromString(status), "details"):
        name = detail.type_url.rsplit("/", 1)[-1]
        if name == "google.rpc.ErrorInfo":
            info: Any = message_class(name).FromString(detail.value)
            found["reason"] = info.reason
            found["details"] = dict(info.metadata)
        elif name == "google.rpc.RetryInfo":
            retry: Any = message_class(name).FromString(detail.value)
            found["retry_after"] = retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9
    return found


def from_rpc_error(error: Any, request: Message) -> BerthError:
    """The exception for one of grpc or grpc.aio."""
    code = error.code()
    message = error.details() or code.name
    field = field_of(message, request)
    failure = _CLASSES.get(code, BerthError)(message, code=code, field=field,
                                             **_details(error.trailing_metadata() or ()))
    failure.__cause__ = error
    return failure
