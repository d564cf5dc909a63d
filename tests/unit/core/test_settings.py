from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest

from ottla.broker import config as configuration
from ottla.core.settings import (
    HOUR_MS,
    InvalidSettings,
    Section,
    SettingText,
    Type,
    from_environment,
    load,
    read_properties,
    setting,
)
from ottla.security.config import AUTHORIZERS, TlsConfig


class Sizes(Section):
    size_bytes: int = setting("size.bytes", default=10, kind=Type.INT, unit="bytes", at_least=5, doc="A size.")
    keep_ms: int = setting(
        "keep.ms", default=1, kind=Type.LONG, synonyms=("keep.hours",), scale={"keep.hours": HOUR_MS}, doc="A time."
    )
    policy: tuple[str, ...] = setting(
        "policy", default=("delete",), kind=Type.LIST, choices=("delete", "compact"), doc="A policy."
    )
    password: str = setting("password", default="", kind=Type.PASSWORD, choices=("x",), doc="A secret.")


def test_a_section_has_its_defaults_and_is_compared_by_its_values() -> None:
    assert Sizes() == Sizes(size_bytes=10)
    assert hash(Sizes()) == hash(Sizes(size_bytes=10))
    assert replace(Sizes(), size_bytes=11) == Sizes(size_bytes=11) != Sizes()
    assert repr(Sizes(size_bytes=11)).startswith("Sizes(size_bytes=11, keep_ms=1")


def test_a_section_never_changes_and_has_only_its_own_fields() -> None:
    with pytest.raises(FrozenInstanceError):
        Sizes().size_bytes = 11  # type: ignore[misc]
    with pytest.raises(TypeError, match="Sizes has no count"):
        Sizes(count=1)  # type: ignore[call-arg]


def test_every_wrong_setting_is_named_with_its_value_limit_and_line() -> None:
    given = read_properties("size.bytes=3\n\npolicy=shred\n", origin="server.properties")

    with pytest.raises(InvalidSettings) as error:
        load(Sizes, given)

    assert [str(problem) for problem in error.value.problems] == [
        "size.bytes=3 (server.properties line 1): must be at least 5 bytes",
        "policy=shred (server.properties line 3): must be one of delete, compact",
    ]


def test_a_wrong_secret_is_not_shown() -> None:
    with pytest.raises(InvalidSettings) as error:
        load(Sizes, {"password": SettingText("hunter2", "-o")})

    assert "hunter2" not in str(error.value)


def test_a_setting_may_be_given_in_another_unit_and_the_finer_name_wins() -> None:
    assert load(Sizes, {"keep.hours": SettingText("2", "f")}).keep_ms == 2 * HOUR_MS
    assert load(Sizes, {"keep.hours": SettingText("2", "f"), "keep.ms": SettingText("5", "f")}).keep_ms == 5


def test_lists_are_split_and_trimmed() -> None:
    assert load(Sizes, {"policy": SettingText(" compact, delete ", "f")}).policy == ("compact", "delete")


def test_environment_variables_name_settings_in_capitals() -> None:
    found = from_environment({"OTTLA_SIZE_BYTES": "7", "PATH": "/bin"}, ["size.bytes"])

    assert found == {"size.bytes": SettingText("7", "environment variable OTTLA_SIZE_BYTES")}


def test_the_command_line_beats_the_environment_beats_the_file_beats_the_default(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("num.partitions=2\nnode.id=2\nlog.segment.bytes=2000000\n")

    config, warnings = configuration.read(
        file=file, environment={"OTTLA_NUM_PARTITIONS": "3", "OTTLA_NODE_ID": "3"}, options={"num.partitions": "4"}
    )

    assert (config.controller.num_partitions, config.server.node_id, config.log.segment_bytes) == (4, 3, 2_000_000)
    assert config.net.backlog == 511
    assert not warnings


def test_dev_changes_only_the_defaults(tmp_path: Path) -> None:
    config, _ = configuration.read(file=None, environment={}, options={})
    assert config.groups.initial_rebalance_delay_ms == 3_000
    assert configuration.settings_of_dev(config) == {}

    config, _ = configuration.read(file=None, environment={}, options={}, is_dev=True)
    assert (config.groups.initial_rebalance_delay_ms, config.controller.auto_create_topics) == (0, True)
    assert configuration.settings_of_dev(config) == configuration.DEV_DEFAULTS

    file = tmp_path / "server.properties"
    file.write_text("auto.create.topics.enable=false\n")
    config, _ = configuration.read(
        file=file, environment={"OTTLA_GROUP_INITIAL_REBALANCE_DELAY_MS": "5"}, options={}, is_dev=True
    )
    assert (config.groups.initial_rebalance_delay_ms, config.controller.auto_create_topics) == (5, False)
    assert configuration.settings_of_dev(config) == {}


def test_settings_of_kafkas_that_mean_nothing_here_are_named_in_one_warning(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("num.io.threads=8\nlog.segmnt.bytes=1\n")

    _, warnings = configuration.read(file=file, environment={}, options={})

    assert len(warnings) == 1
    assert "num.io.threads" in warnings[0]
    assert "did you mean log.segment.bytes?" in warnings[0]


def test_a_wrong_name_and_wrong_values_are_reported_together() -> None:
    with pytest.raises(InvalidSettings) as error:
        configuration.read(file=None, environment={}, options={"log.segmnt.bytes": "1", "num.partitions": "x"})

    assert [problem.key for problem in error.value.problems] == ["log.segmnt.bytes", "num.partitions"]


def test_a_name_typed_wrong_on_the_command_line_is_an_error() -> None:
    with pytest.raises(InvalidSettings, match="did you mean log"):
        configuration.read(file=None, environment={}, options={"log.segmnt.bytes": "1"})


SECURITY = {
    "ssl.engine.factory.class": "org.example.Engines",
    "listener.name.outside.ssl.engine.factory.class": "org.example.Engines",
    "sasl.server.callback.handler.class": "org.example.Passwords",
    "listener.name.outside.sasl.kerberos.service.name": "kafka",
    "listener.name.outside.sasl.oauthbearer.client.credentials.client.secret": "s3cret",
    "zookeeper.ssl.crl.enable": "true",
    "principal.builder.class": "org.example.Builder",
}


@pytest.mark.parametrize("source", ["file", "environment", "command line"])
@pytest.mark.parametrize("key", SECURITY)
def test_security_that_would_be_missing_prevents_a_start_and_no_secret_is_shown(
    key: str, source: str, tmp_path: Path
) -> None:
    file = tmp_path / "server.properties"
    variable = "OTTLA_" + key.upper().replace(".", "_")
    source = "file" if "-" in variable else source  # no variable of a shell has such a name
    file.write_text(f"{key}={SECURITY[key]}\n" if source == "file" else "")
    environment = {variable: SECURITY[key]} if source == "environment" else {}
    options = {key: SECURITY[key]} if source == "command line" else {}

    with pytest.raises(InvalidSettings, match=r"\. Leave the setting out to go without it") as error:
        configuration.read(file=file, environment=environment, options=options)

    (problem,) = error.value.problems
    assert problem.key == key
    assert "s3cret" not in str(problem)


@pytest.mark.parametrize("line", ["sasl.login.class=", "zookeeper.ssl.crl.enable=false"])
def test_a_security_setting_that_asks_for_none_does_not_prevent_a_start(line: str, tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text(line + "\n")

    _, warnings = configuration.read(file=file, environment={}, options={})

    assert line.partition("=")[0] in warnings[0]


@pytest.mark.parametrize("name", AUTHORIZERS)
def test_the_names_of_kafkas_authorizers_turn_access_control_on(name: str) -> None:
    options = {"authorizer.class.name": name, "super.users": "User:admin; User:CN=b,O=x;"}

    config, warnings = configuration.read(file=None, environment={}, options=options)

    assert config.authorizer.is_on
    assert config.authorizer.super_user_principals == {"User:admin", "User:CN=b,O=x"}
    assert not configuration.read(file=None, environment={}, options={})[0].authorizer.is_on
    assert not warnings


@pytest.mark.parametrize(
    ("key", "text", "reason"),
    [
        ("authorizer.class.name", "org.example.Custom", "there is no authorizer org.example.Custom"),
        ("authorizer.class.name", "none", "there is no authorizer none"),
        ("super.users", "User:a;admin", "write User:admin"),
    ],
)
def test_access_control_that_would_decide_otherwise_prevents_a_start(key: str, text: str, reason: str) -> None:
    with pytest.raises(InvalidSettings, match=reason) as error:
        configuration.read(file=None, environment={}, options={key: text})

    assert [problem.key for problem in error.value.problems] == [key]


def test_unknown_names_are_reported_beside_invalid_settings(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("log.segmnt.bytes=1\nprocess.roles=broker\nnum.partitions=x\nssl.provider=SunJSSE\n")

    with pytest.raises(InvalidSettings) as error:
        configuration.read(file=file, environment={}, options={})

    assert [problem.key for problem in error.value.problems] == ["ssl.provider", "num.partitions"]
    assert [warning for warning in error.value.warnings if "log.segmnt.bytes" in warning]


def test_settings_of_a_quorum_have_no_effect_also_on_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("controller.quorum.bootstrap.servers=localhost:9093\n")

    _, warnings = configuration.read(file=file, environment={}, options={"process.roles": "broker,controller"})

    (warning,) = warnings
    assert warning == (
        "settings of a KRaft quorum have no effect in Ottla: "
        f"controller.quorum.bootstrap.servers ({file} line 1), process.roles (command line)"
    )


def test_a_setting_of_one_listener_is_read_from_file_environment_and_command_line(tmp_path: Path) -> None:
    file = tmp_path / "server.properties"
    file.write_text("ssl.client.auth=none\nlistener.name.outside.ssl.client.auth=required\n")
    environment = {"OTTLA_LISTENER_NAME_IN_2_SSL_KEY_PASSWORD": "s3cret"}

    config, warnings = configuration.read(
        file=file, environment=environment, options={"listener.name.in_2.ssl.client.auth": "requested"}
    )

    assert config.tls.client_auth == config.of_listener(TlsConfig, "OTHER").client_auth == "none"
    assert config.of_listener(TlsConfig, "OUTSIDE").client_auth == "required"
    assert config.of_listener(TlsConfig, "IN_2").client_auth == "requested"
    assert config.of_listener(TlsConfig, "IN_2").key_password == "s3cret"
    assert "s3cret" not in repr(config.of_listener(TlsConfig, "IN_2"))
    assert all("no listener has TLS" in warning for warning in warnings)  # that is all it says of them


def test_a_wrong_value_of_one_listener_is_reported_under_its_name() -> None:
    with pytest.raises(
        InvalidSettings, match=r"^listener\.name\.outside\.ssl\.client\.auth=maybe \(command line\): must be"
    ):
        configuration.read(file=None, environment={}, options={"listener.name.outside.ssl.client.auth": "maybe"})


def test_what_is_set_for_one_listener_while_the_broker_runs_takes_precedence() -> None:
    key = "listener.name.outside.ssl.client.auth"
    config, _ = configuration.read(file=None, environment={}, options={key: "none"})

    changed = config.with_overrides({key: "required"})

    assert changed.of_listener(TlsConfig, "OUTSIDE").client_auth == "required"
    assert changed.with_overrides({}).of_listener(TlsConfig, "OUTSIDE").client_auth == "none"
