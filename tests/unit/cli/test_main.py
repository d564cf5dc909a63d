"""The program as a whole: what it loads, what it documents, how it ends."""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer

from ottla.cli.command_table import COMMANDS
from ottla.cli.errors import EXIT_CODE_MEANINGS, CommandFailed, ExitCode
from ottla.cli.main import run
from ottla.cli.pipeline_libraries import needs_pipeline_libraries

ROOT = Path(__file__).resolve().parents[3]


def _generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_cli", ROOT / "tools" / "generate_cli.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_generated_parts_of_the_cli_page_match_the_commands() -> None:
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    generator = _generator()
    assert generator.render(page) == page, "run `make generate`"
    assert set(COMMANDS) <= generator.nouns(page)


def test_the_cli_page_lists_an_option_whose_name_has_another_meaning_elsewhere_and_the_commands_of_a_group() -> None:
    generator = _generator()
    assert "-n, --brokers N " in generator.render("<!-- generated: up -->\n<!-- end -->")
    cluster = generator.render("<!-- generated: cluster -->\n<!-- end -->")
    assert "ottla cluster reassign plan" in cluster
    assert "--brokers HOST:PORT" not in cluster


def test_every_exit_code_has_a_meaning_and_its_number_never_changes() -> None:
    assert set(EXIT_CODE_MEANINGS) == set(ExitCode)
    assert {code.name: int(code) for code in ExitCode} == {
        "OK": 0,
        "FAILED": 1,
        "USAGE": 2,
        "CANNOT_CONNECT": 3,
        "NOT_FOUND": 4,
        "BAD_INPUT": 5,
        "TIMED_OUT": 6,
        "AUDIT_INCOMPLETE": 8,
        "TOPIC_RECREATED": 9,
        "QUARANTINED": 10,
        "INTERRUPTED": 130,
        "BROKEN_PIPE": 141,
    }


@pytest.mark.parametrize("noun", COMMANDS)
def test_every_command_has_help(noun: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([noun, "--help"]) == 0
    assert capsys.readouterr().out.startswith(f"Usage: ottla {noun}")


@pytest.mark.parametrize("noun", COMMANDS)
def test_the_list_of_commands_has_the_first_line_of_each_ones_help(noun: str) -> None:
    module, summary = COMMANDS[noun]
    command = typer.main.get_command(importlib.import_module(module).app)
    assert " ".join((command.help or "").split("\n\n")[0].split()).startswith(summary)


def leaves(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Walk the commands under one."""
    if not hasattr(command, "commands"):
        yield path, command
        return
    for name, below in command.commands.items():
        yield from leaves(below, (*path, name))


@pytest.mark.parametrize("noun", COMMANDS)
def test_every_command_has_a_format_for_programs(noun: str) -> None:
    """Its errors are JSON with it too, so a command without it could not be used from a program."""
    found = typer.main.get_command(importlib.import_module(COMMANDS[noun].module).app)
    without = [path for path, command in leaves(found, (noun,)) if "--format" not in _options(command)]
    assert not without


def _options(command: Any) -> set[str]:
    return {name for parameter in command.params for name in parameter.opts}


def test_the_list_of_commands_imports_none_of_them() -> None:
    program = """
import sys
from ottla.cli.command_table import COMMANDS
from ottla.cli.main import run
assert run(["--help"]) == 0
loaded = {command.module for command in COMMANDS.values()} | {"ottla.client", "asyncio", "rich"}
loaded &= set(sys.modules)
assert not loaded, loaded
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "\n  topic     Topics.\n" in done.stdout


def test_the_server_command_imports_neither_typer_nor_a_module_of_other_commands() -> None:
    program = """
import sys
from ottla.cli.main import run
assert run(["server", "--check", "--data", "/dev/null/none"]) == 1
unwanted = {"typer", "rich", "kio", "cramjam", "pyspark", "pyarrow", "confluent_kafka", "ottla.client.cluster", "ottla.cli.consume", "ottla.pipeline"}
loaded = unwanted & set(sys.modules)
assert not loaded, loaded
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


LATER = {  # what a broker alone imports after its start, or never
    "argparse",
    "cramjam",
    "email",
    "encodings.idna",
    "importlib.metadata",
    "ottla.broker.audit_outputs",
    "ottla.broker.dynamic_secrets",
    "ottla.broker.maintenance.log_cleaner",
    "ottla.broker.maintenance.replica_reports",
    "ottla.broker.maintenance.scrub_scheduler",
    "ottla.broker.migration",
    "ottla.broker.quotas",
    "ottla.broker.remote.alter_partition",
    "ottla.controller.acl_changes",
    "ottla.controller.token_changes",
    "ottla.groups.coordinator",
    "ottla.replication.fetcher",
    "ottla.security.authorizer",
    "ottla.security.quotas",
    "ottla.security.sasl",
    "ottla.share_coordinator.coordinator",
    "ottla.transactions.coordinator",
    "ottla.wire.generated",
    "shutil",
    "typer",
}
MODULES_MAX = 248
"""Modules of Ottla that a broker alone imports until it serves; each costs 0.2 to 4 ms of the start."""


def test_a_broker_alone_imports_little_before_it_serves(tmp_path: Path) -> None:
    program = """
import asyncio, sys
from pathlib import Path
import ottla.cli.main, ottla.broker.process.server
from ottla.broker import config
from ottla.broker.broker import Broker
from ottla.core.clock import SystemClock
from ottla.core.files import SystemFiles
import uvloop

async def main():
    given, _ = config.read(file=None, environment={}, options={"listeners": "PLAINTEXT://127.0.0.1:0"})
    broker = Broker(given, [Path(sys.argv[1])], clock=SystemClock(), files=SystemFiles())
    await broker.start()
    await asyncio.sleep(0)
    loaded = sorted(sys.modules)
    await broker.stop()
    print(*loaded)

uvloop.run(main())
"""
    command = [sys.executable, "-c", program, str(tmp_path / "data")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    loaded = done.stdout.split()

    assert [name for name in loaded if name in LATER] == []
    ours = [name for name in loaded if name.split(".")[0] == "ottla"]
    assert len(ours) <= MODULES_MAX, ours


def test_an_option_of_the_server_without_a_value_is_refused_with_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["server", "-o", "log.segment.bytes"]) == 2
    assert "-o log.segment.bytes: write name=value" in capsys.readouterr().err


@pytest.mark.parametrize("shape", [(), ("--format", "json")])
def test_a_client_setting_after_the_command_is_refused_with_its_place(
    shape: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["topic", "list", "-X", "security.protocol=SSL", *shape]) == ExitCode.USAGE
    assert "No such option: -X. Write it before the command: ottla -X NAME=VALUE topic list" in capsys.readouterr().err


def test_host_and_listeners_together_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["server", "--host", "0.0.0.0", "-o", "listeners=PLAINTEXT://:9092"]) == 2
    assert "contradict each other" in capsys.readouterr().err


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    from importlib.metadata import version

    assert run(["--version"]) == 0
    from ottla import compiled

    assert capsys.readouterr().out == f"ottla {version('ottla')} ({compiled.form()})\n"


def test_a_missing_library_is_reported_with_an_installation_that_exists() -> None:
    with pytest.raises(CommandFailed) as failed, needs_pipeline_libraries("the demo"):
        raise ModuleNotFoundError("No module named 'pyarrow'", name="pyarrow")
    assert "the demo needs pyarrow" in str(failed.value)
    assert "pip install '.[pipeline]' in a clone" in str(failed.value.advice)
