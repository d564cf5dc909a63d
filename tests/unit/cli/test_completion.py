"""What a shell suggests: commands, options, settings' names, and the topics and groups of the cluster."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from ottla.cli.commands import app
from ottla.cli.main import run
from ottla.testing import Kafka
from tests.unit.cli.conftest import CommandLine


@pytest.fixture
def suggestions(cli: CommandLine, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]) -> Any:
    """Return what is suggested for the last word of a command line."""

    def suggested(line: str) -> list[str]:
        words = line.split(" ")
        monkeypatch.setenv("_OTTLA_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", line)
        monkeypatch.setenv("COMP_CWORD", str(len(words) - 1))
        capsysbinary.readouterr()
        with pytest.raises(SystemExit) as ended:
            run([])
        out, err = capsysbinary.readouterr()
        monkeypatch.delenv("_OTTLA_COMPLETE")
        assert (ended.value.code, err) == (0, b"")
        return out.decode().split()

    return suggested


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ottla gro", ["group"]),
        ("ottla group wat", ["watch"]),
        ("ottla topic create t --part", ["--partitions"]),
        ("ottla topic create t --config retention.m", ["retention.ms="]),
        ("ottla topic alter t --unset retention.m", ["retention.ms"]),
        ("ottla -X ssl.ca", ["ssl.ca.location="]),
        ("ottla config get bro", ["broker"]),
    ],
)
def test_commands_options_and_names_of_settings_are_suggested(suggestions: Any, line: str, expected: list[str]) -> None:
    assert suggestions(line) == expected


def test_the_topics_and_groups_of_the_cluster_are_suggested(suggestions: Any, cli: CommandLine, broker: Kafka) -> None:
    for topic in ("complete-a", "complete-b", "other"):
        broker.create_topic(topic)
    broker.produce("complete-a", "x")
    cli.out("consume", "complete-a", "--group", "complete-group")
    topics = ["complete-a", "complete-b"]
    for line in (
        "ottla topic describe comp",
        "ottla topic analyze comp",
        "ottla topic clone comp",
        "ottla consume comp",
        "ottla top --topic comp",
        "ottla group seek g --topic comp",
        "ottla group clone g h --topic comp",
    ):
        assert suggestions(line) == topics, line
    for line in (
        "ottla group watch comp",
        "ottla group clone comp",
        "ottla consume t --group comp",
        "ottla top -g comp",
    ):
        assert suggestions(line) == ["complete-group"], line
    assert "__consumer_offsets" in suggestions("ottla topic describe __")
    assert "__consumer_offsets" not in suggestions("ottla topic describe ")
    assert suggestions("ottla config get topic/comp") == ["topic/complete-a", "topic/complete-b"]
    assert "retention.ms" in suggestions("ottla config get topic/complete-a ret")


def test_without_a_broker_nothing_is_suggested_and_no_error_printed(
    suggestions: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTTLA_BROKERS", "127.0.0.1:1")
    assert suggestions("ottla topic describe comp") == []


COMPLETED = {"--topic", "--group", "TOPIC", "GROUP", "TOPIC...", "GROUP..."}
WITHOUT = {
    "ottla bench": "it may be a topic to create",
    "ottla mirror": "patterns of another cluster, which is not connected to yet",
    "ottla pipeline": "the brokers are in a job file",
}


def parameters(command: Any = None, path: str = "ottla") -> list[tuple[str, Any]]:
    """Return the parameters of all commands with the commands' names."""
    command = typer.main.get_command(app) if command is None else command
    context = command.context_class(command)
    if hasattr(command, "list_commands"):
        names = command.list_commands(context)
        return [p for name in names for p in parameters(command.get_command(context, name), f"{path} {name}")]
    return [(path, parameter) for parameter in command.params]


def test_every_option_for_a_topic_or_a_group_is_completed() -> None:
    missing = [
        (path, parameter.name)
        for path, parameter in parameters()
        if COMPLETED.intersection((*parameter.opts, parameter.metavar or ""))
        and parameter._custom_shell_complete is None
        and not any(path.startswith(excluded) for excluded in WITHOUT)
    ]
    assert not missing


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")
def test_bash_completes_by_what_show_completion_prints(broker: Kafka, tmp_path: Path) -> None:
    broker.create_topic("in-bash")
    program = tmp_path / "ottla"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m ottla "$@"\n', encoding="utf-8")
    program.chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "OTTLA_BROKERS": broker.bootstrap,
        "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1",
    }
    script = (
        'eval "$(_OTTLA_COMPLETE=source_bash ottla)"\n'
        "COMP_WORDS=(ottla topic describe in-b) COMP_CWORD=3\n"
        'function=$(complete -p ottla | sed "s/.*-F \\([^ ]*\\).*/\\1/")\n'
        '"$function" ottla; echo "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "-c", script], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["in-bash"], done.stderr
