"""While ZooKeeper is away, the log of the broker and the failures of commands name it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes.test_start_and_stop import make_topic
from tests.support.ottla_process import OttlaProcess
from tests.support.processes import until
from tests.support.real_zookeeper import running_zookeeper
from tests.support.wire_client import Wire

pytestmark = [pytest.mark.slow, pytest.mark.external]
OTTLA = str(Path(sys.executable).with_name("ottla"))


def failure_of(server: OttlaProcess, *command: str, lines: str = "") -> str:
    """Run a command that fails; what it writes."""
    done = subprocess.run(
        [OTTLA, *command, "--brokers", server.bootstrap, "--timeout", "3"],
        input=lines,
        env={**os.environ, "OTTLA_BROKERS": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode > 0, done
    return done.stdout + done.stderr


@contextlib.contextmanager
def running(server: OttlaProcess) -> Iterator[OttlaProcess]:
    """Run a broker for the duration of a block."""
    try:
        yield server.start()
    finally:
        if server.process is not None and server.process.poll() is None:
            server.kill()


def test_a_produce_and_a_health_check_name_zookeeper_and_the_log_says_when_it_is_back(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        zookeeper = stack.enter_context(running_zookeeper(tmp_path / "zookeeper"))
        settings = {"zookeeper.connect": zookeeper.address, "zookeeper.session.timeout.ms": "1000"}
        options = [word for key, value in settings.items() for word in ("-o", f"{key}={value}")]
        server = stack.enter_context(running(OttlaProcess(tmp_path / "broker", options=options)))
        with Wire(server.port) as wire:
            make_topic(wire, "t")
        zookeeper.pause()
        try:
            until(lambda: f"the session with ZooKeeper at {zookeeper.address} is lost" in server.log, what="the loss")
            named = f"broker 1: no connection to ZooKeeper at {zookeeper.address}"
            assert named in failure_of(server, "produce", "t", lines="x\n")
            assert named in failure_of(server, "cluster", "health")
        finally:
            zookeeper.resume()
        until(lambda: f"another session with ZooKeeper at {zookeeper.address} was opened" in server.log, what="another")
        until(lambda: server.log.count("became controller") == 2, what="the controller")
        server.stop()
        server.assert_log_is_clean()
