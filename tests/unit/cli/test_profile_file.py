"""Named clusters, and which brokers a command asks."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.cli.connection import ConnectionOptions
from ottla.cli.errors import CommandFailed, ExitCode
from ottla.cli.profile_file import NamedCluster, Profiles, is_profile_name


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
        Profiles.load({"OTTLA_PROFILES": str(tmp_path / "p.toml")})
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
    with pytest.raises(CommandFailed, match="the settings of profile a"):
        Profiles.load({"OTTLA_PROFILES": str(tmp_path / "p.toml")})
