"""The client whose calls block. Its requests and answers are those of _calls.py."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

import grpc

from . import _calls
from ._calls import Call
from ._connection import Attempts, Connection, describe
from .errors import from_rpc_error

P = ParamSpec("P")
R = TypeVar("R")


class Stream(Generic[R], Iterator[R]):
    """The pieces of an output, in the order in which they come.

    The request ends on the server when the stream is closed. That happens by close(), or at the end of a `with` block.
    It also happens when nothing refers to the stream any more, as after a break out of a loop. close() may be called from
    any thread. A thread that reads the stream then comes to its end.
    """

    def __init__(self, client: Client, call: Call[R]) -> None:
        self._client = client
        self._call = call
        self._attempts = Attempts(client, call)
        self._closed = threading.Event()
        self._messages = client._start(call, self._attempts)

    def __next__(self) -> R:
        try:
            return self._read()
        except BaseException:  # also an interrupt of the keyboard, whose traceback would keep the request running
            self.close()
            raise

    def _read(self) -> R:
        while not self._closed.is_set():
            try:
                message = next(self._messages)
            except grpc.RpcError as error:
                if self._closed.is_set():
                    break
                failure = from_rpc_error(error, self._call.request)
            else:
                self._attempts.begun()
                return self._call.read(message)
            if not self._closed.wait(self._attempts.delay_after(failure)):
                self._messages = self._client._start(self._call, self._attempts)
        raise StopIteration

    def close(self) -> None:
        """Ends the request if it still runs."""
        self._closed.set()
        self._messages.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_messages"):
            self.close()


def _answer(build: Callable[P, Call[R]]) -> Callable[Concatenate[Client, P], R]:
    """A method that makes the call and returns its answer."""

    def method(client: Client, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return client._run(build(*args, **kwargs))

    return describe(method, build)


def _stream(build: Callable[P, Call[R]]) -> Callable[Concatenate[Client, P], Stream[R]]:
    """A method that starts the call and returns the stream of its answer."""

    def method(client: Client, /, *args: P.args, **kwargs: P.kwargs) -> Stream[R]:
        return Stream(client, build(*args, **kwargs))

    return describe(method, build)


class Client(Connection):
    """A client whose calls block. Use it in a `with` block, or close() it. Thread-safe."""

    __doc__ = f"{__doc__}\n\n{Connection.__doc__}"

    def _open(self) -> None:
        if self.credentials is None:
            self._channel = grpc.insecure_channel(self.target, self.channel_options)
        else:
            self._channel = grpc.secure_channel(self.target, self.credentials, self.channel_options)

    def close(self) -> None:
        """Closes the connection. Requests that still run end."""
        self._channel.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 traceback: TracebackType | None) -> None:
        self.close()

    def _run(self, call: Call[R]) -> R:
        """Makes a call of one answer."""
        method = self._channel.unary_unary(call.path, type(call.request).SerializeToString, call.answer.FromString)
        attempts = Attempts(self, call)
        while True:
            future = method.future(call.request, attempts.timeout(), self.metadata_of(call))
            try:
                return call.read(future.result())
            except grpc.RpcError as error:
                failure = from_rpc_error(error, call.request)
            except BaseException:  # also an interrupt of the keyboard, whose traceback would keep the request running
                future.cancel()
                raise
            time.sleep(attempts.delay_after(failure))

    def _start(self, call: Call[Any], attempts: Attempts) -> Any:
        """Starts a call of many answers."""
        method = self._channel.unary_stream(call.path, type(call.request).SerializeToString, call.answer.FromString)
        return method(call.request, attempts.timeout(), self.metadata_of(call))

    generate = _answer(_calls.generate)
    stream = _stream(_calls.stream)
    chat = _answer(_calls.chat)
    stream_chat = _stream(_calls.stream_chat)
    parse = _answer(_calls.parse)
    embed = _answer(_calls.embed)
    tokenize = _answer(_calls.tokenize)
    tokenize_chat = _answer(_calls.tokenize_chat)
    detokenize = _answer(_calls.detokenize)
    save_session = _answer(_calls.save_session)
    resume_session = _stream(_calls.resume_session)
    delete_session = _answer(_calls.delete_session)
    list_sessions = _answer(_calls.list_sessions)
    model_info = _answer(_calls.model_info)
    server_info = _answer(_calls.server_info)
    load = _answer(_calls.load)
    steps = _answer(_calls.steps)
    abort = _answer(_calls.abort)
    drain = _answer(_calls.drain)
    flush_cache = _answer(_calls.flush_cache)
    erase_tenant = _answer(_calls.erase_tenant)
