"""Implements a connection to one broker: negotiates API versions, pipelines requests, matches responses to requests.

Kafka responds in the order of the requests on a connection; responses are matched by correlation id all the same. A
request that times out closes the connection: later requests on it would wait for the same response. Works with any
broker that speaks Kafka's protocol. Nothing is retried here: `client/cluster.py` does that.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ssl
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, cast

from ottla.client.addresses import Address
from ottla.client.errors import CannotConnect
from ottla.client.sasl import Sasl, authenticate
from ottla.client.tls import Tls
from ottla.core.errors import ErrorCode, NetworkException, RequestTimedOut, UnsupportedVersion
from ottla.security.key_stores import explain
from ottla.wire.apis import API_INFO, ApiKey
from ottla.wire.codec import decode_response, encode_request
from ottla.wire.errors import MalformedRequest
from ottla.wire.frame import (
    FRAME_BYTES_MAX,
    LENGTH_BYTES,
    TLS_ALERT,
    TLS_HANDSHAKE,
    FrameRefused,
    frame_length,
    length_prefix,
)
from ottla.wire.headers import encode_request_header, parse_response_header

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Dial = Callable[[str, int], Awaitable[Streams]]

SOFTWARE_NAME = "ottla"
_HTTP_ANSWER = b"HTTP"
_HTTP_REQUEST = b"OPTIONS * HTTP/1.0\r\n\r\n"
HTTP_SERVER = "is an HTTP server and does not speak Kafka's protocol; check the port"
_TLS_TIMEOUT_S = 2.0
_CORRELATION_ID = struct.Struct(">i")
_ERROR_CODE = struct.Struct(">h")
_FLUSH_S = 2.0
_READ_AHEAD_BYTES = 1 << 20
_SESSION_SHARE = 0.8
"""The share of a SASL session's lifetime for which a connection is used; then a new one replaces it (KIP-368)."""


@dataclass(frozen=True, slots=True)
class Security:
    """The TLS and SASL settings of connections (`client/properties.py` reads them from Kafka's property names)."""

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
    """Open a TCP connection; tests and the simulator inject another `Dial`."""
    return await asyncio.open_connection(host, port, limit=_READ_AHEAD_BYTES)


def dialer(security: Security) -> Dial:
    """Return the function that opens connections. Reads the certificates once. Raises `InvalidKeyStore`."""
    if security.tls is None:
        return dial_tcp
    context = security.tls.context()

    async def dial_tls(host: str, port: int) -> Streams:
        return await asyncio.open_connection(host, port, limit=_READ_AHEAD_BYTES, ssl=context, server_hostname=host)

    return dial_tls


class Connection:
    """A connection to a broker. Create one with `open_connection`; it belongs to one event loop."""

    __slots__ = (
        "_next_correlation_id",
        "_pending",
        "_reading",
        "_streams",
        "_usable_until",
        "_why_closed",
        "address",
        "client_id",
        "closed_unanswered",
        "features",
        "versions",
    )

    def __init__(self, address: Address, streams: Streams, *, client_id: str) -> None:
        self.address = address
        self.client_id = client_id
        self.versions: dict[int, tuple[int, int]] = {}  # that the broker serves: API key -> (min, max)
        self.features: dict[str, int] = {}  # the finalized level of each feature of the cluster
        self.closed_unanswered = False
        """Whether the peer closed the connection before its first answer, as a TLS port may."""
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
        """Return the newest version that both sides support. Raises `UnsupportedVersion` if there is none."""
        known = API_INFO[key]
        if key not in self.versions:
            raise UnsupportedVersion(f"the broker at {self.address} does not serve {known.name}")
        lowest, highest = self.versions[key]
        version = min(highest, known.max_version, known.max_version if at_most is None else at_most)
        if version < max(lowest, known.min_version):
            raise UnsupportedVersion(
                f"the broker at {self.address} serves {known.name} versions {lowest} to {highest}; "
                f"this client supports {known.min_version} to {known.max_version if at_most is None else at_most}"
            )
        return version

    async def request(self, key: ApiKey, request: Any, *, timeout_s: float, at_most: int | None = None) -> Any:
        """Send a request in the newest common version, but at most `at_most`, and return the response.

        Raises `RequestTimedOut`, `NetworkException` (the connection was lost), `UnsupportedVersion`.
        """
        version = self.version_for(key, at_most=at_most)
        frame = await self._exchange(key, version, encode_request(key, version, request), timeout_s=timeout_s)
        return decode_response(key, version, frame, parse_response_header(frame, key, version)[1])

    async def send_only(self, key: ApiKey, request: Any, *, at_most: int | None = None) -> None:
        """Send a request that gets no response: Produce with acks=0."""
        version = self.version_for(key, at_most=at_most)
        await self._write(key, version, self._take_correlation_id(), encode_request(key, version, request))

    async def negotiate(self, *, software_version: str, timeout_s: float) -> None:
        """Learn the broker's API versions. An older broker responds in version 0, with error 35 and its versions."""
        from ottla.wire.generated.api_versions import ApiVersionsRequest

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
                self.features = {item.name: item.max_version_level for item in answer.finalized_features}
                return
        raise CannotConnect(str(self.address), "it refuses every version of ApiVersions that this client supports")

    async def authenticate(self, sasl: Sasl, *, timeout_s: float) -> None:
        """Authenticate before the first other request. Raises the broker's `KafkaError`."""
        lifetime_ms = await authenticate(self, sasl, timeout_s=timeout_s)
        if lifetime_ms > 0:
            self._usable_until = asyncio.get_running_loop().time() + _SESSION_SHARE * lifetime_ms / 1000

    def _api_versions_fallback(self) -> int:
        _, highest = self.versions.get(ApiKey.API_VERSIONS, (0, 0))
        return min(highest, API_INFO[ApiKey.API_VERSIONS].max_version)

    def hand_over(self, protocol: asyncio.BaseProtocol) -> tuple[asyncio.Transport, asyncio.BaseProtocol]:
        """Let another protocol receive what arrives from now on; `request` cannot be used any more.

        Returns the transport and the protocol until now, to which the new one must pass on `connection_lost`. Raises
        NetworkException.
        """
        assert not self._pending, "a response is still to come"
        transport = cast("asyncio.Transport", self._streams[1].transport)
        if self._why_closed is not None or transport.is_closing():
            raise NetworkException(f"the connection to {self.address} was closed")
        self._reading.cancel()
        before = transport.get_protocol()
        transport.pause_reading()  # a loop may choose the way of reading when reading begins
        transport.set_protocol(protocol)
        transport.resume_reading()
        return transport, before

    async def close(self) -> None:
        """Close the connection; pending requests fail with `NetworkException`.

        What was written before is still sent, unless the peer does not read it within some seconds.
        """
        self._fail(NetworkException(f"the connection to {self.address} was closed"))
        self._reading.cancel()
        await asyncio.wait((self._reading,))
        writer = self._streams[1]
        try:
            async with asyncio.timeout(_FLUSH_S):
                await writer.wait_closed()
        except TimeoutError:
            writer.transport.abort()
        except OSError:
            pass  # it was lost

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
            head = length_prefix(len(header) + len(body)) + header
            writer.writelines((head, body) if body else (head,))  # an empty part stays in asyncio's buffer from 3.12 on
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
        prefix = b""
        try:
            while True:
                prefix = await reader.readexactly(LENGTH_BYTES)
                length = frame_length(prefix, 0, LENGTH_BYTES, frame_bytes_max=FRAME_BYTES_MAX)
                if length < _CORRELATION_ID.size or prefix.startswith(TLS_ALERT):
                    raise NetworkException(_foreign(self.address, prefix))
                frame = await reader.readexactly(length)
                waiter = self._pending.get(_CORRELATION_ID.unpack_from(frame)[0])
                if waiter is not None and not waiter.done():
                    waiter.set_result(frame)
        except (asyncio.IncompleteReadError, ConnectionResetError) as error:
            partial = error.partial if isinstance(error, asyncio.IncompleteReadError) else b""
            self.closed_unanswered = not self.versions and not partial
            advice = "; check the port and security.protocol" if self.closed_unanswered else ""
            self._fail(NetworkException(f"{self.address} closed the connection{advice}"))
        except OSError as error:
            self._fail(NetworkException(f"the connection to {self.address} broke: {error}"))
        except FrameRefused:
            self._fail(NetworkException(_foreign(self.address, prefix)))
        except NetworkException as error:
            self._fail(error)

    def _fail(self, why: Exception) -> None:
        if self._why_closed is not None:
            return
        self._why_closed = why
        for waiter in self._pending.values():
            if not waiter.done():
                waiter.set_exception(why)
                waiter.exception()  # the caller may have stopped waiting: avoids asyncio's "never retrieved" warning
        self._streams[1].close()


async def open_connection(
    address: Address, *, client_id: str, timeout_s: float, dial: Dial = dial_tcp, sasl: Sasl | None = None
) -> Connection:
    """Connect, negotiate versions, authenticate. Raises `CannotConnect`, or the `KafkaError` of the authentication."""
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
        is_tls = connection.closed_unanswered and dial is dial_tcp and await _is_tls_server(address)
        raise CannotConnect(where, f"connected, but {_requires_tls(address) if is_tls else error}") from error
    except BaseException:
        await connection.close()
        raise
    return connection


async def is_http_server(address: Address, *, timeout_s: float) -> bool:
    """Ask in HTTP whether a peer speaks it: one that waits for a line does not answer a frame of Kafka's protocol."""
    return await _first_bytes(address, _HTTP_REQUEST, len(_HTTP_ANSWER), timeout_s=timeout_s) == _HTTP_ANSWER


async def _is_tls_server(address: Address) -> bool:
    """Begin a TLS handshake with a peer that closed without an answer, as OpenSSL's and Go's servers do."""
    hello = ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    handshake = context.wrap_bio(ssl.MemoryBIO(), hello, server_hostname=address.host)
    with contextlib.suppress(ssl.SSLWantReadError):
        handshake.do_handshake()
    answer = await _first_bytes(address, hello.read(), len(TLS_HANDSHAKE), timeout_s=_TLS_TIMEOUT_S)
    return answer in {TLS_HANDSHAKE, TLS_ALERT}


async def _first_bytes(address: Address, question: bytes, size: int, *, timeout_s: float) -> bytes:
    """Open a connection, send bytes, and return the first bytes of the answer; empty if there are too few."""
    try:
        async with asyncio.timeout(timeout_s):
            reader, writer = await dial_tcp(address.host, address.port)
            try:
                writer.write(question)
                return await reader.readexactly(size)
            finally:
                writer.close()
    except (TimeoutError, OSError, asyncio.IncompleteReadError):
        return b""


ConnectTo = Callable[[int], Awaitable[Connection]]
"""Opens a connection to a broker by its node id; the caller closes it. Raises `CannotConnect`."""


def _foreign(address: Address, first_bytes: bytes) -> str:
    """Describe a peer whose first bytes are no response of Kafka's protocol."""
    if first_bytes.startswith(_HTTP_ANSWER):
        return f"{address} {HTTP_SERVER}"
    if first_bytes.startswith(TLS_ALERT):
        return _requires_tls(address)
    return f"{address} does not speak Kafka's protocol; check the port"


def _requires_tls(address: Address) -> str:
    return f"{address} requires TLS; set security.protocol to SSL or SASL_SSL"


@functools.cache
def _software_version() -> str:
    from importlib.metadata import version

    return version("ottla")


def _reason(error: OSError) -> str:
    """Return the reason why connecting failed; asyncio's "Connect call failed" has none in it."""
    import errno
    import os
    import socket

    several = f"Errno {errno.ECONNREFUSED}" in str(
        error
    )  # a host with several addresses: asyncio joins the errors into one text
    if isinstance(error, ssl.SSLError):
        return explain(error)
    if isinstance(error, ConnectionRefusedError) or several:
        return "connection refused; check that a broker is running there"
    if isinstance(error, ConnectionResetError | ConnectionAbortedError):
        return "it closed the connection; check security.protocol"
    if isinstance(error, socket.gaierror):
        return "no such host"
    return os.strerror(error.errno) if error.errno else str(error)
