"""Handshakes of TLS over real sockets: who is served, who is not, and what others notice of it."""

import asyncio
import contextlib
import gc
import os
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ottla.core.executors import BlockingJob, Executor
from ottla.core.files import FileRegion, SystemFile
from ottla.core.security_protocols import SecurityProtocol
from ottla.net import outbound, tls
from ottla.net.config import NetConfig
from ottla.net.connection import ServerConnection
from ottla.net.identity import ANONYMOUS, ConnectionIdentity
from ottla.net.server import Listeners
from ottla.net.tls import ListenerTls, TlsStream
from ottla.security.config import TlsConfig
from ottla.security.tls import load_tls
from tests.support.certificates import Certificates
from tests.support.echo import Echo, framed, read_frame
from tests.support.waiting import until
from tests.unit.net.conftest import LOOPS, Connect

pytestmark = pytest.mark.loop("uvloop")

REQUIRED = {"tls": {"client_auth": "required"}}


@pytest.fixture
def protocol() -> SecurityProtocol:
    return SecurityProtocol.SSL


class ManualClock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


async def ask(port: int, context: ssl.SSLContext, host: str = "localhost") -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=host)
    try:
        writer.write(framed(b"asked"))
        return await read_frame(reader)
    finally:
        writer.close()


def the_connection(listeners: Listeners) -> ServerConnection:
    (connection,) = listeners.connections
    return connection


def client_hello() -> bytes:
    outgoing = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="broker")
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


@LOOPS
@pytest.mark.setup(**REQUIRED)
async def test_a_client_is_known_by_the_name_in_its_certificate(
    listeners: Listeners, port: int, certificates: Certificates, loop: str
) -> None:
    context = certificates.client_context(certificates.issue("client@example.org", common_name="Ann, of tests"))
    reader, writer = await asyncio.open_connection("localhost", port, ssl=context)
    writer.write(framed(b"one"))
    assert await read_frame(reader) == b"one"

    connection = the_connection(listeners)
    assert connection.identity == ConnectionIdentity("User", r"CN=Ann\, of tests,OU=Tests,O=Ottla")
    assert connection.is_signed_in
    assert connection.cipher is not None and connection.cipher[0] == "TLSv1.3"
    writer.close()


@pytest.mark.parametrize("client_auth", ["none", "requested"])
async def test_a_client_without_a_certificate_is_anonymous_where_none_is_required(
    client_auth: str, listeners: Listeners, port: int, certificates: Certificates, tls: ListenerTls
) -> None:
    store, trusted = certificates.store("broker.pem"), certificates.trusted
    config = TlsConfig(keystore_location=str(store), truststore_location=str(trusted), client_auth=client_auth)
    tls.terms = load_tls(config).terms
    reader, writer = await asyncio.open_connection("localhost", port, ssl=certificates.client_context())
    writer.write(framed(b"one"))
    assert await read_frame(reader) == b"one"

    assert the_connection(listeners).identity == ANONYMOUS
    writer.close()


@pytest.mark.setup(**REQUIRED)
async def test_a_client_without_a_certificate_is_refused_where_one_is_required(
    port: int, certificates: Certificates, caplog: pytest.LogCaptureFixture, echo: Echo
) -> None:
    with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
        await ask(port, certificates.client_context())

    assert not echo.begun
    assert "the TLS handshake failed: peer did not return a certificate" in caplog.text


@pytest.mark.setup(**REQUIRED)
async def test_a_certificate_of_another_authority_is_refused(
    port: int, certificates: Certificates, caplog: pytest.LogCaptureFixture, echo: Echo
) -> None:
    foreign = certificates.client_context(certificates.issue("client@example.org", by=certificates.other))
    with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
        await ask(port, foreign)

    assert not echo.begun
    assert "its certificate is not trusted: unable to get local issuer certificate" in caplog.text


@pytest.mark.setup(tls={"client_auth": "required", "principal_mapping_rules": "RULE:^CN=([a-z]+),.*$/$1/U"})
async def test_a_certificate_whose_name_no_rule_maps_is_refused(
    listeners: Listeners, port: int, certificates: Certificates, caplog: pytest.LogCaptureFixture, echo: Echo
) -> None:
    named = certificates.client_context(certificates.issue("client@example.org", common_name="ann"))
    assert await ask(port, named) == b"asked"
    unnamed = certificates.client_context(certificates.issue("client@example.org", common_name="Ann"))
    with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
        await ask(port, unnamed)

    assert len(echo.begun) == 1
    assert "no rule of ssl.principal.mapping.rules" in caplog.text


@pytest.mark.parametrize(("versions", "served"), [(("TLSv1.3",), True), (("TLSv1.2",), True), (("TLSv1.1",), False)])
async def test_tls_1_2_and_1_3_are_served_and_older_versions_are_not(
    versions: tuple[str], port: int, certificates: Certificates, *, served: bool
) -> None:
    context = certificates.client_context()
    context.set_ciphers("ALL:@SECLEVEL=0")
    with contextlib.nullcontext() if served else pytest.warns(DeprecationWarning, match="TLSv1_1"):
        context.maximum_version = {"TLSv1.1": ssl.TLSVersion.TLSv1_1, "TLSv1.2": ssl.TLSVersion.TLSv1_2}.get(
            versions[0], ssl.TLSVersion.TLSv1_3
        )
        context.minimum_version = context.maximum_version
    if served:
        assert await ask(port, context) == b"asked"
    else:
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await ask(port, context)


@LOOPS
async def test_a_client_without_tls_is_named_in_the_log_once(
    port: int, caplog: pytest.LogCaptureFixture, loop: str
) -> None:
    for _ in range(3):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(framed(b"in clear"))
        assert await reader.read() == b""
        writer.close()

    (line,) = [line for line in caplog.messages if "closing the connection" in line]
    assert line.endswith("it does not use TLS; listener SSL does. Set security.protocol=SSL in the client.")


@pytest.mark.setup(config=NetConfig(handshake_ms=1000), clock=(clock := ManualClock()))
async def test_a_silent_client_and_one_that_stops_in_its_handshake_are_closed_after_a_time(
    listeners: Listeners, port: int, caplog: pytest.LogCaptureFixture
) -> None:
    silent, stopped = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
    stopped[1].write(client_hello())
    await until(lambda: listeners.unfinished_handshakes == 1)
    clock.seconds = 0.9
    listeners._sweep()
    assert len(listeners.connections) == 2

    clock.seconds = 2.0
    listeners._sweep()
    assert await silent[0].read() == b""
    await stopped[0].read()
    await until(lambda: not listeners.connections)
    assert listeners.unfinished_handshakes == 0
    assert "its TLS handshake took too long" in caplog.text
    for _, writer in (silent, stopped):
        writer.close()


async def test_handshakes_that_are_not_finished_are_bounded_and_others_are_served(
    listeners: Listeners, port: int, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "UNFINISHED_MAX", 20)
    flood = [await asyncio.open_connection("127.0.0.1", port) for _ in range(50)]
    hello = client_hello()
    for _, writer in flood:
        writer.write(hello)
    await until(lambda: len(listeners.connections) == 20)

    assert listeners.unfinished_handshakes == 20
    assert await ask(port, certificates.client_context()) == b"asked"
    for _, writer in flood:
        writer.close()


class Received(asyncio.BufferedProtocol):
    """A connection to which nothing comes."""


class Discarding(asyncio.Transport):
    """A transport that discards what is written."""

    def write(self, data: Any) -> None:
        pass

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass


class StepsByHand:
    """The thread of handshakes, and its clock: each step takes 1.5 ms."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.jobs: list[BlockingJob] = []

    def __call__(self) -> float:
        return self.seconds

    def submit(self, job: BlockingJob) -> None:
        self.jobs.append(job)

    def close(self) -> None:
        pass

    def run(self) -> None:
        (job,) = self.jobs
        self.jobs.clear()
        self.seconds += 0.0015
        job.run()
        job.finished()


async def test_one_step_of_a_handshake_runs_at_a_time_and_half_of_the_time_is_left_to_others(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    thread, pauses, loop = StepsByHand(), list[float](), asyncio.get_running_loop()
    handshakes = tls.Handshakes(thread, thread)

    def call_later(delay: float, callback: Callable[[], None]) -> asyncio.Handle:
        pauses.append(delay)
        thread.seconds += delay
        return loop.call_soon(callback)

    monkeypatch.setattr(loop, "call_later", call_later)
    for _ in range(10):
        begin_handshake(certificates, handshakes, disk=thread)
    while handshakes.unfinished < 10:
        if thread.jobs:
            thread.run()
        else:
            await asyncio.sleep(0)

    assert pauses == [pytest.approx(0.003)] * 4


def begin_handshake(certificates: Certificates, handshakes: tls.Handshakes, *, disk: Executor) -> tls.TlsStream:
    """Have the first message of a client arrive."""
    terms = ListenerTls(load_tls(TlsConfig(keystore_location=str(certificates.store("broker.pem")))).terms)
    stream = tls.TlsStream(
        Received(),
        terms,
        handshakes,
        memoryview(bytearray(1 << 16)),
        disk,
        on_secured=lambda _: None,
        on_refused=lambda *_: None,
    )
    hello = client_hello()
    stream.connection_made(Discarding())
    stream.get_buffer(-1)[: len(hello)] = hello
    stream.buffer_updated(len(hello))
    return stream


@pytest.mark.parametrize("end", ["lost", "closed", "refused", "aborted"])
async def test_what_ends_during_a_step_of_its_handshake_leaves_openssl_alone(
    certificates: Certificates, end: str
) -> None:
    thread = StepsByHand()
    handshakes = tls.Handshakes(thread, thread)
    stream = begin_handshake(certificates, handshakes, disk=thread)
    job = thread.jobs.pop()
    with pytest.raises(AssertionError, match="reading is paused"):
        stream.buffer_updated(1)
    match end:
        case "lost":
            stream.connection_lost(None)
        case "closed":
            stream.close()
        case "refused":
            stream.refuse("handshakes", "too many")
        case "aborted":
            stream.abort()
    job.run()
    stream.flush()
    job.finished()
    assert handshakes.unfinished == 0
    assert not thread.jobs


async def test_nothing_is_allocated_for_a_client_that_has_sent_nothing(listeners: Listeners, port: int) -> None:
    clients = [await asyncio.open_connection("127.0.0.1", port) for _ in range(10)]
    await until(lambda: len(listeners.connections) == 10)

    streams = [connection._transport for connection in listeners.connections]
    assert all(isinstance(stream, tls.TlsStream) and stream._tls is None for stream in streams)
    for _, writer in clients:
        writer.close()


class Recording:
    """A file that notes how often it is read in the usual way."""

    def __init__(self, file: SystemFile) -> None:
        self._file = file
        self.reads = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def read_at(self, position: int, size: int) -> bytes:
        self.reads += 1
        return self._file.read_at(position, size)


@LOOPS
@pytest.mark.parametrize("is_cached", [True, False], ids=("cached", "from disk"))
async def test_a_region_of_a_file_is_read_on_the_loop_only_if_it_is_in_memory(
    echo: Echo, connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loop: str, *, is_cached: bool
) -> None:
    content = os.urandom(1 << 20) + b"end"
    (tmp_path / "segment").write_bytes(content)
    if not is_cached:
        monkeypatch.setattr(outbound, "NOWAIT", 0)
    file = Recording(SystemFile(tmp_path / "segment", create=False))
    echo.region = FileRegion(file, 0, len(content))
    reader, writer = await connect()
    writer.write(framed(b"file") + framed(b"after"))

    assert await read_frame(reader) == content
    assert await read_frame(reader) == b"after"
    assert file.reads == (0 if is_cached else 5)
    writer.close()
    file.close()


@LOOPS
async def test_the_next_connection_has_the_new_certificate_and_an_open_one_goes_on(
    port: int, certificates: Certificates, tls: ListenerTls, loop: str
) -> None:
    context = certificates.client_context()
    reader, writer = await asyncio.open_connection("localhost", port, ssl=context)
    first = writer.get_extra_info("ssl_object").getpeercert()
    new = certificates.store("new.pem", certificates.issue("localhost"))
    tls.terms = load_tls(TlsConfig(keystore_location=str(new))).terms

    second_reader, second = await asyncio.open_connection("localhost", port, ssl=context)
    assert second.get_extra_info("ssl_object").getpeercert()["serialNumber"] != first["serialNumber"]
    for one, other in ((reader, writer), (second_reader, second)):
        other.write(framed(b"served"))
        assert await read_frame(one) == b"served"
        other.close()


@LOOPS
async def test_a_closed_connection_says_that_nothing_follows(listeners: Listeners, connect: Connect, loop: str) -> None:
    reader, writer = await connect()
    await until(lambda: not the_connection(listeners).is_handshaking)
    the_connection(listeners).close()

    assert await reader.read() == b""
    writer.close()


def connections_alive() -> set[ServerConnection | TlsStream]:
    """Return the connections and TLS streams that something refers to, a cycle of theirs too."""
    return {alive for alive in gc.get_objects() if isinstance(alive, ServerConnection | TlsStream)}


@LOOPS
@pytest.mark.parametrize("how", ["half a handshake", "half a request"])
async def test_a_connection_that_is_lost_needs_no_garbage_collector(
    listeners: Listeners, port: int, connect: Connect, loop: str, how: str
) -> None:
    """A broker excludes objects that have lived for a while from collections: a cycle among them would stay."""
    gc.collect()
    older = connections_alive()  # of other tests of this process
    gc.disable()
    try:
        if how == "half a handshake":
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(client_hello())
        else:
            reader, writer = await connect()
            writer.write(framed(b"a"))
            assert await read_frame(reader) == b"a"
            writer.write(framed(b"b" * 1000)[:100])
        await until(lambda: len(listeners.connections) == 1)
        writer.transport.abort()
        await until(lambda: not listeners.connections)
        await asyncio.sleep(0)  # let the loop forget the transport
        assert connections_alive() <= older
    finally:
        gc.enable()
