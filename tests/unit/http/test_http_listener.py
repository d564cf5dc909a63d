"""The HTTP listener lets pass what it should, and nothing that changes something without the token."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ottla.broker.config import read
from ottla.broker.http_endpoint import http_address, http_tls
from ottla.core.settings import InvalidSettings
from ottla.http.address import HttpAddress
from ottla.http.listener import HttpListener
from ottla.http.web import Receive, Request, Response, Route, Scope, Send, json_response
from tests.support.certificates import Certificates

Serve = Callable[..., HttpListener]


async def _hello(request: Request) -> Response:
    return json_response(request.method)


async def _console(scope: Scope, receive: Receive, send: Send) -> None:
    await json_response("console")(scope, receive, send)


@pytest.fixture
def serve() -> Iterator[Serve]:
    running: list[HttpListener] = []

    def start(**given: object) -> HttpListener:
        address = given.pop("address", HttpAddress("127.0.0.1", 0))
        assert isinstance(address, HttpAddress)
        listener = HttpListener(
            address,
            open_routes=[Route("/livez", _hello)],
            routes=[Route("/metrics", _hello), Route("/change", _hello, methods=["POST"])],
            **given,  # type: ignore[arg-type]
        )
        listener.start()
        running.append(listener)
        return listener

    yield start
    for listener in running:
        listener._loop.call_soon_threadsafe(listener._stop.set)
        listener._thread.join()


def _ask(
    listener: HttpListener,
    method: str,
    path: str,
    *,
    headers: dict[str, str] | None = None,
    tls: ssl.SSLContext | None = None,
) -> tuple[int, object]:
    host, port = "127.0.0.1", listener.address.port
    connection = (
        http.client.HTTPConnection(host, port, timeout=10)
        if tls is None
        else http.client.HTTPSConnection("localhost", port, timeout=10, context=tls)
    )
    connection.request(method, path, headers=headers or {})
    response = connection.getresponse()
    body = json.loads(response.read())
    connection.close()
    return response.status, body


def test_without_a_token_everything_can_be_read_and_nothing_changed(serve: Serve) -> None:
    listener = serve()
    assert _ask(listener, "GET", "/livez") == (200, "GET")
    assert _ask(listener, "GET", "/metrics") == (200, "GET")
    assert _ask(listener, "POST", "/change")[0] == 403


def test_with_a_token_only_health_is_for_everybody(serve: Serve) -> None:
    listener, token = serve(token="s3"), {"Authorization": "Bearer s3"}
    assert _ask(listener, "GET", "/livez")[0] == 200
    for wrong in ({}, {"Authorization": "Bearer s4"}):
        assert _ask(listener, "GET", "/metrics", headers=wrong)[0] == 401
        assert _ask(listener, "POST", "/change", headers=wrong)[0] == 401
    assert _ask(listener, "GET", "/metrics", headers=token)[0] == 200
    assert _ask(listener, "POST", "/change", headers=token) == (200, "POST")


def test_a_page_whose_name_means_this_machine_is_refused(serve: Serve) -> None:
    listener = serve()
    for path in ("/livez", "/metrics"):
        assert _ask(listener, "GET", path, headers={"Host": "evil.example"})[0] == 403


def test_the_console_has_all_other_paths(serve: Serve) -> None:
    listener = serve(token="s3", console=_console)
    assert _ask(listener, "GET", "/topics") == (200, "console")
    assert _ask(listener, "GET", "/metrics")[0] == 401


def test_https_has_the_certificate_of_the_settings(serve: Serve, tmp_path: Path) -> None:
    certificates = Certificates(tmp_path)
    store = certificates.store("localhost")
    options = {
        "ottla.http.listener": "https://0.0.0.0:0",
        "listener.name.http.ssl.keystore.location": str(store),
        "ssl.keystore.type": "PEM",
    }
    config, _ = read(file=None, environment={"OTTLA_OTTLA_HTTP_TOKEN": "s3"}, options=options)
    address = http_address(config)
    assert address is not None
    listener = serve(address=address, tls=http_tls(config, address))
    assert _ask(listener, "GET", "/livez", tls=certificates.client_context()) == (200, "GET")


@pytest.mark.parametrize("address", ["0.0.0.0:9644", "http://192.0.2.1:9644", "nothing", "127.0.0.1:99999"])
def test_an_address_that_anybody_could_read_is_refused(address: str) -> None:
    config, _ = read(file=None, environment={"OTTLA_OTTLA_HTTP_TOKEN": "s3"}, options={"ottla.http.listener": address})
    with pytest.raises(InvalidSettings):
        http_address(config)


def test_an_insecure_address_can_be_insisted_on() -> None:
    options = {"ottla.http.listener": "0.0.0.0:9644", "ottla.allow.insecure.listeners": "true"}
    config, _ = read(file=None, environment={}, options=options)
    assert http_address(config) == HttpAddress("0.0.0.0", 9644)
