"""`ottla profile set` and `show`: settings from files and options, and passwords that are somewhere else."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from ottla.cli.errors import ExitCode
from ottla.cli.main import run

SASL = ["-s", "security.protocol=SASL_PLAINTEXT", "-s", "sasl.mechanism=PLAIN", "-s", "sasl.username=alice"]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the file of the profiles of this test."""
    monkeypatch.setenv("OTTLA_PROFILES", str(tmp_path / "profiles.toml"))
    return tmp_path / "profiles.toml"


def profile(file: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads(file.read_text())["profiles"][name]
    return found


def test_a_profile_takes_a_properties_file_that_settings_override(file: Path, tmp_path: Path) -> None:
    properties = tmp_path / "client.properties"
    properties.write_text("bootstrap.servers=a:1,b:1\nsecurity.protocol=SSL\nssl.truststore.type=PEM\nclient.id=x\n")
    assert run(["profile", "set", "p", "--settings-file", str(properties), "-s", "client.id=me"]) == ExitCode.OK
    settings = {"security.protocol": "SSL", "ssl.truststore.type": "PEM", "client.id": "me"}
    assert profile(file, "p") == {"brokers": "a:1,b:1", "settings": settings}
    assert run(["profile", "set", "q", "c:1", "--settings-file", str(properties)]) == ExitCode.OK
    assert profile(file, "q")["brokers"] == "c:1"
    assert run(["profile", "set", "q", "--settings-file", str(tmp_path / "none")]) == ExitCode.NOT_FOUND
    properties.write_text("security.protocol=SSL\n")
    assert run(["profile", "set", "q", "--settings-file", str(properties)]) == ExitCode.USAGE


@pytest.mark.parametrize(
    ("option", "value"), [("command", "pass show kafka"), ("file", "/run/secrets/kafka"), ("keyring", "ottla")]
)
def test_a_profile_names_where_the_password_is(
    file: Path, option: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["profile", "set", "p", "a:1", *SASL, f"--password-{option}", value]) == ExitCode.OK
    assert capsys.readouterr().err == ""
    assert profile(file, "p")[f"password_{option}"] == value
    assert run(["profile", "show", "p", "--format", "json"]) == ExitCode.OK
    shown = json.loads(capsys.readouterr().out)
    assert shown[f"password_{option}"] == value
    assert shown["settings"]["sasl.username"] == "alice"


def test_a_password_in_clear_is_announced_and_hidden(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", "set", "p", "a:1", *SASL, "-s", "sasl.password=canary"]) == ExitCode.OK
    captured = capsys.readouterr()
    assert "has sasl.password in clear" in captured.err
    assert run(["profile", "show", "p"]) == ExitCode.OK
    captured = capsys.readouterr()
    assert "sasl.password=[hidden]" in captured.out
    assert "canary" not in captured.out + captured.err
    assert run(["profile", "set", "p", "a:1", *SASL, "-s", "sasl.password=${env:SECRET}"]) == ExitCode.OK
    assert capsys.readouterr().err == ""


def test_a_password_that_is_given_twice_is_refused(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    two = ["--password-command", "true", "--password-keyring", "ottla"]
    assert run(["profile", "set", "p", "a:1", *SASL, *two]) == ExitCode.USAGE
    assert "more than one source" in capsys.readouterr().err
    twice = ["--password-command", "true", "-s", "sasl.password=x"]
    assert run(["profile", "set", "p", "a:1", *SASL, *twice]) == ExitCode.USAGE
    assert "given twice" in capsys.readouterr().err
    assert run(["profile", "set", "p", "a:1", "--password-command", "true"]) == ExitCode.USAGE
    assert "no effect with security.protocol=PLAINTEXT" in capsys.readouterr().err
    assert not file.exists()


def test_a_profile_can_be_replaced_renamed_and_deleted(file: Path) -> None:
    assert run(["profile", "set", "p", "a:1", *SASL, "--password-command", "true", "--use"]) == ExitCode.OK
    assert run(["profile", "rename", "p", "q"]) == ExitCode.OK
    assert profile(file, "q")["password_command"] == "true"
    assert run(["profile", "delete", "p"]) == ExitCode.NOT_FOUND
    assert run(["profile", "delete", "q"]) == ExitCode.OK
    assert "profiles" not in tomllib.loads(file.read_text())
