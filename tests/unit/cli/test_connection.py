"""How a command connects: HTTP servers are recognised, and the advice fits the place that named the brokers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from ottla.cli.connection import ConnectionOptions, command_failed, run_on_cluster
from ottla.cli.errors import CommandFailed, ExitCode
from ottla.client.cluster import Cluster
from ottla.client.errors import CannotConnect


@contextmanager
def http_server() -> Iterator[int]:
    """Run a server that answers nothing before it has read a line, as most do; yields its port."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    server.daemon_threads = True
    server.block_on_close = False  # the connection that got a frame of Kafka's protocol waits for a line
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


async def _nothing(_cluster: Cluster) -> None:
    raise AssertionError("the peer is no broker")


def test_an_http_server_that_waits_for_a_line_is_recognised(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(BaseHTTPRequestHandler, "log_message", lambda *_: None)
    with http_server() as port, pytest.raises(CommandFailed, match="it is an HTTP server") as failed:
        run_on_cluster(ConnectionOptions(brokers=f"127.0.0.1:{port}", timeout_s=20), _nothing)
    assert failed.value.code is ExitCode.CANNOT_CONNECT
    assert failed.value.advice == "check --brokers, which names this address"


def test_the_advice_names_a_broker_to_start_only_where_nothing_named_one(tmp_path: Path) -> None:
    def advice(target: ConnectionOptions, **environment: str) -> str | None:
        addresses = target.addresses({"XDG_CONFIG_HOME": str(tmp_path), "HOME": str(tmp_path), **environment})
        return command_failed(CannotConnect(str(addresses[0]), "connection refused")).advice

    assert advice(ConnectionOptions()) == "start a broker with `ottla server`, or select one with --brokers"
    assert advice(ConnectionOptions(), OTTLA_BROKERS="a:1") == "check OTTLA_BROKERS, which names this address"
    assert advice(ConnectionOptions(brokers="a:1")) == "check --brokers, which names this address"
