"""The command line where typer is not installed: the broker, its help, and what names the missing extra."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from ottla.cli import base_commands, server_start
from ottla.cli.command_table import COMMANDS
from ottla.cli.errors import CommandFailed, ExitCode
from ottla.cli.main import run

WITHOUT_TYPER = "import sys; sys.modules['typer'] = None; from ottla.cli.main import main; main()"


def without_typer(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT_TYPER, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def words_of_help(text: str) -> list[str]:
    """The words of a help without the limits and defaults, which typer adds."""
    return re.sub(r"\[(default|\d+<=x).*?\]", "", text, flags=re.DOTALL).split()


def test_the_help_of_the_server_is_the_same_with_and_without_typer(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["server", "--help"]) == ExitCode.OK
    with_typer = capsys.readouterr().out
    assert base_commands.run(["server", "--port", "1", "-h"], "typer") == ExitCode.OK
    assert words_of_help(capsys.readouterr().out) == words_of_help(with_typer)


def test_a_broker_is_checked_and_the_version_is_shown_without_typer(tmp_path: Path) -> None:
    checked = without_typer("server", "--check", "--data", str(tmp_path / "data"))
    assert checked.returncode == ExitCode.OK, checked.stderr
    shown = without_typer("--version")
    assert shown.stdout == f"{base_commands.version_line()}\n"


def test_another_command_names_the_extra_that_has_it() -> None:
    failed = without_typer("topic", "list")
    assert failed.returncode == ExitCode.FAILED
    assert failed.stderr == f"ottla: ottla topic needs typer, which is not installed\n  {base_commands.INSTALL_CLI}\n"


def test_another_missing_module_is_not_taken_for_the_extra() -> None:
    program = WITHOUT_TYPER.replace("typer", "importlib.metadata")
    done = subprocess.run([sys.executable, "-c", program, "--version"], capture_output=True, text=True, check=False)
    assert "ModuleNotFoundError" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["server", "--prot", "1"], "unknown option --prot"),
        (["server", "--port"], "--port needs a value: PORT"),
        (["server", "--port", "65536"], "--port 65536 is not valid: PORT is expected"),
        (["server", "--dev=true"], "unknown option --dev=true"),
        (["physician"], "unknown command physician"),
    ],
)
def test_a_mistake_is_named_without_typer(arguments: list[str], message: str) -> None:
    with pytest.raises(CommandFailed) as failed:
        base_commands.run(arguments, "typer")
    assert failed.value.args[0] == message
    assert failed.value.code is ExitCode.USAGE


@pytest.mark.parametrize(("arguments", "code"), [(["--help"], ExitCode.OK), ([], ExitCode.USAGE)])
def test_the_overview_lists_all_commands(
    arguments: list[str], code: ExitCode, capsys: pytest.CaptureFixture[str]
) -> None:
    assert base_commands.run(arguments, "typer") == code
    listed = re.findall(r"^  ([a-z]+)  ", capsys.readouterr().out, re.MULTILINE)
    assert listed == list(COMMANDS)
    assert listed[0] == server_start.COMMAND
