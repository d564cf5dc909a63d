"""Named clusters, and which brokers a command asks."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.cli.connection import ConnectionOptions, load_profiles
from ottla.cli.errors import CommandFailed, ExitCode
from ottla.client.password_source import PasswordKind, PasswordSource
from ottla.client.profiles import InvalidProfile, NamedCluster, Profiles, is_profile_name


def _environment(directory: Path, **more: str) -> dict[str, str]:
    return {"HOME": str(directory), **more}


def _asked(target: ConnectionOptions, environment: dict[str, str]) -> list[str]:
    return [str(address) for address in target.addresses(environment)]


def test_the_broker_list_has_a_fixed_precedence(tmp_path: Path) -> None:
    environment = _environment(tmp_path)
    assert _asked(ConnectionOptions(), environment) == ["127.0.0.1:9092"]
    profiles = Profiles.load(environment)
    profiles.clusters |= {"a": NamedCluster("a:1"), "b": NamedCluster("b:1")}
    profiles.current = "a"
    profiles.save()
    assert _asked(ConnectionOptions(), environment) == ["a:1"]
    environment["OTTLA_BROKERS"] = "env:1,env:2"
    assert _asked(ConnectionOptions(), environment) == ["env:1", "env:2"]
    assert _asked(ConnectionOptions(profile="b"), environment) == ["b:1"]
    assert _asked(ConnectionOptions(profile="b", brokers="given:1"), environment) == ["given:1"]


def test_environment_variables_set_the_path_of_the_file(tmp_path: Path) -> None:
    assert Profiles.load(_environment(tmp_path)).path == tmp_path / ".config" / "ottla" / "profiles.toml"
    other = _environment(tmp_path, XDG_CONFIG_HOME=str(tmp_path / "x"))
    assert Profiles.load(other).path == tmp_path / "x" / "ottla" / "profiles.toml"
    assert Profiles.load({**other, "OTTLA_PROFILES": "/p.toml"}).path == Path("/p.toml")


@given(st.dictionaries(st.from_regex(r"[A-Za-z0-9_-]{1,20}", fullmatch=True), st.text(st.characters(codec="utf-8"))))
def test_saved_profiles_are_loaded_again(tmp_path_factory: pytest.TempPathFactory, clusters: dict[str, str]) -> None:
    environment = _environment(tmp_path_factory.mktemp("profiles"))
    saved = Profiles.load(environment)
    saved.clusters = {name: NamedCluster(brokers) for name, brokers in clusters.items()}
    saved.current = next(iter(clusters), None)
    saved.save()
    assert Profiles.load(environment) == saved


@pytest.mark.parametrize("text", ["current = ", "\xff", "[profiles.a]\nbrokers = 3\n", "[profiles]\na = 1\n"])
def test_an_invalid_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "p.toml").write_bytes(text.encode("latin-1"))
    with pytest.raises(CommandFailed, match=r"p\.toml") as caught:
        load_profiles({"OTTLA_PROFILES": str(tmp_path / "p.toml")})
    assert caught.value.code is ExitCode.BAD_INPUT


def test_an_unknown_profile_and_an_invalid_address_have_different_exit_codes(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match="there is no profile 'x'") as caught:
        ConnectionOptions(profile="x").addresses(_environment(tmp_path))
    assert caught.value.code is ExitCode.NOT_FOUND
    with pytest.raises(CommandFailed, match="OTTLA_BROKERS: ") as caught:
        ConnectionOptions().addresses(_environment(tmp_path, OTTLA_BROKERS="a b"))
    assert caught.value.code is ExitCode.USAGE


@pytest.mark.parametrize(
    ("name", "fits"), [("a-b_1", True), ("", False), ("a.b", False), ("a b", False), ("a" * 65, False)]
)
def test_a_valid_profile_name_is_a_valid_toml_key(name: str, fits: bool) -> None:
    assert is_profile_name(name) is fits


def test_a_profile_has_client_settings_that_options_override(tmp_path: Path) -> None:
    environment = _environment(tmp_path)
    profiles = Profiles.load(environment)
    settings = {"security.protocol": "SASL_SSL", "sasl.password": "${env:SECRET}", "client.id": 'a "b" \\ c'}
    profiles.clusters["a"] = NamedCluster("a:1", settings)
    profiles.save()
    assert Profiles.load(environment) == profiles
    assert profiles.path.stat().st_mode & 0o777 == 0o600
    assert ConnectionOptions().settings(environment) == {}
    with pytest.raises(CommandFailed, match=r"sasl\.password needs the environment variable SECRET"):
        ConnectionOptions(profile="a").settings(environment)
    environment |= {"SECRET": "x", "OTTLA_CLIENT_SETTINGS": "client.id=me"}
    found = ConnectionOptions(profile="a").settings(environment)
    assert found == {"security.protocol": "SASL_SSL", "sasl.password": "x", "client.id": "me"}
    assert ConnectionOptions(brokers="b:1").settings(environment) == {"client.id": "me"}


def test_invalid_settings_of_a_profile_are_named(tmp_path: Path) -> None:
    (tmp_path / "p.toml").write_text('[profiles.a]\nbrokers = "a:1"\nsettings = { x = 1 }\n')
    with pytest.raises(InvalidProfile, match="the settings of profile a"):
        Profiles.load({"OTTLA_PROFILES": str(tmp_path / "p.toml")})


def saved(directory: Path, cluster: NamedCluster) -> dict[str, str]:
    """Save a profile `a`; return the environment of its file."""
    environment = _environment(directory)
    profiles = Profiles.load(environment)
    profiles.clusters["a"] = cluster
    profiles.save()
    assert Profiles.load(environment) == profiles
    return environment


SCRAM = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256", "sasl.username": "alice"}


def read(directory: Path, kind: PasswordKind, text: str) -> str:
    """Return the password that commands sign in with."""
    environment = saved(directory, NamedCluster("a:1", SCRAM, PasswordSource(kind, text)))
    return ConnectionOptions(profile="a").settings(environment)["sasl.password"]


def failure(directory: Path, kind: PasswordKind, text: str) -> str:
    with pytest.raises(CommandFailed) as caught:
        read(directory, kind, text)
    assert caught.value.code is ExitCode.USAGE
    return str(caught.value)


def test_a_password_is_the_first_line_that_a_command_prints(tmp_path: Path) -> None:
    assert read(tmp_path, PasswordKind.COMMAND, "printf 'a secret\\r\\nand notes'") == "a secret"
    assert read(tmp_path, PasswordKind.COMMAND, "echo '$HOME;' `") == "$HOME; `", "there is no shell"


def test_a_command_that_fails_is_reported_without_its_output(tmp_path: Path) -> None:
    assert "ended with exit code 3" in failure(tmp_path, PasswordKind.COMMAND, "sh -c 'echo canary; exit 3'")
    assert "canary" not in failure(tmp_path, PasswordKind.COMMAND, "sh -c 'printf canary%s; exit 3' x")
    assert "none-of-these cannot be run" in failure(tmp_path, PasswordKind.COMMAND, "none-of-these")
    assert "gave no password" in failure(tmp_path, PasswordKind.COMMAND, "true")
    assert "No closing quotation" in failure(tmp_path, PasswordKind.COMMAND, "echo 'a")
    assert "is empty" in failure(tmp_path, PasswordKind.COMMAND, " ")


def test_a_password_is_the_first_line_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("a secret\n")
    assert read(tmp_path, PasswordKind.FILE, str(tmp_path / "password")) == "a secret"
    (tmp_path / "password").write_bytes(b"\xff")
    assert "no text in UTF-8" in failure(tmp_path, PasswordKind.FILE, str(tmp_path / "password"))
    assert "cannot be read" in failure(tmp_path, PasswordKind.FILE, str(tmp_path / "none"))


def test_a_password_is_in_the_keyring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library is optional: one of the same interface stands for it."""
    assert "pip install keyring" in failure(tmp_path, PasswordKind.KEYRING, "ottla")
    package = tmp_path / "keyring"
    package.mkdir()
    (package / "errors.py").write_text("class KeyringError(Exception): ...\n")
    (package / "__init__.py").write_text(
        "def get_password(service, user):\n    return {('ottla', 'alice'): 'a secret'}.get((service, user))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert read(tmp_path, PasswordKind.KEYRING, "ottla") == "a secret"
    assert "keyring set other alice" in failure(tmp_path, PasswordKind.KEYRING, "other")


def test_no_command_runs_to_complete_a_name(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    source = PasswordSource(PasswordKind.COMMAND, f"touch {ran}")
    environment = saved(tmp_path, NamedCluster("a:1", SCRAM, source))
    with pytest.raises(CommandFailed, match="is not read here"):
        ConnectionOptions(profile="a", may_ask=False).settings(environment)
    assert not ran.exists()


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ('password_file = "a"\npassword_command = "b"', "more than one password"),
        ('password_file = "a"\nsettings = { "sasl.password" = "b" }', "more than one password"),
        ("password_file = 3", "password_file of profile a must be a text"),
        ('password_command = ""', "password_command of profile a must be a text"),
    ],
)
def test_an_ambiguous_password_is_refused(tmp_path: Path, lines: str, message: str) -> None:
    (tmp_path / "p.toml").write_text(f'[profiles.a]\nbrokers = "a:1"\n{lines}\n')
    with pytest.raises(InvalidProfile, match=message):
        Profiles.load({"OTTLA_PROFILES": str(tmp_path / "p.toml")})
