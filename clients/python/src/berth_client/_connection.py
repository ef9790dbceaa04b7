"""How a client reaches its server: TLS, credentials, retries and deadlines. Shared by Client and AsyncClient."""

from __future__ import annotations

import inspect
import ipaddress
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import grpc

from ._calls import Call
from .errors import BerthError

# Finds a server, or a path to it, that vanished without a word: a call without a deadline would wait for ever. A client
# pings after a minute in which nothing came, only while calls are under way, and gives up after 20 s without an answer.
# Two defaults of gRPC stand in the way: it stops after two pings if the client itself sends nothing, and waits a minute
# for a ping's answer, whatever keepalive_timeout_ms says.
_KEEPALIVE = {"grpc.keepalive_time_ms": 60_000, "grpc.keepalive_timeout_ms": 20_000,
              "grpc.http2.ping_timeout_ms": 20_000, "grpc.keepalive_permit_without_calls": 0,
              "grpc.http2.max_pings_without_data": 0}
F = TypeVar("F", bound=Callable[..., Any])
Pem = str | Path | bytes


@dataclass(frozen=True, kw_only=True)
class Tls:
    """What TLS needs. Each is the path of a PEM file, or the file's bytes.

    ca: the certificates that may sign the server's. None: those of the system.
    certificate, key: the client's own certificate with its chain, and its key.
    """

    ca: Pem | None = None
    certificate: Pem | None = None
    key: Pem | None = None

    def credentials(self) -> grpc.ChannelCredentials:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("tls: certificate and key belong together; give both")
        ca, key, certificate = (_read(pem) for pem in (self.ca, self.key, self.certificate))
        return grpc.ssl_channel_credentials(ca, key, certificate)


def _read(pem: Pem | None) -> bytes | None:
    return pem if pem is None or isinstance(pem, bytes) else Path(pem).read_bytes()


def _credentials(tls: Tls | bool) -> grpc.ChannelCredentials | None:
    """None: no TLS."""
    if not isinstance(tls, (bool, Tls)):
        raise TypeError(f"tls: {type(tls).__name__} is none of True, False and Tls(...)")  # the value may hold a key
    if tls is False:
        return None
    return (Tls() if tls is True else tls).credentials()


def _mapping(metadata: Mapping[str, str] | None) -> Mapping[str, str]:
    if metadata is not None and not isinstance(metadata, Mapping):
        raise TypeError(f"metadata: {type(metadata).__name__} is no mapping of names to values")
    return metadata or {}


def is_local(target: str) -> bool:
    """Whether what is sent to the target stays on this machine: a Unix socket, or a loopback address."""
    if target.startswith(("unix:", "unix-abstract:")):
        return True
    match = re.fullmatch(r"(?:dns:(?:///)?|ipv4:|ipv6:)?(?:\[([^]]*)\]|([^:\[\]/,]*))(?::\d+)?", target)
    if match is None:
        return False
    host = match[1] or match[2] or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class Connection:
    """What Client and AsyncClient share: their arguments.

    target: host:port, or another name that gRPC resolves, such as unix:/run/berth.sock.
    tls: True to use TLS with the system's certificates; Tls(...) for others. Default: no TLS.
    token: a bearer token, or a function that returns the present one. Only over TLS, loopback or a Unix socket.
    metadata: sent with each call.
    timeout: seconds for each call, retries included. Default: no limit.
    retries: how often a call is sent again that the server refused with a delay. Only calls that have not begun are.
    max_retry_delay: the longest delay, in seconds, that is waited before a retry.
    channel_options: options of gRPC's channel.
    """

    def __init__(self, target: str = "127.0.0.1:8600", *, tls: Tls | bool = False,
                 token: str | Callable[[], str] | None = None, metadata: Mapping[str, str] | None = None,
                 timeout: float | None = None, retries: int = 2, max_retry_delay: float = 30.0,
                 channel_options: Sequence[tuple[str, Any]] = ()) -> None:
        self.target = target
        self.timeout = timeout
        self.retries = retries
        self.max_retry_delay = max_retry_delay
        self.credentials = _credentials(tls)
        self._token = token
        self._metadata = dict(_mapping(metadata))
        self._check_secrets("token" if token is not None else None, self._metadata)
        # Answers have no limit here: a prompt's log-probabilities exceed gRPC's default of 4 MiB. A proxy of the
        # environment would see what is sent to this machine.
        options = {"grpc.max_receive_message_length": -1, "grpc.enable_http_proxy": int(not is_local(target))}
        self.channel_options = list({**options, **_KEEPALIVE, **dict(channel_options)}.items())
        self._open()

    def _open(self) -> None:
        """Opens the channel."""

    def _check_secrets(self, secret: str | None, metadata: Mapping[str, str]) -> None:
        if secret is None and any(key.lower() == "authorization" for key in metadata):
            secret = "metadata: authorization"
        if secret is not None and self.credentials is None and not is_local(self.target):
            raise ValueError(f"{secret}: it would be sent in plain text to {self.target}; use tls")

    def metadata_of(self, call: Call[Any]) -> tuple[tuple[str, str | bytes], ...]:
        of_call = _mapping(call.metadata)
        self._check_secrets(None, of_call)
        metadata: dict[str, str | bytes] = {**self._metadata, **of_call}
        if self._token is not None:
            metadata["authorization"] = f"Bearer {self._token() if callable(self._token) else self._token}"
        return tuple(metadata.items())


def describe(method: F, build: Callable[..., Any]) -> F:
    """Gives a method the name, the documentation and, except for `self`, the arguments of what builds its call."""
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    signature = inspect.signature(build)
    described: Any = method
    described.__name__ = build.__name__
    described.__doc__ = build.__doc__
    described.__signature__ = signature.replace(parameters=[own, *signature.parameters.values()],
                                                return_annotation=inspect.Signature.empty)
    return method


class Attempts:
    """Counts the tries of one call, within its deadline."""

    def __init__(self, connection: Connection, call: Call[Any],
                 clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left = connection.retries
        self._max_delay = connection.max_retry_delay
        timeout = call.timeout if call.has_timeout else connection.timeout
        self._deadline = None if timeout is None else clock() + timeout

    def timeout(self) -> float | None:
        """Seconds that are left. None: no limit."""
        return None if self._deadline is None else max(0.0, self._deadline - self._clock())

    def begun(self) -> None:
        """Something of the answer has come: sending the call again would repeat it."""
        self._left = 0

    def delay_after(self, error: BerthError) -> float:
        """Seconds to wait before the next try. Raises the error if there is none."""
        delay = error.retry_after
        if delay is None or self._left == 0 or delay > self._max_delay:
            raise error
        left = self.timeout()
        if left is not None and delay >= left:
            raise error
        self._left -= 1
        return delay
