"""Measures what an innocent client feels of clients that abuse the broker, and the memory that they cost it.

The innocent client is signed in by SCRAM on a listener with TLS, and makes one request after the other. The abuse
(tests/support/abuse.py) comes from another process, whose priority is low: the client that is measured shares two cores
with it. `tests/security/test_abuse.py` is the short form, which measures no time.
"""

from __future__ import annotations

import argparse
import resource
import ssl
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from benchmarks.progress import Progress
from benchmarks.report import ABUSE_TITLE, machine, today, write_part
from tests.support.abuse import ABUSES, MARGIN, MIB, Abuser, Innocent, Ports, budget_bytes, prepare, settings
from tests.support.certificates import Certificates
from tests.support.ottla_process import OttlaProcess
from tests.support.processes import free_port, usage

PAGE = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"
COUNTS = {
    "idle connections": 5_000,
    "slow readers": 1_000,
    "failed sign-ins": 2_000,
    "TLS handshakes": 2_000,
    "compressed bombs": 96,
    "10x the quota": 50,
}
"""Those that are held; of the others, how many there are before the measurement begins."""
LOW_PRIORITY = ("nice", "-n", "15")
SIGN_INS = 10


class Latency(NamedTuple):
    """What the innocent client saw."""

    p50_ms: float
    p99_ms: float
    sign_in_ms: float  # the median of new connections


class Measured(NamedTuple):
    """One kind of abuse."""

    kind: str
    done: str
    alone: Latency
    beside: Latency
    grown_bytes: int
    allowed_bytes: int
    descriptors_left: int
    bytes_left: int


class Server(OttlaProcess):
    """A broker with a listener for SASL, and one for SASL and TLS."""

    def __init__(self, directory: Path) -> None:
        certificates = Certificates(directory / "certificates")
        self.tls: ssl.SSLContext = certificates.client_context()
        self.ports = Ports(free_port(), free_port())
        listeners = f"SASL_PLAINTEXT://127.0.0.1:{self.ports.sasl},SASL_SSL://127.0.0.1:{self.ports.tls}"
        given = {**settings(certificates, directory / "users"), "listeners": listeners}
        super().__init__(directory, options=[part for name in given for part in ("-o", f"{name}={given[name]}")])

    def command(self) -> list[str]:
        """Leave out the port: the listeners have theirs."""
        command = super().command()
        at = command.index("--port")
        return command[:at] + command[at + 2 :]


def measure(innocent: Innocent, seconds: float) -> Latency:
    """Make requests for so long, and then some sign-ins."""
    times: list[float] = []
    end = time.perf_counter() + seconds
    while (began := time.perf_counter()) < end:
        innocent.ask()
        times.append(time.perf_counter() - began)
    times.sort()
    sign_ins = []
    for _ in range(SIGN_INS):
        began = time.perf_counter()
        innocent.sign_in_again()
        sign_ins.append(time.perf_counter() - began)
    return Latency(
        times[len(times) // 2] * 1e3, times[int(len(times) * 0.99)] * 1e3, sorted(sign_ins)[SIGN_INS // 2] * 1e3
    )


def run(server: Server, kind: str, seconds: float) -> Measured:
    """Measure beside one kind of abuse, and before it."""
    innocent = Innocent(server.ports.tls, server.tls)
    measure(innocent, seconds / 4)
    alone = measure(innocent, seconds)
    before = usage(server.pid)
    Path(f"/proc/{server.pid}/clear_refs").write_text("5")  # the peak begins again
    began = time.perf_counter()
    abuser = Abuser(kind, COUNTS[kind], server.ports, prefix=LOW_PRIORITY)
    while not abuser.has_done_its_count:
        innocent.ask()
    beside = measure(innocent, seconds)
    peak, took_s = usage(server.pid).peak_rss_bytes, time.perf_counter() - began
    done = abuser.stop()
    is_held = kind in {"idle connections", "slow readers"}
    deadline = time.monotonic() + 45  # a client above its quota is not read from for a while
    while (after := usage(server.pid)).descriptors > before.descriptors and time.monotonic() < deadline:
        innocent.ask()
    innocent.close()
    return Measured(
        kind,
        f"{done:,}" if is_held else f"{done / took_s:,.0f}/s",
        alone,
        beside,
        peak - before.rss_bytes,
        round(budget_bytes(kind, COUNTS[kind]) * MARGIN),
        after.descriptors - before.descriptors,
        after.rss_bytes - before.rss_bytes,
    )


def table(found: list[Measured]) -> list[str]:
    """Return the rows."""
    columns = "done", *(f"{what}, ms, {when}" for what in ("p50", "p99", "sign-in") for when in ("alone", "beside"))
    columns += "p99 beside / alone", "memory, MiB", "allowed, MiB", "descriptors left", "MiB left"
    rows = [f"| | {' | '.join(columns)} |", f"| --- |{' ---: |' * len(columns)}"]
    for kind, done, alone, beside, grown, allowed, descriptors, left in found:
        times = " | ".join(f"{one:.1f} | {other:.1f}" for one, other in zip(alone, beside, strict=True))
        rows.append(
            f"| {kind} | {done} | {times} | {beside.p99_ms / alone.p99_ms:.1f} | {grown / MIB:.0f} | "
            f"{allowed / MIB:.0f} | {descriptors} | {left / MIB:.0f} |"
        )
    return rows


def main() -> int:
    """Run what was asked for; the exit code is 1 if more memory was used than allowed, or something was left."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.abuse", description=__doc__)
    parser.add_argument("kinds", nargs="*", help=f"of {', '.join(ABUSES)}")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--no-page", action="store_true", help="write no page")
    asked = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    progress = Progress()
    found = []
    with tempfile.TemporaryDirectory(prefix="ottla-bench-") as scratch:
        server = Server(Path(scratch))
        server.start()
        try:
            prepare(server.ports.sasl)
            for kind in asked.kinds or ABUSES:
                progress.status(kind)
                found.append(run(server, kind, asked.seconds))
        finally:
            server.stop()
    for row in table(found):
        progress.line(row)
    if not asked.no_page:
        text = (
            f"Measured {today()} on {machine()}. A client signed in by SCRAM over TLS produces a record (fsync) and "
            "asks for metadata, again and again: the times are those of both together, alone and beside each abuse. "
            "The abuse comes from another process, with a low priority. Memory is the growth of the resident set at "
            "its peak; allowed are the budget and 25 %."
        )
        write_part(PAGE, ABUSE_TITLE, [text, "", *table(found)])
    return int(any(each.grown_bytes > each.allowed_bytes or each.descriptors_left > 0 for each in found))


if __name__ == "__main__":
    sys.exit(main())
