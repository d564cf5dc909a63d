"""One connection to one broker: versions agreed, requests pipelined, each answer given to whom it belongs.

Kafka answers in the order of the requests on a connection; the correlation id is checked all the same. When a request
gets no answer in its time the connection is closed: whatever comes after it would wait behind the same trouble.
Any broker that speaks Kafka's protocol will do. Nothing is retried here: `client/cluster.py` does that.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from ottla.client.addresses import Address
from ottla.client.errors import CannotConnect
from ottla.client.sasl import Sasl, authenticate
from ottla.client.tls import Tls, explain
from ottla.core.errors import ErrorCode, NetworkException, RequestTimedOut, UnsupportedVersion
from ottla.wire.apis import API_INFO, ApiKey
from ottla.wire.codec import decode_response, encode_request
from ottla.wire.errors import MalformedRequest
from ottla.wire.headers import encode_request_header, parse_response_header

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Dial = Callable[[str, int], Awaitable[Streams]]

SOFTWARE_NAME = "ottla"
# An answer larger than this is none: a fetch asks for far less, and "HTTP" read as a length is 1.2 GB.
FRAME_BYTES_MAX = 512 << 20
_LENGTH = struct.Struct(">i")
_ERROR_CODE = struct.Struct(">h")
_READ_AHEAD_BYTES = 1 << 20
_SESSION_SHARE = 0.8
"""How much of a signed-in session's life a connection is used for; then a new one takes over (KIP-368)."""


@dataclass(frozen=True, slots=True)
class Security:
    """How to talk to brokers: encrypted or not, signed in or not (`client/properties.py` reads it from settings)."""

    tls: Tls | None = None
    sasl: Sasl | None = None

    @property
    def protocol(self) -> str:
        """Kafka's `security.protocol`.

        >>> Security().protocol, Security(Tls(), Sasl("PLAIN", "a", "b")).protocol
        ('PLAINTEXT', 'SASL_SSL')
        """
        kind = "PLAINTEXT" if self.tls is None else "SSL"
        return kind if self.sasl is None else f"SASL_{kind}"


async def dial_tcp(host: str, port: int) -> Streams:
    """Open a TCP connection; the port that tests and the simulator replace."""
    return await asyncio.open_connection(host, port, limit=_READ_AHEAD_BYTES)


def dialer(security: Security) -> Dial:
    """How connections are opened. Reads the certificates once. Raises `tls.InvalidKeyStore`."""
    if security.tls is None:
        return dial_tcp
    context = security.tls.context()

    async def dial_tls(host: str, port: int) -> Streams:
        return await asyncio.open_connection(host, port, limit=_READ_AHEAD_BYTES, ssl=context, server_hostname=host)

    return dial_tls


class Connection:
    """A connection after ApiVersions. Make one with `open_connection`; it belongs to one event loop."""

    __slots__ = (
        "_next_correlation_id",
        "_pending",
        "_reading",
        "_streams",
        "_usable_until",
        "_why_closed",
        "address",
        "client_id",
        "versions",
    )

    def __init__(self, address: Address, streams: Streams, *, client_id: str) -> None:
        self.address = address
        self.client_id = client_id
        self.versions: dict[int, tuple[int, int]] = {}  # what the broker serves: API key -> (min, max)
        self._streams = streams
        self._pending: dict[int, asyncio.Future[bytes]] = {}
        self._next_correlation_id = 0
        self._why_closed: Exception | None = None
        self._usable_until: float | None = None
        self._reading = asyncio.ensure_future(self._read_answers())

    @property
    def usable(self) -> bool:
        """Whether a request can still be sent."""
        is_young = self._usable_until is None or asyncio.get_running_loop().time() < self._usable_until
        return self._why_closed is None and is_young

    def version_for(self, key: ApiKey, *, at_most: int | None = None) -> int:
        """The newest version both sides know. Raises `UnsupportedVersion` if there is none."""
        known = API_INFO[key]
        if key not in self.versions:
            raise UnsupportedVersion(f"the broker at {self.address} does not serve {known.name}")
        lowest, highest = self.versions[key]
        version = min(highest, known.max_version, known.max_version if at_most is None else at_most)
        if version < max(lowest, known.min_version):
            raise UnsupportedVersion(
                f"the broker at {self.address} serves {known.name} versions {lowest} to {highest}; "
                f"wanted was {known.min_version} to {known.max_version if at_most is None else at_most}"
            )
        return version

    async def request(self, key: ApiKey, request: Any, *, timeout_s: float, at_most: int | None = None) -> Any:
        """Send a request and wait for its answer, at the newest version both know (and no newer than `at_most`).

        Raises `RequestTimedOut`, `NetworkException` (the broker went away), `UnsupportedVersion`.
        """
        version = self.version_for(key, at_most=at_most)
        frame = await self._exchange(key, version, encode_request(key, version, request), timeout_s=timeout_s)
        return decode_response(key, version, frame, parse_response_header(frame, key, version)[1])

    async def send_only(self, key: ApiKey, request: Any, *, at_most: int | None = None) -> None:
        """Send a request that has no answer: Produce with acks=0."""
        version = self.version_for(key, at_most=at_most)
        await self._write(key, version, self._take_correlation_id(), encode_request(key, version, request))

    async def negotiate(self, *, software_version: str, timeout_s: float) -> None:
        """Learn what the broker serves. An older broker answers in version 0, with error 35 and what it does serve."""
        from ottla.wire.messages.api_versions import ApiVersionsRequest

        key, version = ApiKey.API_VERSIONS, API_INFO[ApiKey.API_VERSIONS].max_version
        ask = ApiVersionsRequest(client_software_name=SOFTWARE_NAME, client_software_version=software_version)
        for attempt_version in (version, None):
            asked = version if attempt_version is not None else self._api_versions_fallback()
            frame = await self._exchange(key, asked, encode_request(key, asked, ask), timeout_s=timeout_s)
            _, at = parse_response_header(frame, key, asked)
            (error_code,) = _ERROR_CODE.unpack_from(frame, at)
            unsupported = error_code == ErrorCode.UNSUPPORTED_VERSION
            answer = decode_response(key, 0 if unsupported else asked, frame, at)
            self.versions = {item.api_key: (item.min_version, item.max_version) for item in answer.api_keys}
            if not unsupported:
                return
        raise CannotConnect(str(self.address), "it refuses every version of ApiVersions we know")

    async def authenticate(self, sasl: Sasl, *, timeout_s: float) -> None:
        """Before anything else is asked. Raises the broker's refusal."""
        lifetime_ms = await authenticate(self, sasl, timeout_s=timeout_s)
        if lifetime_ms > 0:
            self._usable_until = asyncio.get_running_loop().time() + _SESSION_SHARE * lifetime_ms / 1000

    def _api_versions_fallback(self) -> int:
        _, highest = self.versions.get(ApiKey.API_VERSIONS, (0, 0))
        return min(highest, API_INFO[ApiKey.API_VERSIONS].max_version)

    async def close(self) -> None:
        """Hang up; requests still waiting get `NetworkException`."""
        self._fail(NetworkException(f"the connection to {self.address} was closed"))
        self._reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._reading
        with contextlib.suppress(OSError):
            await self._streams[1].wait_closed()

    async def _exchange(self, key: ApiKey, version: int, body: bytes, *, timeout_s: float) -> bytes:
        correlation_id = self._take_correlation_id()
        waiter: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._pending[correlation_id] = waiter
        try:
            async with asyncio.timeout(timeout_s):
                await self._write(key, version, correlation_id, body)
                return await waiter
        except TimeoutError:
            late = RequestTimedOut(f"{self.address} did not answer {API_INFO[key].name} within {timeout_s:g} s")
            self._fail(late)
            raise late from None
        finally:
            self._pending.pop(correlation_id, None)

    async def _write(self, key: ApiKey, version: int, correlation_id: int, body: bytes) -> None:
        if self._why_closed is not None:
            raise self._why_closed
        header = encode_request_header(key, version, correlation_id, self.client_id)
        writer = self._streams[1]
        try:
            writer.writelines((_LENGTH.pack(len(header) + len(body)), header, body))
            await writer.drain()
        except OSError as error:
            gone = NetworkException(f"the connection to {self.address} broke: {error}")
            self._fail(gone)
            raise gone from error

    def _take_correlation_id(self) -> int:
        taken = self._next_correlation_id
        self._next_correlation_id = (taken + 1) & 0x7FFFFFFF
        return taken

    async def _read_answers(self) -> None:
        reader = self._streams[0]
        try:
            while True:
                (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
                if not _LENGTH.size <= length <= FRAME_BYTES_MAX:
                    raise NetworkException(f"{self.address} does not seem to speak Kafka's protocol")
                frame = await reader.readexactly(length)
                waiter = self._pending.get(_LENGTH.unpack_from(frame)[0])
                if waiter is not None and not waiter.done():
                    waiter.set_result(frame)
        except asyncio.IncompleteReadError:
            self._fail(NetworkException(f"{self.address} closed the connection"))
        except OSError as error:
            self._fail(NetworkException(f"the connection to {self.address} broke: {error}"))
        except NetworkException as error:
            self._fail(error)

    def _fail(self, why: Exception) -> None:
        if self._why_closed is not None:
            return
        self._why_closed = why
        for waiter in self._pending.values():
            if not waiter.done():
                waiter.set_exception(why)
                waiter.exception()  # somebody may have stopped waiting: no "never retrieved" complaint
        self._streams[1].close()


async def open_connection(
    address: Address, *, client_id: str, timeout_s: float, dial: Dial = dial_tcp, sasl: Sasl | None = None
) -> Connection:
    """Connect, agree on versions, sign in. Raises `CannotConnect` saying why, or the refusal to sign in."""
    where = str(address)
    try:
        async with asyncio.timeout(timeout_s):
            streams = await dial(address.host, address.port)
    except TimeoutError:
        raise CannotConnect(where, f"no answer within {timeout_s:g} s") from None
    except OSError as error:
        raise CannotConnect(where, _reason(error)) from error
    connection = Connection(address, streams, client_id=client_id)
    try:
        await connection.negotiate(software_version=_software_version(), timeout_s=timeout_s)
        if sasl is not None:
            await connection.authenticate(sasl, timeout_s=timeout_s)
    except (NetworkException, RequestTimedOut, MalformedRequest, struct.error) as error:
        await connection.close()
        raise CannotConnect(where, f"connected, but: {error}") from error
    except BaseException:
        await connection.close()
        raise
    return connection


def _software_version() -> str:
    from importlib.metadata import version

    return version("ottla")


def _reason(error: OSError) -> str:
    """Why connecting failed, without asyncio's "Connect call failed" (which names no reason)."""
    import errno
    import os
    import socket

    several = f"Errno {errno.ECONNREFUSED}" in str(error)  # a host with several addresses: errors come as one text
    if isinstance(error, ssl.SSLError):
        return explain(error)
    if isinstance(error, ConnectionRefusedError) or several:
        return "connection refused; is a broker running there?"
    if isinstance(error, ConnectionResetError | ConnectionAbortedError):
        return "it hung up while connecting; is security.protocol right?"
    if isinstance(error, socket.gaierror):
        return "no such host"
    return os.strerror(error.errno) if error.errno else str(error)
