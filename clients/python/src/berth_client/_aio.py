"""The client for asyncio. Its requests and answers are those of _calls.py."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

import grpc
import grpc.aio

from . import _calls
from ._calls import Call
from ._connection import Attempts, Connection, describe
from .errors import from_rpc_error

P = ParamSpec("P")
R = TypeVar("R")


class AsyncStream(Generic[R], AsyncIterator[R]):
    """The pieces of an output, in the order in which they come.

    The request ends on the server when the stream is closed. That happens by close(), at the end of an `async with`
    block, or when the task that reads it is cancelled. It also happens when nothing refers to the stream any more, as
    after a break out of a loop.
    """

    def __init__(self, client: AsyncClient, call: Call[R]) -> None:
        self._client = client
        self._call = call
        self._attempts = Attempts(client, call)
        self._closed = asyncio.Event()
        self._messages = client._start(call, self._attempts)

    async def __anext__(self) -> R:
        try:
            return await self._read()
        except BaseException:  # also the end of a loop that an interrupt stops: its traceback would keep the request
            self.close()
            raise

    async def _read(self) -> R:
        while not self._closed.is_set():
            try:
                message = await self._messages.read()
            except grpc.RpcError as error:
                failure = from_rpc_error(error, self._call.request)
            except asyncio.CancelledError:
                if self._closed.is_set():
                    break
                raise
            else:
                if message is grpc.aio.EOF:
                    break
                self._attempts.begun()
                return self._call.read(message)
            delay = self._attempts.delay_after(failure)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closed.wait(), delay)
            if not self._closed.is_set():
                self._messages = self._client._start(self._call, self._attempts)
        raise StopAsyncIteration

    def close(self) -> None:
        """Ends the request if it still runs."""
        self._closed.set()
        self._messages.cancel()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        traceback: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        messages = getattr(self, "_messages", None)
        if messages is not None and not messages.done():
            messages.cancel()


def _answer(build: Callable[P, Call[R]]) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, R]]:
    """A method that makes the call and returns its answer."""

    async def method(client: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return await client._run(build(*args, **kwargs))

    return describe(method, build)


def _stream(build: Callable[P, Call[R]]) -> Callable[Concatenate[AsyncClient, P], AsyncStream[R]]:
    """A method that starts the call and returns the stream of its answer."""

    def method(client: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> AsyncStream[R]:
        return AsyncStream(client, build(*args, **kwargs))

    return describe(method, build)


class AsyncClient(Connection):
    """A client for asyncio. Use it in an `async with` block, or close() it. It belongs to one event loop."""

    __doc__ = f"{__doc__}\n\n{Connection.__doc__}"
    _opened: grpc.aio.Channel | None = None

    @property
    def _channel(self) -> grpc.aio.Channel:
        """Opened by the first call: a channel belongs to the loop that runs then."""
        if self._opened is None:
            if self.credentials is None:
                self._opened = grpc.aio.insecure_channel(self.target, self.channel_options)
            else:
                self._opened = grpc.aio.secure_channel(self.target, self.credentials, self.channel_options)
        return self._opened

    async def close(self) -> None:
        """Closes the connection. Requests that still run end."""
        if self._opened is not None:
            await self._opened.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None,
                        traceback: TracebackType | None) -> None:
        await self.close()

    async def _run(self, call: Call[R]) -> R:
        """Makes a call of one answer."""
        method = self._channel.unary_unary(call.path, type(call.request).SerializeToString, call.answer.FromString)
        attempts = Attempts(self, call)
        while True:
            answer = method(call.request, timeout=attempts.timeout(), metadata=self.metadata_of(call))
            try:
                return call.read(await answer)
            except grpc.RpcError as error:
                failure = from_rpc_error(error, call.request)
            except BaseException:  # also the end of a loop that an interrupt stops: its traceback would keep the request
                answer.cancel()
                raise
            await asyncio.sleep(attempts.delay_after(failure))

    def _start(self, call: Call[Any], attempts: Attempts) -> Any:
        """Starts a call of many answers."""
        method = self._channel.unary_stream(call.path, type(call.request).SerializeToString, call.answer.FromString)
        return method(call.request, timeout=attempts.timeout(), metadata=self.metadata_of(call))

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
