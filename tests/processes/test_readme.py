"""The README: its commands and its client example run as they are written, and it stays on two screens."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from decimal import Decimal
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


def cell(page: str, row: str, column: str) -> str:
    """Return one cell of the first table of a page that has this row."""
    lines = page.splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith(f"| {row} |"))
    head = next(n for n in range(at, -1, -1) if not lines[n].startswith("|")) + 1
    columns, cells = ([found.strip() for found in lines[n].strip("|").split("|")] for n in (head, at))
    return cells[columns.index(column)]


def agree(shown: str, measured: str) -> bool:
    """Return whether a figure is the measured one (of "6,885 (6,281 to 7,628)" the median), rounded to the same digits.

    A half may be rounded up or down: the measured figure is rounded itself.
    """
    figure, exact = (Decimal(text.split(" ")[0].replace(",", "")) for text in (shown, measured))
    return abs(figure - exact) <= Decimal((0, (5,), int(figure.as_tuple().exponent) - 1))


@pytest.mark.parametrize(
    ("shown", "measured", "same"),
    [
        ("0.35", "0.352 (0.292 to 0.542)", True),
        ("40", "40.5", True),
        ("41", "40.5", True),
        ("12,445", "12,445 (11,319 to 14,969)", True),
        ("12,446", "12,445 (11,319 to 14,969)", False),
        ("0.36", "0.352", False),
        ("2.8", "2.86", False),
    ],
)
def test_figures_agree_to_their_last_digit(shown: str, measured: str, same: bool) -> None:
    assert agree(shown, measured) == same


def test_its_figures_are_those_of_the_benchmarks() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
    (headline,) = re.findall(r"^\*\*.*?\n\n", TEXT, re.DOTALL | re.MULTILINE)
    requests = "1 synchronous: requests/s"
    expected = {
        r"(\S+) s\*\* from start": ("start-up, s", "Ottla"),
        r"first answer \(Kafka (\S+) s\)": ("start-up, s", "Kafka"),
        r"(\S+) MiB\*\* idle": ("memory idle, MiB", "Ottla"),
        r"idle \(Kafka (\S+) MiB\)": ("memory idle, MiB", "Kafka"),
        r"(\S+) requests/s\*\* from": (requests, "Ottla"),
        r"durability \(Kafka (\S+)\)": (requests, "Kafka"),
        r"(\S+) with an fsync": (requests, "Ottla, fsync"),
    }
    text = " ".join(headline.split())
    assert len(re.findall(r"\d[\d,.]*\d", text)) == len(expected), "a figure of the headline is not checked"
    for pattern, (row, column) in expected.items():
        (figure,) = re.findall(pattern, text)
        assert agree(figure.strip("*"), cell(page, row, column)), (pattern, figure, row, column)
    (kafka,) = re.findall(r"Measured beside a warm (Apache Kafka [\d.]+\d)", TEXT)
    assert f"\n{kafka} beside Ottla (compiled" in page
    (partitions, start_s, gib) = re.findall(
        r"Measured\s+with (\S+) partitions \((\S+) s to start\) and a log of (\S+) GiB", TEXT
    )[0]
    assert agree(start_s, cell(page, f"{partitions} partitions after a clean stop", "Ottla"))
    assert agree(gib, cell(page, "written, no consumer", "value"))


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
