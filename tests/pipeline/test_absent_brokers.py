"""A broker that cannot be reached is reported soon, and waited for if asked; a round without news prints nothing."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from ottla.cli.errors import ExitCode
from ottla.cli.main import run
from ottla.client.errors import CannotConnect
from ottla.pipeline.connector.datasource import OttlaDataSource
from ottla.pipeline.connector.offset_client import OffsetClient
from ottla.pipeline.connector.subscription import TopicSubscription
from ottla.pipeline.source import Brokers
from tests.support.ottla_process import OttlaProcess
from tests.support.processes import free_port
from tests.support.topics import create_topic

LIMIT_S = 10.0


@contextmanager
def silent(count: int) -> Iterator[str]:
    """Servers that accept connections and never answer, as addresses."""
    with ExitStack() as stack:
        servers = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        yield ",".join(f"127.0.0.1:{server.getsockname()[1]}" for server in servers)


def topics(brokers: Brokers) -> None:
    offset_client = OffsetClient(brokers.read_options)
    try:
        offset_client.topics(TopicSubscription(pattern=".*"))
    finally:
        offset_client.close()


@pytest.mark.slow
@pytest.mark.parametrize("count", [0, 1, 3])
def test_absent_brokers_are_reported_within_ten_seconds(count: int) -> None:
    with silent(count) as addresses:
        began = time.monotonic()
        with pytest.raises(CannotConnect):
            topics(Brokers(addresses or f"127.0.0.1:{free_port()}"))
        assert time.monotonic() - began < LIMIT_S


@pytest.mark.slow
def test_a_command_names_the_broker_and_the_option_that_waits(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    began = time.monotonic()
    address = f"127.0.0.1:{free_port()}"
    code = run(["pipeline", "load", "web", "--lake", str(tmp_path / "lake"), "--brokers", address, "--wait", "1s"])
    assert (code, time.monotonic() - began < LIMIT_S / 2) == (ExitCode.CANNOT_CONNECT, True)
    printed = capsys.readouterr().err
    assert f"cannot connect to {address}" in printed
    assert "--wait 5m" in printed


@pytest.mark.slow
def test_a_broker_that_comes_up_is_found_by_a_command_that_waits(ottla_server: OttlaProcess) -> None:
    create_topic(ottla_server.bootstrap, "web")
    port = free_port()
    host, _, real = ottla_server.bootstrap.rpartition(":")

    def forward() -> None:
        time.sleep(1.5)
        with socket.create_server(("127.0.0.1", port)) as server:
            near, _ = server.accept()
            with near, socket.create_connection((host, int(real))) as far:
                other = threading.Thread(target=pump, args=(far, near), daemon=True)
                other.start()
                pump(near, far)

    def pump(source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65_536):
                target.sendall(data)
        except OSError:
            return

    with pytest.raises(CannotConnect):
        topics(Brokers(f"127.0.0.1:{port}", wait_s=0.3))
    thread = threading.Thread(target=forward, daemon=True)
    thread.start()
    topics(Brokers(f"127.0.0.1:{port}", wait_s=30))


def test_a_sink_reports_absent_brokers_before_tasks_try_them() -> None:
    from pyspark.sql.types import BinaryType, StructField, StructType

    options: Any = {"kafka.bootstrap.servers": f"127.0.0.1:{free_port()}", "topic": "out", "brokerWait": "200ms"}
    with pytest.raises(CannotConnect):
        OttlaDataSource(options).writer(StructType([StructField("value", BinaryType())]), overwrite=False)


def test_a_stream_reports_absent_brokers_before_spark_starts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = tmp_path / "job.toml"
    stream = '[[stream]]\nname = "s"\nfrom = "web"\nwindow = "1m"\nvalues = {n = "count"}\n'
    load = '[lake]\npath = "lake"\n[[load]]\ntopics = ["web"]\n'
    job.write_text(f'[brokers]\nbootstrap = "127.0.0.1:{free_port()}"\nwait = "300ms"\n{load}{stream}')
    code = run(["pipeline", "stream", "--no-load", "--job", str(job)])
    assert code == ExitCode.CANNOT_CONNECT, capsys.readouterr()
    assert not (tmp_path / "lake-spark").exists()
