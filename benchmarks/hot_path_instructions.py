"""Counts the instructions that the broker executes for one request, in the form that runs (compiled, if it is built).

`python -m benchmarks.hot_path_instructions` starts a broker under valgrind's callgrind, which must be installed. 32
connections send their requests in step, all of one kind, and the instructions of the whole process are divided by the
requests. The figure has no instructions of the kernel, and does not depend on how busy the machine is: two runs differ
by less than one in a hundred. Busy polling is off, because it would count idle turns of the loop.

With `--signed-in` the connections belong to a user who has signed in by SASL, and with `--authorizer` 1,000 other ACLs
and one of that user decide on each request: the difference of the two is what the authorizer costs. With `--metrics`
each kind is counted twice, without metrics and while they are served: what is added is what they cost.
"""

from __future__ import annotations

import argparse
import os
import re
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks import clients, signing_in
from tests.support import ottla_process
from tests.support.batches import Written, batch
from tests.support.processes import free_port

CONNECTIONS = 32
WARM_UP, REQUESTS = 640, 3_200
OPTIONS = ("-o", "durability=page-cache", "-o", "ottla.busy.poll.us=0")
START_TIMEOUT_S = 200.0  # under valgrind
TOTALS = re.compile(r"^totals: (\d+)", re.MULTILINE)


def send(connections: list[socket.socket], frame: bytes, requests: int) -> None:
    """Send so many requests: one on each connection, then all responses, and so on."""
    for _ in range(requests // len(connections)):
        for connection in connections:
            connection.sendall(frame)
        for connection in connections:
            clients.receive(connection)


def instructions(
    directory: Path, kind: str, *, signed_in: bool = False, authorizer: bool = False, metrics: bool = False
) -> float:
    """Return the instructions for one request of this kind."""
    counts = directory / f"{kind}.callgrind"
    tool = ("valgrind", "--tool=callgrind", "--instr-atstart=no", f"--callgrind-out-file={counts}", sys.executable)
    options = [*OPTIONS, "-o", f"ottla.http.listener=127.0.0.1:{free_port()}"] if metrics else list(OPTIONS)
    if signed_in:
        file = directory / f"{kind}.properties"
        signing_in.write_settings(file, authorizer=authorizer)
        options += ["--config", str(file), "-o", "listener.security.protocol.map=PLAINTEXT:SASL_PLAINTEXT"]
    broker = ottla_process.OttlaProcess(directory / kind, options=options, prefix=tool)
    broker.start(timeout_s=START_TIMEOUT_S)
    connect = clients.connect
    try:
        if signed_in:
            connect = signing_in.connect_as_user
            with signing_in.as_admin(broker.port) as wire:
                clients.create_and_wait(wire, kind)
                if authorizer:
                    signing_in.create_acls(wire, kind)
        else:
            clients.make_topic(broker.port, kind)
        frame = clients.produce_frame(kind, batch([Written(os.urandom(200), None)]))
        connections = [connect(broker.port) for _ in range(CONNECTIONS)]
        if kind == "fetch":
            send(connections, frame, CONNECTIONS)  # so many batches are what each request reads
            frame = clients.fetch_frame(kind, 0)
        send(connections, frame, WARM_UP)
        subprocess.run(["callgrind_control", "-i", "on", str(broker.pid)], check=True, stdout=subprocess.DEVNULL)
        send(connections, frame, REQUESTS)
        subprocess.run(["callgrind_control", "-i", "off", str(broker.pid)], check=True, stdout=subprocess.DEVNULL)
        for connection in connections:
            connection.close()
    finally:
        broker.stop()
    found = TOTALS.search(counts.read_text(encoding="utf-8"))
    assert found, f"{counts} has no totals"
    return int(found[1]) / REQUESTS


def main() -> int:
    """Count for each kind of request."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("kinds", nargs="*", choices=["produce", "fetch", []], help="none: both")
    parser.add_argument("--signed-in", action="store_true")
    parser.add_argument("--authorizer", action="store_true", help="implies --signed-in")
    parser.add_argument("--metrics", action="store_true", help="count with metrics, too, and say what they add")
    asked = parser.parse_args()
    kinds = asked.kinds or ["produce", "fetch"]
    signed_in = asked.signed_in or asked.authorizer
    with tempfile.TemporaryDirectory(prefix="ottla-bench-") as directory:
        for kind in kinds:
            found = instructions(Path(directory), kind, signed_in=signed_in, authorizer=asked.authorizer)
            sys.stdout.write(f"{kind}: {found:,.0f} instructions a request\n")
            sys.stdout.flush()
            if asked.metrics:
                with_metrics = Path(directory) / "metrics"
                with_metrics.mkdir(exist_ok=True)
                more = instructions(with_metrics, kind, signed_in=signed_in, authorizer=asked.authorizer, metrics=True)
                sys.stdout.write(f"{kind}: {more:,.0f} with metrics, {100 * (more / found - 1):.1f} % more\n")
                sys.stdout.flush()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
