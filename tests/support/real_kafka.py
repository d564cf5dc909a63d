"""A real Apache Kafka, one process that is broker and controller at once, on free ports of this machine."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from pathlib import Path

from tests.support.class_archive import archive_in, make_archive
from tests.support.jvm import SHORT_RUN, java
from tests.support.processes import NotReady, free_port, stop

# Those of kafka-server-start.sh and kafka-run-class.sh (KAFKA_JVM_PERFORMANCE_OPTS), so that a comparison of speed is fair.
FULL_JVM = (
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-Djava.awt.headless=true",
)
CLUSTER_ID = "b3R0bGEtdGVzdHMtMDAwMQ"
START_TIMEOUT_S = 60.0

# Kafka's own config/server.properties where it matters to a test (replication factors of one for a single broker).
PROPERTIES = """\
process.roles=broker,controller
node.id={node_id}
controller.quorum.voters={node_id}@127.0.0.1:{controller_port}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
log.dirs={logs}
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
"""


class RealKafka:
    """One Kafka process and its directory. Lifecycle: made, `start`, `stop` or `kill`, `start` again as often as wanted."""

    def __init__(
        self,
        jars: Path,
        directory: Path,
        *,
        jvm_options: tuple[str, ...] = (),
        node_id: int = 1,
        settings: dict[str, str] | None = None,
    ) -> None:
        self.jars, self.directory, self.node_id = jars, directory, node_id
        self.jvm_options = jvm_options or ("-Xmx512M", "-Xms128M", *short_run(jars))
        self.port, self.controller_port = free_port(), free_port()
        self.data = directory / "logs"
        self.log_file = directory / "kafka.out"
        self.process: subprocess.Popen[bytes] | None = None
        directory.mkdir(parents=True, exist_ok=True)
        self.properties = directory / "server.properties"
        text = PROPERTIES.format(node_id=node_id, port=self.port, controller_port=self.controller_port, logs=self.data)
        self.properties.write_text(text + "".join(f"{key}={value}\n" for key, value in (settings or {}).items()))

    @property
    def bootstrap(self) -> str:
        """host:port for clients."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The process id while it runs."""
        assert self.process is not None
        return self.process.pid

    def format(self) -> None:
        """Write the metadata directory a new cluster starts from."""
        done = subprocess.run(
            [
                *self._java("-Xmx256M", *short_run(self.jars)),
                "kafka.tools.StorageTool",
                "format",
                "-t",
                CLUSTER_ID,
                "-c",
                str(self.properties),
            ],
            capture_output=True,
            text=True,
            timeout=START_TIMEOUT_S,
            check=False,
        )
        if done.returncode:
            raise NotReady(done.stdout + done.stderr)

    def start(self, *, wait: bool = True) -> RealKafka:
        """Start it; with `wait` return when it answers. Raises `NotReady`."""
        if not self.data.exists():
            self.format()
        with self.log_file.open("ab") as out:
            command = [*self._java(*self.jvm_options), "kafka.Kafka", str(self.properties)]
            self.process = subprocess.Popen(command, stdout=out, stderr=out)
        if wait:
            self.wait_until_answers()
        return self

    def wait_until_answers(self) -> None:
        """Wait for the first Metadata answer that names this broker."""
        from tests.support.wire_client import answers

        deadline = time.monotonic() + START_TIMEOUT_S
        while not answers("127.0.0.1", self.port):
            if time.monotonic() > deadline or (self.process and self.process.poll() is not None):
                raise NotReady(self.log_file.read_text(errors="replace")[-2000:])
            time.sleep(0.01)

    def stop(self) -> int:
        """Stop it as an operator would; its exit code."""
        assert self.process is not None
        return stop(self.process)

    def kill(self) -> None:
        """Kill it with -9."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def _java(self, *options: str) -> list[str]:
        return [str(java()), *options, f"-Dkafka.logs.dir={self.directory}", "-cp", f"{self.jars}{os.sep}*"]


def short_run(jars: Path) -> tuple[str, ...]:
    """Return the options of a short run, with the archive of Kafka's classes if there is one: tools take half the time."""
    archive = _archive(jars)
    return (*SHORT_RUN, f"-XX:SharedArchiveFile={archive}") if archive.exists() else SHORT_RUN


def make_class_archive(jars: Path) -> None:
    """Let a broker that starts and stops write the archive of its classes, unless there is one."""

    def write(option: str) -> None:
        with tempfile.TemporaryDirectory() as directory:
            kafka = RealKafka(jars, Path(directory), jvm_options=(*SHORT_RUN, option)).start()
            try:
                listing = ("org.apache.kafka.tools.TopicCommand", "--bootstrap-server", kafka.bootstrap, "--list")
                subprocess.run(tool_command(jars, *listing), capture_output=True, timeout=90, check=True)
            finally:
                kafka.stop()

    make_archive(_archive(jars), write)


def _archive(jars: Path) -> Path:
    return archive_in(jars.parent / "kafka-classes", str(jars))


def tool_command(jars: Path, tool: str, *arguments: str) -> list[str]:
    """Return the command line of a main class of the jars."""
    return [str(java()), "-Xmx256M", *short_run(jars), "-cp", f"{jars}{os.sep}*", tool, *arguments]
