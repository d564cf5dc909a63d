"""Helps and tables fit on a terminal of 80 columns."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from ottla.cli.commands import app
from ottla.cli.table import table
from ottla.pipeline.audit.format import COLUMNS as AUDIT_COLUMNS

WIDTH = 80


def commands(command: Any = None, name: str = "ottla", parent: Any = None) -> Iterator[tuple[str, Any, Any]]:
    """Yield every command with its context, as deep as they go."""
    command = typer.main.get_command(app) if command is None else command
    context = command.context_class(
        command, info_name=name, parent=parent, terminal_width=WIDTH, max_content_width=WIDTH
    )
    yield context.command_path, command, context
    if hasattr(command, "list_commands"):
        for each in command.list_commands(context):
            yield from commands(command.get_command(context, each), each, context)


HELPS = {path: (command, context) for path, command, context in commands()}


@pytest.mark.parametrize("path", HELPS)
def test_a_help_fits_and_no_summary_is_cut(path: str) -> None:
    command, context = HELPS[path]
    lines = command.get_help(context).splitlines()
    assert not [line for line in lines if len(line) > WIDTH]
    listed = lines[lines.index("Commands:") :] if "Commands:" in lines else []
    assert not [line for line in listed if re.search(r"\w\.\.\.$", line)]


TABLES = {
    "pipeline audit": (["partition", *AUDIT_COLUMNS], ["12", *["1,234,567"] * len(AUDIT_COLUMNS)]),
    "pipeline status": (
        ["topic", "partition", "table", "position", "log_end", "lag", "quarantined", "late", "last_commit"],
        ["access-log", "12", "lake/bronze/access-log", "12345678", "12345678", "0", "0", "0", "2015-05-17 10:00:00"],
    ),
    "config describe broker --all": (
        ["broker", "name", "value", "source"],
        ["1", "transaction.partition.verification.enable", "PLAINTEXT://0.0.0.0:9092,SSL://0.0.0.0:9093", "default"],
    ),
    "acl create": (
        ["result", "principal", "permission", "operation", "resource", "name", "pattern", "host"],
        [
            "would create",
            "User:CN=scheduler",
            "allow",
            "two_phase_commit",
            "transactional_id",
            "scheduler-1",
            "prefixed",
            "*",
        ],
    ),
    "user list": (
        ["name", "mechanisms", "iterations"],
        ["a-service-with-a-name-of-very-many-letters", "SCRAM-SHA-256,SCRAM-SHA-512", "16384,16384"],
    ),
    "quota list": (
        ["entity", "quota", "value"],
        ["user=a-service-with-a-long-name client-id=<default>", "controller_mutation_rate", "1048576000000"],
    ),
    "token list": (
        ["id", "owner", "renewers", "expires", "renewable_until"],
        [
            "t5l2YCAlTzaeO8e0pJ9m4A",
            "User:scheduler",
            "User:alice,User:bob",
            "2026-11-26 10:00:00Z",
            "2026-12-02 10:00:00Z",
        ],
    ),
    "group describe": (
        ["topic", "partition", "committed", "end_offset", "lag", "lag time", "member"],
        ["access-log", "0", "12345678", "12345678", "0", "0s", "rdkafka-2f1b6a4e-6f0c-4a10-9a56-3cf8ae3ee5a4"],
    ),
    "topic describe": (
        ["partition", "leader", "epoch", "replicas", "isr", "start_offset", "end_offset", "records", "size"],
        ["12", "101", "1234", "101,102,103", "101,102,103", "12345678901", "12345678901", "12,345,678,901", "1.2 TB"],
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_fits_and_loses_nothing(name: str) -> None:
    columns, row = TABLES[name]
    text = table([row, row], columns, width_max=WIDTH)
    assert max(map(len, text.splitlines())) <= WIDTH
    kept = re.sub(r"\s", "", text)
    assert all(cell in kept for cell in row if re.fullmatch(r"[\d,]+", cell))
    assert max(map(len, table([row], columns).splitlines())) > WIDTH, "it would not fit by itself"


cells = st.text("abcdef-. ", min_size=1, max_size=60).map(str.strip).filter(bool) | st.integers(0, 10**12).map(str)


@given(
    rows=st.integers(1, 12).flatmap(lambda n: st.lists(st.lists(cells, min_size=n, max_size=n), min_size=1, max_size=4))
)
def test_any_table_fits(rows: list[list[str]]) -> None:
    columns = [f"column_{n}" for n in range(len(rows[0]))]
    text = table(rows, columns, width_max=WIDTH)
    assert max(map(len, text.splitlines())) <= WIDTH
    kept = set(re.sub(r"\s", "", text))
    assert kept.issuperset(re.sub(r"\s", "", "".join(map("".join, rows))))


def test_a_table_that_is_not_for_a_terminal_has_a_line_for_each_row() -> None:
    text = table([["x" * 200, "1"]], ["name", "lag"])
    assert len(text.splitlines()) == 2
