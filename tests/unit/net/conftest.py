"""Listeners over real sockets that echo, plain ones unless a module's own `protocol` says otherwise."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from ottla.core.security_protocols import SecurityProtocol
from ottla.limits.budget import ByteBudget
from ottla.net.config import NetConfig
from ottla.net.server import ListenerAddress, Listeners
from ottla.net.tls import ListenerTls
from ottla.security.config import TlsConfig
from ottla.security.tls import load_tls
from tests.support.async_tests import setup_of
from tests.support.certificates import Certificates
from tests.support.echo import Echo

LOOPS = pytest.mark.parametrize(
    "loop", [pytest.param(name, marks=pytest.mark.loop(name)) for name in ("uvloop", "asyncio")]
)
Connect = Callable[..., Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


@pytest.fixture
def echo() -> Echo:
    return Echo()


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def protocol() -> SecurityProtocol:
    return SecurityProtocol.PLAINTEXT


@pytest.fixture
def tls(request: pytest.FixtureRequest, certificates: Certificates, protocol: SecurityProtocol) -> ListenerTls | None:
    """The TLS of the listener, with the settings `tls` of the mark `setup`."""
    if not protocol.uses_tls:
        return None
    store, trusted = certificates.store("broker.pem"), certificates.trusted
    config = TlsConfig(
        keystore_location=str(store), truststore_location=str(trusted), **setup_of(request).get("tls", {})
    )
    return ListenerTls(load_tls(config).terms)


@pytest.fixture
async def listeners(
    request: pytest.FixtureRequest, echo: Echo, protocol: SecurityProtocol, tls: ListenerTls | None
) -> AsyncIterator[Listeners]:
    setup = setup_of(request)
    budget = ByteBudget(setup.get("budget_bytes", 1 << 30))
    now = setup.get("clock", asyncio.get_running_loop().time)
    listeners = Listeners(setup.get("config", NetConfig()), budget=budget, now=now)
    await listeners.bind(ListenerAddress(protocol.name, "127.0.0.1", 0), protocol, tls)
    await listeners.listen(echo)
    yield listeners
    await listeners.close(within_seconds=1)


@pytest.fixture
def port(listeners: Listeners) -> int:
    (place,) = listeners._servers.values()
    return place.port


@pytest.fixture
def connect(port: int, certificates: Certificates, protocol: SecurityProtocol) -> Connect:
    """Connects a client, with TLS if the listener has it."""
    context = certificates.client_context() if protocol.uses_tls else None

    async def connect(limit: int = 1 << 16) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", port, ssl=context, limit=limit)

    return connect
