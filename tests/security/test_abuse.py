"""An innocent client beside one that abuses the broker: it is served, memory stays bounded, and nothing is left.

The short form of `make bench-abuse`, which has the numbers of the issue and measures the innocent client's latency.
"""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.abuse import ABUSES, MARGIN, MIB, Abuser, Innocent, Ports, budget_bytes, prepare, settings
from tests.support.certificates import Certificates
from tests.support.processes import usage

pytestmark = pytest.mark.slow

REQUESTS = 60
"""Of the innocent client beside each abuse, at least."""

GONE_WITHIN_S = 60.0
"""A client above its quota is not read from for a while, so that its end is seen late."""

COUNTS = {
    "idle connections": 600,
    "slow readers": 100,
    "failed sign-ins": 400,
    "TLS handshakes": 400,
    "compressed bombs": 96,
    "10x the quota": 200,
}


class Broker:
    """A broker in a process of its own that says what it holds."""

    def __init__(self, directory: Path) -> None:
        certificates = Certificates(directory / "certificates")
        self.tls: ssl.SSLContext = certificates.client_context()
        options = settings(certificates, directory / "users")
        command = [sys.executable, "-m", "tests.support.measured_server", "--without-collector"]
        self._process = subprocess.Popen(
            [*command, str(directory / "data"), *(f"{name}={value}" for name, value in options.items())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.ports = Ports(*map(int, self._line().split()))
        prepare(self.ports.sasl)

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def held(self) -> dict[str, Any]:
        """Return what the broker holds; nothing may have failed unexpectedly since the last call."""
        assert self._process.stdin is not None
        self._process.stdin.write("held\n")
        self._process.stdin.flush()
        answer = json.loads(self._line())
        assert not answer["error"], answer["error"]
        found: dict[str, Any] = answer["held"]
        return found

    def left(self, before: dict[str, Any]) -> dict[str, Any]:
        """Return what the broker holds more than before."""
        return {name: count for name, count in self.held().items() if count > before[name]}

    def begin_peak(self) -> int:
        """Let the peak of the memory begin again; returns what is in use."""
        Path(f"/proc/{self._process.pid}/clear_refs").write_text("5")
        return usage(self._process.pid).rss_bytes

    def peak_bytes(self) -> int:
        """Return the most memory that was in use."""
        return usage(self._process.pid).peak_rss_bytes

    def descriptors(self) -> int:
        """Return the number of open files and sockets."""
        return usage(self._process.pid).descriptors

    def stop(self) -> None:
        """Kill it: what it wrote is of no use to anyone."""
        self._process.kill()
        self._process.communicate()


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """One broker for all kinds of abuse."""
    started = Broker(tmp_path_factory.mktemp("abused"))
    yield started
    started.stop()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ABUSES)
def test_an_innocent_client_is_served_beside_abuse_of_which_nothing_stays(broker: Broker, kind: str) -> None:
    innocent = Innocent(broker.ports.tls, broker.tls)
    innocent.ask()
    before, descriptors, used = broker.held(), broker.descriptors(), broker.begin_peak()
    abuser = Abuser(kind, COUNTS[kind], broker.ports)
    served = 0
    while served < REQUESTS or not abuser.has_done_its_count:
        innocent.ask()
        served += 1
        if served % 20 == 0:
            innocent.sign_in_again()
    during = broker.held()
    for _ in range(REQUESTS):
        innocent.ask()
    grown = broker.peak_bytes() - used
    assert abuser.stop() >= COUNTS[kind]
    print(f"{kind}: {served} served, {grown / MIB:.0f} MiB more, {during}")
    assert grown <= budget_bytes(kind, COUNTS[kind]) * MARGIN

    innocent.sign_in_again()
    deadline = time.monotonic() + GONE_WITHIN_S
    while left := broker.left(before) or broker.descriptors() > descriptors:
        assert time.monotonic() < deadline, f"left: {left}"
        innocent.ask()  # it goes on while the broker closes what the abuser has left
    innocent.close()
