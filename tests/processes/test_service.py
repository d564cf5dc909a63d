"""The server as a service: its signals, log file, readiness, and `ottla server --check`."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.processes.test_start_and_stop import end_of, make_topic, send
from tests.support.ottla_process import OttlaProcess
from tests.support.processes import until
from tests.support.wire_client import Wire

OTTLA = str(Path(sys.executable).with_name("ottla"))
TIMEOUT_S = 30


def is_clean(server: OttlaProcess) -> bool:
    return (server.data / ".kafka_cleanshutdown").exists()


def test_sighup_stops_it_cleanly_as_a_closed_terminal_does(tmp_path: Path) -> None:
    server = OttlaProcess(tmp_path).start()
    with Wire(server.port) as wire:
        make_topic(wire, "t")
        assert send(wire, "t", b"before") == 0
    assert server.stop(signal.SIGHUP) == 0
    assert is_clean(server)
    server.assert_log_is_clean()


def test_sighup_is_ignored_under_nohup(tmp_path: Path) -> None:
    server = OttlaProcess(tmp_path, prefix=["nohup"]).start()
    server.process.send_signal(signal.SIGHUP)  # type: ignore[union-attr]
    with Wire(server.port) as wire:
        make_topic(wire, "t")
        assert send(wire, "t", b"after") == 0
    assert server.stop() == 0
    assert is_clean(server)


def test_sighup_reopens_the_log_file(tmp_path: Path) -> None:
    file, rotated = tmp_path / "ottla.log", tmp_path / "ottla.log.1"
    server = OttlaProcess(tmp_path / "server", options=["--log-file", str(file)]).start()
    until(lambda: "node 1" in file.read_text() or file.stat().st_size > 0, what="the first lines of the log")
    file.rename(rotated)
    server.process.send_signal(signal.SIGHUP)  # type: ignore[union-attr]
    until(lambda: file.exists() and "the log file is reopened" in file.read_text(), what="the new log file")
    assert "the log file is reopened" not in rotated.read_text()
    server.process.send_signal(signal.SIGQUIT)  # type: ignore[union-attr]
    until(lambda: "most recent call first" in file.read_text(), what="the stacks in the new log file")
    assert server.stop() == 0
    assert "stopped: everything is on the disk" in file.read_text()
    assert is_clean(server)


@pytest.mark.parametrize("how", [signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2])
def test_signals_for_diagnosis_are_answered_in_the_log_and_do_not_end_it(tmp_path: Path, how: signal.Signals) -> None:
    server = OttlaProcess(tmp_path).start()
    with Wire(server.port) as wire:
        make_topic(wire, "t", partitions=3)
        for _ in range(3):
            server.process.send_signal(how)  # type: ignore[union-attr]
        expected = "most recent call first" if how == signal.SIGQUIT else "partitions served 3"
        until(lambda: expected in server.log, what="the answer in the log")
        assert send(wire, "t", b"after") == 0
        assert end_of(wire, "t") == 1
    assert server.stop() == 0
    assert is_clean(server)


def test_the_stacks_are_written_while_the_event_loop_is_stopped_in_a_call(tmp_path: Path) -> None:
    """SIGQUIT is handled without the loop: that is what it is for."""
    program = (
        "import asyncio, signal, time\n"
        "from ottla.broker.process.log_output import LogOutput\n"
        "from ottla.broker.process.signals import handle_signals\n"
        "async def main():\n"
        "    handle_signals(LogOutput(), stop=lambda: None, state=dict)\n"
        "    print('blocked', flush=True)\n"
        "    time.sleep(60)\n"
        "asyncio.run(main())\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == b"blocked\n"
        process.send_signal(signal.SIGQUIT)
        assert b"most recent call first" in process.stderr.readline()
        assert process.poll() is None
    finally:
        process.kill()
        process.communicate()


def test_the_ready_file_exists_while_it_serves(tmp_path: Path) -> None:
    file = tmp_path / "ready.json"
    file.write_text("of a broker that was killed")
    server = OttlaProcess(tmp_path / "server", options=["--ready-file", str(file)]).start()
    found = json.loads(file.read_text())
    assert found["ready"] is True
    assert found["bootstrap"] == server.bootstrap
    assert found["listeners"] == [{"name": "PLAINTEXT", "host": "127.0.0.1", "port": server.port}]
    assert found["pid"] == server.pid
    assert found["data"] == [str(server.data)]
    assert server.stop() == 0
    assert not file.exists()
    assert list(tmp_path.glob(".ready*")) == []


def test_the_ready_line_is_json_where_it_is_asked_for(tmp_path: Path) -> None:
    command = [OTTLA, "server", "--port", "0", "--data", str(tmp_path / "data"), "--format", "json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    try:
        found = json.loads(process.stdout.readline())
        with Wire(found["listeners"][0]["port"]) as wire:
            assert wire.call("api_versions", 0)["error_code"] == 0
        assert found["node_id"] == 1
        assert len(found["cluster_id"]) == 22
    finally:
        process.terminate()
        assert process.wait(TIMEOUT_S) == 0
        process.communicate()


@pytest.mark.parametrize("is_abstract", [False, True])
def test_a_service_manager_is_notified_of_readiness_and_of_the_stop(tmp_path: Path, is_abstract: bool) -> None:
    address = f"@ottla-test-{os.getpid()}" if is_abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + address[1:] if is_abstract else address)
        manager.settimeout(TIMEOUT_S)
        server = OttlaProcess(tmp_path / "server", prefix=["env", f"NOTIFY_SOCKET={address}"]).start()
        said = manager.recv(4096).decode()
        assert said.startswith("READY=1\nSTATUS=ottla ready: 127.0.0.1:")
        assert server.stop() == 0
        assert manager.recv(4096).decode().startswith("STOPPING=1\n")


# ---- ottla server --check


def check(*arguments: str, code: int, prefix: tuple[str, ...] = ()) -> dict[str, Any]:
    done = subprocess.run(
        [*prefix, OTTLA, "server", "--check", "--format", "json", *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == code, (done.stdout, done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["valid"] == (code == 0)
    return found


def test_check_of_a_new_directory_creates_nothing(tmp_path: Path) -> None:
    found = check("--data", str(tmp_path / "new" / "data"), "--port", "7777", code=0)
    assert found["listeners"] == ["PLAINTEXT://127.0.0.1:7777"]
    assert found["data"] == [str(tmp_path / "new" / "data")]
    assert list(tmp_path.iterdir()) == []


def test_check_names_every_invalid_setting_and_what_has_no_effect(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("num.partitions=0\nlog.segment.bytes=small\nbackground.threads=10\n")
    found = check("--config", str(file), "--data", str(tmp_path / "data"), code=2)
    assert len(found["errors"]) == 2
    assert any("server.properties line 1" in each for each in found["errors"])
    file.write_text("background.threads=10\n")
    assert "background.threads" in check("--config", str(file), "--data", str(tmp_path), code=0)["warnings"][0]
    assert "TLS needs a certificate" in check("-o", "listeners=SSL://:9092", code=2)["errors"][0]
    insecure = check("-o", "listeners=PLAINTEXT://:9092", "--data", str(tmp_path), code=2)["errors"][0]
    assert "--insecure-listeners" in insecure
    check("-o", "listeners=PLAINTEXT://:9092", "--insecure-listeners", "--data", str(tmp_path), code=0)
    assert check("-o", "advertised.listeners=PLAINTEXT://0.0.0.0:9092", code=2)["errors"]
    assert check("--config", str(tmp_path / "absent"), code=1)["errors"]


def test_durations_and_sizes_are_taken_from_every_source(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("log.retention.hours=7d\nlog.roll.hours=90m\n")
    errors = check("--config", str(file), "-o", "log.segment.bytes=1GiB", code=2)["errors"]
    assert errors == [f"log.roll.hours=90m ({file} line 2): must be a whole number of hours"]
    file.write_text("log.retention.hours=7x\nsome.plugin.hours=90m\n")
    found = check("--config", str(file), "-o", "log.segment.bytes=1G", "-o", "no.such.hours=90m", code=2)
    assert found["errors"] == [
        f"log.retention.hours=7x ({file} line 1): must be a whole number of hours, or a duration such as 90m or 7d",
        "log.segment.bytes=1G (command line): must be a whole number of bytes, or a size such as 64KiB or 1GiB",
        "no.such.hours=[hidden] (command line): there is no such setting",
    ]
    file.write_text("log.retention.hours=7d\n")
    check("--config", str(file), "--data", str(tmp_path), "-o", "log.segment.bytes=512MiB", code=0)


KRAFT_FILE = """
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
inter.broker.listener.name=PLAINTEXT
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL
num.io.threads=8
"""
"""What a file for one node of Kafka has, as Kafka's own does."""


def test_a_file_of_kafkas_for_one_node_starts_with_warnings_and_with_another_authorizer_not(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(KRAFT_FILE)
    found = check("--config", str(file), "--data", str(tmp_path / "data"), "--insecure-listeners", code=0)
    quorum, others = found["warnings"]
    assert "process.roles" in quorum
    assert "no effect" in quorum
    assert "num.io.threads" in others

    file.write_text(KRAFT_FILE + "authorizer.class.name=org.example.Custom\n")
    found = check("--config", str(file), "--data", str(tmp_path / "data"), "--insecure-listeners", code=2)
    assert "there is no authorizer org.example.Custom" in found["errors"][0]
    assert len(found["warnings"]) == 2


def test_check_finds_directories_that_cannot_be_used(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "is not a directory" in check("--data", str(tmp_path / "file" / "data"), code=1)["errors"][0]
    forbidden = tmp_path / "forbidden"
    forbidden.mkdir(mode=0o555)
    prefix: tuple[str, ...] = ()
    if os.geteuid() == 0:
        if not shutil.which("setpriv"):
            pytest.skip("running as root and no setpriv to drop the right to write everywhere")
        prefix = ("setpriv", "--bounding-set", "-dac_override", "--inh-caps", "-dac_override")
    assert "no permission to write" in check("--data", str(forbidden), code=1, prefix=prefix)["errors"][0]


def test_check_beside_a_running_broker_reports_it_and_other_identities(tmp_path: Path) -> None:
    server = OttlaProcess(tmp_path / "server").start()
    data = str(server.data)
    assert "in use by a running broker" in check("--data", data, code=0)["warnings"][0]
    assert "node 1, but node.id=7" in check("--data", data, "-o", "node.id=7", code=1)["errors"][0]
    assert server.stop() == 0
    before = sorted((path, path.stat().st_mtime_ns) for path in server.data.rglob("*"))
    assert check("--data", data, code=0)["warnings"] == []
    assert sorted((path, path.stat().st_mtime_ns) for path in server.data.rglob("*")) == before
    other = OttlaProcess(tmp_path / "other").start()
    other.stop()
    assert "several clusters" in check("-o", f"log.dirs={data},{other.data}", code=1)["errors"][0]
    (server.data / "meta.properties").unlink()
    assert check("--data", data, code=0)["cluster_id"]  # a copy with a checksum has it
    (server.data / "meta.properties").write_text("")
    assert "no cluster.id" in check("--data", data, code=1)["errors"][0]
