"""Every command of docs/operating.md, in order, in a shell; the unit file, the container recipe, the example settings.

Absolute paths lie below a directory of the test, and `systemctl` is `tests/support/fake_systemctl.py`, which runs the
unit file. Left out: what installs packages and what needs a container engine.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.broker.config import declared
from ottla.core.settings import read_properties
from tests.support.fake_systemctl import settings_of, stop
from tests.support.processes import free_port

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "operating.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
LEFT_OUT = ("pip install", "docker ")
ABSOLUTE = ("/opt/ottla", "/etc/ottla", "/var/lib/ottla", "/var/backups")
UNIT = ROOT / "packaging" / "ottla.service"
SETTINGS = ROOT / "packaging" / "server.properties"
CONTAINERFILE = ROOT / "packaging" / "Containerfile"
BIN = Path(sys.executable).parent


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_command_of_the_page_works(tmp_path: Path) -> None:
    """The records of a topic survive backup, restore and restart."""
    port = free_port()
    system = tmp_path / "system"
    for name in ("opt/ottla/bin", "etc/systemd/system", "var/lib/ottla", "var/backups", "bin"):
        (system / name).mkdir(parents=True)
    (system / "opt/ottla/bin/ottla").symlink_to(BIN / "ottla")
    units = system / "etc/systemd/system"
    _script(system / "bin" / "systemctl", f'exec {sys.executable} {ROOT}/tests/support/fake_systemctl.py {units} "$@"')
    _script(system / "bin" / "journalctl", f"cat {units}/journal")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("OTTLA_") or name == "OTTLA_PLAIN"},
        "PATH": f"{system}/bin:{BIN}:{os.environ['PATH']}",
        "OTTLA_BROKERS": f"127.0.0.1:{port}",
        "HOME": str(tmp_path),
    }
    shutil.copytree(ROOT / "packaging", tmp_path / "packaging")
    for file in filter(Path.is_file, (tmp_path / "packaging").rglob("*")):
        file.write_text(_in_system(file.read_text(encoding="utf-8"), system, port), encoding="utf-8")

    def run(script: str) -> str:
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", _in_system(script, system, port)],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        journal = units / "journal"
        assert done.returncode == 0, (
            script,
            done.stdout,
            done.stderr,
            journal.read_text(encoding="utf-8") if journal.exists() else "",
        )
        return done.stdout

    said = ""
    try:
        for block in BLOCKS:
            if any(words in block for words in LEFT_OUT):
                continue
            said += run(block)
            if "enable --now" in block:  # the page reads a topic that the reader has
                run("ottla topic create orders; echo one | ottla produce orders")
        assert run("ottla consume orders; ottla consume orders-restored") == "one\none\n"
        assert "the broker would start" in said
        assert "ottla ready" in said
    finally:
        stop(units)


USE_OF_THE_FIXTURE = """

from confluent_kafka import Consumer, Producer


def test_records_and_groups(kafka):
    producer = Producer({"bootstrap.servers": kafka})
    producer.produce("t", b"one")
    assert producer.flush(60) == 0
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": "g", "auto.offset.reset": "earliest"})
    consumer.subscribe(["t"])
    assert [message.value() for message in consumer.consume(1, timeout=60)] == [b"one"]
    consumer.close()
"""


@pytest.mark.slow
def test_the_fixture_of_the_page_starts_and_ends_a_broker(tmp_path: Path) -> None:
    (fixture,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    (tmp_path / "test_page.py").write_text(fixture + USE_OF_THE_FIXTURE, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp", "data", "test_page.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stdout


def test_few_commands_of_the_page_are_left_out() -> None:
    assert len(BLOCKS) > 10
    assert sum(any(words in block for words in LEFT_OUT) for block in BLOCKS) == 3


def test_the_unit_restarts_after_failures_only_and_waits_for_the_stop() -> None:
    unit = settings_of(UNIT)
    assert unit["Restart"] == ["on-failure"]
    assert unit["RestartPreventExitStatus"] == ["2"]
    assert unit["KillMode"] == ["mixed"]
    assert "ExecReload" not in unit  # SIGHUP stops a broker without --log-file


def test_the_unit_is_valid_for_systemd(tmp_path: Path) -> None:
    if not shutil.which("systemd-analyze"):
        pytest.skip("systemd-analyze is not installed")
    text = UNIT.read_text(encoding="utf-8").replace("/opt/ottla/bin/ottla", str(BIN / "ottla"))
    unit = tmp_path / "ottla.service"
    unit.write_text(text.replace("User=ottla", "User=root").replace("Group=ottla", "Group=root"), encoding="utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(unit)], capture_output=True, text=True, check=False, timeout=60
    )
    about_it = [line for line in done.stderr.splitlines() if "ottla.service" in line]
    assert not about_it, about_it


def test_the_example_settings_are_settings() -> None:
    found = read_properties(SETTINGS.read_text(encoding="utf-8"), origin="server.properties")
    assert set(found) <= set(declared())


def test_the_container_recipe_copies_what_is_there_and_runs_commands_that_exist(tmp_path: Path) -> None:
    recipe = CONTAINERFILE.read_text(encoding="utf-8").replace("\\\n", "")
    sources = [line.split()[1:-1] for line in recipe.splitlines() if line.startswith("COPY ") and "--from" not in line]
    assert all((ROOT / name).exists() for names in sources for name in names)
    arguments = re.findall(r'"([^"]*)"', next(line for line in recipe.splitlines() if line.startswith("CMD ")))
    arguments[arguments.index("/var/lib/ottla")] = str(tmp_path)
    subprocess.run([BIN / "ottla", *arguments, "--check"], check=True, capture_output=True, timeout=60)
    health = re.findall(r'"([^"]*)"', next(line for line in recipe.splitlines() if line.startswith("HEALTHCHECK ")))
    port = re.search(r"^ENV OTTLA_OTTLA_HTTP_LISTENER=127.0.0.1:(\d+)$", recipe, re.MULTILINE)
    assert port is not None and f":{port[1]}/readyz" in health[-1]
    program = health[-1].replace(f":{port[1]}", f":{free_port()}")
    absent = subprocess.run([BIN / health[0], *health[1:-1], program], check=False, capture_output=True, timeout=60)
    assert b"Connection refused" in absent.stderr and absent.returncode != 0


def test_the_table_of_signals_is_complete() -> None:
    for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGKILL"):
        assert name in PAGE


def _in_system(text: str, system: Path, port: int) -> str:
    """The text with absolute paths below the test's directory, and with its port."""
    for path in (*ABSOLUTE, "/etc/systemd"):
        text = text.replace(path, f"{system}{path}")
    return text.replace(":9092", f":{port}")


def _script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    path.chmod(0o755)
