"""`ottla up` as a process of its own: ZooKeeper and brokers, which can be killed, paused and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ottla.local_cluster.control import send_command
from tests.support.log_files import batches_in
from tests.support.processes import close_output, free_ports, is_running, stop, wait_for_line

START_TIMEOUT_S = 90.0


class UpProcess:
    """One cluster and its directory. `start` and `stop` alternate."""

    def __init__(
        self,
        directory: Path,
        *,
        brokers: int = 3,
        options: Sequence[str] = (),
        is_secured: bool = False,
        arguments: Sequence[str] = (),
    ) -> None:
        self.arguments = tuple(arguments)
        self.directory, self.brokers, self.options, self.is_secured = directory, brokers, tuple(options), is_secured
        self.nodes = range(1, brokers + 1)
        self.port = free_ports(brokers)
        self.process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)

    @property
    def ports(self) -> range:
        return range(self.port, self.port + self.brokers)

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    def command(self, *arguments: str) -> list[str]:
        program = str(Path(sys.executable).with_name("ottla"))
        return [program, "up", "--data", str(self.directory), *arguments]

    def start(self) -> UpProcess:
        """Start it and wait until it is ready. Raises `NotReady` with its output."""
        options = [text for option in self.options for text in ("-o", option)]
        secure = ["--secure"] if self.is_secured else []
        with (self.directory / "up.err").open("ab") as errors:
            self.process = subprocess.Popen(
                self.command("-n", str(self.brokers), "--port", str(self.port), *options, *secure, *self.arguments),
                stdout=subprocess.PIPE,
                stderr=errors,
            )
        line = wait_for_line(self.process, b"cluster ready:", timeout_s=START_TIMEOUT_S)
        assert line.decode().strip() == f"cluster ready: {self.bootstrap}"
        return self

    def stop(self) -> int:
        """Stop it with SIGTERM; its exit code."""
        assert self.process is not None
        return stop(self.process, timeout_s=60)

    def kill_all(self) -> None:
        """Kill everything with -9."""
        assert self.process is not None
        pids = [row["pid"] for row in self.rows().values() if row["pid"]]
        self.process.send_signal(signal.SIGSTOP)  # it would start ZooKeeper again
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        self.process.kill()
        self._until_gone(pids)

    def kill_command(self) -> None:
        """Kill `ottla up` with -9, and wait until nothing of its cluster runs."""
        assert self.process is not None
        pids = [row["pid"] for row in self.rows().values() if row["pid"]]
        self.process.kill()
        self._until_gone(pids)

    def _until_gone(self, pids: list[int]) -> None:
        assert self.process is not None
        self.process.wait()
        close_output(self.process)
        deadline = time.monotonic() + 60
        while any(map(is_running, pids)):
            assert time.monotonic() < deadline, f"some of {pids} still run"
            time.sleep(0.05)

    # ---- Single processes

    def rows(self) -> dict[str, dict[str, Any]]:
        """What `--status` lists, by process."""
        return {row["process"]: row for row in send_command(self.directory, {"command": "status"})["processes"]}

    def pid(self, process: str) -> int:
        return int(self.rows()[process]["pid"])

    def kill(self, node: int) -> None:
        """Kill a broker with -9."""
        assert "message" in send_command(self.directory, {"command": "kill", "node": node})

    def start_broker(self, node: int) -> None:
        """Start a broker that does not run, and wait until it is ready."""
        answer = send_command(self.directory, {"command": "start", "node": node})
        assert "message" in answer, f"{answer}\n{self.log(node)[-3000:]}"

    def stop_broker(self, node: int) -> None:
        """Stop a broker with SIGTERM and wait for its end."""
        pid = self.pid(f"broker {node}")
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + 40
        while self.rows()[f"broker {node}"]["pid"]:
            assert time.monotonic() < deadline, f"broker {node} does not stop"
            time.sleep(0.02)

    def signal(self, process: str, number: signal.Signals) -> None:
        """Send a signal to `zookeeper` or `broker N`."""
        os.kill(self.pid(process), number)

    def content(self, node: int, topic: str, partition: int) -> bytes:
        """Every batch of a replica's log."""
        directory = self.directory / f"broker-{node}" / f"{topic}-{partition}"
        return b"".join(batches_in(file) for file in sorted(directory.glob("*.log")))

    def log(self, node: int) -> str:
        return (self.directory / f"broker-{node}.log").read_text(errors="replace")
