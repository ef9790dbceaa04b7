"""A client of Berth, a text-generation server: Client blocks, AsyncClient is for asyncio."""

from ._aio import AsyncClient, AsyncStream
from ._connection import Tls
from ._sync import Client, Stream
from .errors import (AlreadyExistsError, BerthError, CancelledError, DataLossError, DeadlineExceededError,
                     FailedPreconditionError, IncompleteOutputError, InternalError, InvalidArgumentError,
                     NotFoundError, PermissionDeniedError, ResourceExhaustedError, UnauthenticatedError,
                     UnavailableError)

__all__ = [
    "AlreadyExistsError", "AsyncClient", "AsyncStream", "BerthError", "CancelledError", "Client", "DataLossError",
    "DeadlineExceededError", "FailedPreconditionError", "IncompleteOutputError", "InternalError",
    "InvalidArgumentError", "NotFoundError", "PermissionDeniedError", "ResourceExhaustedError", "Stream", "Tls",
    "UnauthenticatedError", "UnavailableError",
]
