"""Values of settings from files and environment variables, as Kafka's config providers give them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from ottla.broker import config as configuration
from ottla.core.settings import InvalidSettings, SettingText
from ottla.security.config_providers import FILE_BYTES_MAX, expand

PACKAGE = "org.apache.kafka.common.config.provider."


def expanded(
    settings: Mapping[str, str], environment: Mapping[str, str] | None = None
) -> tuple[dict[str, str], list[str]]:
    given = {key: SettingText(text, "file line 1") for key, text in settings.items()}
    found, problems = expand(given, frozenset(given), environment or {})
    return {key: value.text for key, value in found.items()}, [f"{each.key}: {each.reason}" for each in problems]


def test_a_variable_stands_for_a_key_of_a_file_a_variable_of_the_environment_or_a_file(tmp_path: Path) -> None:
    secrets = tmp_path / "secrets.properties"
    secrets.write_text("a.b=one=1\nwith:colon = two\n")
    (tmp_path / "token").write_text("three\n")
    settings = {
        "one": f"${{file:{secrets}:a.b}}",
        "two": "${env:HOME_OF_IT}",
        "three": f"${{directory:{tmp_path}:token}}",
        "all": f"<${{env:HOME_OF_IT}}|${{directory:{tmp_path}:token}}>",
        "none": "$HOME ${} $5",
    }
    found, problems = expanded(settings, {"HOME_OF_IT": "there"})
    assert not problems
    assert found == {"one": "one=1", "two": "there", "three": "three", "all": "<there|three>", "none": "$HOME ${} $5"}


def test_what_a_variable_stands_for_is_not_expanded_again_and_is_a_secret() -> None:
    given = {"a": SettingText("${env:A}", "f"), "b": SettingText("plain", "f")}
    found, _ = expand(given, frozenset(given), {"A": "${env:B}", "B": "secret"})
    assert found["a"].text == "${env:B}" and found["a"].is_secret and not found["b"].is_secret
    assert "env:B" not in repr(found)


def test_only_the_settings_that_are_trusted_are_expanded() -> None:
    given = {"a": SettingText("${env:A}", "f"), "b": SettingText("${env:A}", "environment variable OTTLA_B")}
    found, problems = expand(given, frozenset({"a"}), {"A": "secret"})
    assert (found["a"].text, found["b"].text, problems) == ("secret", "${env:A}", [])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("${env:NOT_THERE}", "there is no environment variable NOT_THERE"),
        ("${vault:/secret:a}", "there is no config provider vault; there is file, env, directory"),
        ("${file:secrets.properties:a}", "secrets.properties is not an absolute path"),
        ("${file:/no/such/file:a}", "cannot read /no/such/file: No such file or directory"),
        ("${directory:/etc:../etc/passwd}", "../etc/passwd is not the name of a file in /etc"),
    ],
)
def test_a_variable_without_a_value_is_a_problem(text: str, reason: str) -> None:
    found, problems = expanded({"k": text})
    assert found == {"k": text} and problems == [f"k: {reason}"]


def test_no_problem_shows_what_a_file_has(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"canary\xff")
    (tmp_path / "large").write_bytes(b"canary" * FILE_BYTES_MAX)
    (tmp_path / "other").write_text("b=canary")
    _, problems = expanded(
        {
            "binary": f"${{file:{tmp_path}/binary:a}}",
            "large": f"${{directory:{tmp_path}:large}}",
            "other": f"${{file:{tmp_path}/other:a}}",
        }
    )
    assert len(problems) == 3 and not any("canary" in problem for problem in problems)
    assert [problem.rpartition("/")[2] for problem in problems] == [
        "binary is not UTF-8",
        f"large is larger than {FILE_BYTES_MAX} bytes",
        "other has no a",
    ]


def test_providers_are_named_by_kafkas_classes_and_no_others(tmp_path: Path) -> None:
    (tmp_path / "f").write_text("k=v")
    named = {"config.providers": "mine,env", "config.providers.mine.class": PACKAGE + "FileConfigProvider"}
    named["config.providers.env.class"] = PACKAGE + "EnvVarConfigProvider"
    found, problems = expanded({**named, "a": f"${{mine:{tmp_path}/f:k}}", "b": "${file:/x:y}"})
    assert found == {"a": "v", "b": "${file:/x:y}"}
    assert problems == ["b: there is no config provider file; there is mine, env"]
    evil = {"config.providers": "x,y", "config.providers.x.class": "com.example.VaultConfigProvider"}
    _, problems = expanded(evil)
    assert [problem.partition(":")[0] for problem in problems] == ["config.providers.x.class", "config.providers"]
    assert "Ottla loads no classes" in problems[0]


def test_a_provider_reads_only_what_its_parameters_allow(tmp_path: Path) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    inside.mkdir()
    (inside / "f").write_text("k=v")
    outside.write_text("k=canary")
    (inside / "link").symlink_to(outside)
    named = {
        "config.providers": "file,env",
        "config.providers.file.class": PACKAGE + "FileConfigProvider",
        "config.providers.file.param.allowed.paths": f"/nowhere,{inside}",
        "config.providers.env.class": PACKAGE + "EnvVarConfigProvider",
        "config.providers.env.param.allowlist.pattern": "OK_.*",
    }
    asked = {
        "a": f"${{file:{inside}/f:k}}",
        "b": f"${{file:{inside}/link:k}}",
        "c": f"${{file:{inside}/../outside:k}}",
        "d": "${env:OK_1}",
        "e": "${env:NOT_OK_1}",
    }
    found, problems = expanded({**named, **asked}, {"OK_1": "1", "NOT_OK_1": "canary"})
    assert found == {"a": "v", "b": asked["b"], "c": asked["c"], "d": "1", "e": asked["e"]}
    assert len(problems) == 3 and not any("canary" in problem for problem in problems)


def test_a_broker_reads_its_file_and_command_line_with_variables_and_its_environment_without(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("ssl.key.password=${env:OF_FILE}\nlog.retention.ms=${env:DAYS}\n")
    environment = {
        "OF_FILE": "first-secret",
        "DAYS": "7d",
        "OTTLA_SSL_KEYSTORE_PASSWORD": "${env:OF_FILE}",
        "OF_OPTION": "three",
    }
    config, _ = configuration.read(
        file=file, environment=environment, options={"ssl.truststore.password": "${env:OF_OPTION}"}, is_process=True
    )
    assert (config.tls.key_password, config.tls.keystore_password) == ("first-secret", "${env:OF_FILE}")
    assert (config.tls.truststore_password, config.log.retention_ms) == ("three", 7 * 86_400_000)
    assert not [
        each for each in ("first-secret", "three", "604800000") if each in repr(config.given) + repr(config.tls)
    ]


def test_a_secret_on_the_command_line_of_a_process_is_refused(tmp_path: Path) -> None:
    options = {"ssl.key.password": "canary-secret", "listener.name.a.ssl.keystore.key": "canary-secret"}
    with pytest.raises(InvalidSettings) as refused:
        configuration.read(file=None, environment={}, options=options, is_process=True)
    assert len(refused.value.problems) == 2 and "canary" not in f"{refused.value}{refused.value!r}"
    config, _ = configuration.read(file=None, environment={}, options=options)  # of a test, not of a process
    assert config.tls.key_password == "canary-secret"


def test_a_wrong_or_unknown_setting_does_not_show_its_secret(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(
        "num.partitions=${env:SECRET}\nssl.keystore.typ=x\ndelegation.token.master.key=canary-1\n"
        "sasl.jaas.config=canary-1\nsasl.oauthbearer.client.credentials.client.secret=canary-1\n"
    )
    with pytest.raises(InvalidSettings) as refused:
        configuration.read(
            file=file, environment={"SECRET": "canary-2"}, options={"ssl.key.pasword": "canary-3"}, is_process=False
        )
    assert "canary-1" not in str(refused.value) and "canary-3" not in str(refused.value)
    with pytest.raises(InvalidSettings) as refused:
        configuration.read(file=file, environment={"SECRET": "canary-2"}, options={}, is_process=True)
    assert "num.partitions=[hidden]" in str(refused.value) and "canary" not in str(refused.value)
