"""The README: its commands and its client example run as they are written, and it stays on two screens."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.ottla_process import OttlaProcess

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
DEFAULT_BROKER = "127.0.0.1:9092"
LINES_MAX, LETTERS_MAX = 100, 130


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, re.DOTALL | re.MULTILINE)


def test_the_readme_stays_on_two_screens() -> None:
    assert len(TEXT.splitlines()) <= LINES_MAX
    assert [line for line in TEXT.splitlines() if len(line) > LETTERS_MAX] == []


def test_its_make_targets_exist() -> None:
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"\bmake ([\w-]+)", "\n".join(blocks("console")))) <= targets


def test_its_figures_are_those_of_the_benchmarks() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    requests = next(line for line in page.splitlines() if line.startswith("| 1 synchronous: requests/s | "))
    assert "Kafka 4.3.1" in page
    for figure in ("20,286", "8,226", "2,650"):
        assert figure in requests
        assert figure in TEXT


@pytest.mark.slow
@pytest.mark.external
def test_its_commands_and_its_client_example_work(tmp_path: Path, ottla_server: OttlaProcess) -> None:
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("OTTLA_", "XDG_"))},
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "OTTLA_BROKERS": ottla_server.bootstrap,
        "HOME": str(tmp_path),
    }

    def run(*command: str) -> str:
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=60
        )
        assert done.returncode == 0, (command, done.stderr)
        return done.stdout

    session = blocks("console")[0]
    shown = re.findall(r"^\$ ([^\n]*)\n((?:[^$\n][^\n]*\n)*)", session, re.MULTILINE)
    ran = [
        (command, output) for command, output in shown if command.startswith(("ottla", "echo")) and "&" not in command
    ]
    assert len(ran) == 3
    for command, output in ran:
        assert run("bash", "-c", command).endswith(output)
    (example,) = blocks("python")
    assert run(sys.executable, "-c", example.replace(DEFAULT_BROKER, ottla_server.bootstrap)).splitlines() == [
        "hello",
        "hello from librdkafka",
    ]
