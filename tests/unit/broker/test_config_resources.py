"""Settings as clients see and change them: values, sources, what may change while the broker runs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from ottla.broker.config_resources import ConfigSource
from ottla.broker.share_groups import ShareGroupSettings
from ottla.core.errors import ErrorCode
from ottla.core.settings import LONG_MAX, Type
from ottla.testing.cluster import BrokerHandlers
from ottla.wire.generated import alter_configs, describe_configs, incremental_alter_configs, list_config_resources
from ottla.wire.generated.create_topics import CreatableTopic, CreateTopicsRequest

pytestmark = pytest.mark.simulated_time

TOPIC, BROKER, LOGGER, METRICS, GROUP = 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3

Change = tuple[str, int, str | None]


@pytest.fixture
def root_level() -> Iterator[None]:
    before = logging.getLogger().level
    yield
    logging.getLogger().setLevel(before)
    logging.getLogger("ottla.net.server").setLevel(logging.NOTSET)


async def create(server: BrokerHandlers, *names: str) -> None:
    topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names]
    answer = await server.call("create_topics", 7, CreateTopicsRequest(topics=topics))
    assert [topic.error_code for topic in answer.topics] == [0] * len(names)


async def describe(
    server: BrokerHandlers, kind: int, name: str, *keys: str
) -> dict[str, describe_configs.DescribeConfigsResourceResult]:
    asked = describe_configs.DescribeConfigsResource(
        resource_type=kind, resource_name=name, configuration_keys=list(keys) or None
    )
    request = describe_configs.DescribeConfigsRequest(
        resources=[asked], include_synonyms=True, include_documentation=True
    )
    (result,) = (await server.call("describe_configs", 4, request)).results
    assert result.error_code == 0, result.error_message
    return {entry.name: entry for entry in result.configs}


async def change(
    server: BrokerHandlers, kind: int, name: str, *changes: Change, validate_only: bool = False
) -> tuple[int, Any]:
    configs = [
        incremental_alter_configs.AlterableConfig(name=key, config_operation=op, value=value)
        for key, op, value in changes
    ]
    resource = incremental_alter_configs.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    request = incremental_alter_configs.IncrementalAlterConfigsRequest(
        resources=[resource], validate_only=validate_only
    )
    (answer,) = (await server.call("incremental_alter_configs", 1, request)).responses
    return answer.error_code, answer.error_message


async def replace(server: BrokerHandlers, kind: int, name: str, **values: str | None) -> int:
    configs = [alter_configs.AlterableConfig(name=key.replace("_", "."), value=text) for key, text in values.items()]
    resource = alter_configs.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    (answer,) = (
        await server.call("alter_configs", 2, alter_configs.AlterConfigsRequest(resources=[resource]))
    ).responses
    code: int = answer.error_code
    return code


def chain(entry: describe_configs.DescribeConfigsResourceResult) -> list[tuple[str, str | None, int]]:
    return [(each.name, each.value, each.source) for each in entry.synonyms]


@pytest.mark.options({"log.segment.bytes": "2000000"})
async def test_every_layer_that_sets_a_value_is_shown_strongest_first(broker: BrokerHandlers) -> None:
    await create(broker, "t")
    key = "log.segment.bytes"
    assert chain((await describe(broker, TOPIC, "t"))["segment.bytes"]) == [
        (key, "2000000", ConfigSource.STATIC),
        (key, "1073741824", ConfigSource.DEFAULT),
    ]
    assert (await change(broker, BROKER, "", (key, SET, "3000000")))[0] == 0
    assert (await change(broker, BROKER, "1", (key, SET, "4000000")))[0] == 0
    assert (await change(broker, TOPIC, "t", ("segment.bytes", SET, "5000000")))[0] == 0

    entry = (await describe(broker, TOPIC, "t"))["segment.bytes"]
    assert (entry.value, entry.config_source) == ("5000000", ConfigSource.TOPIC)
    assert chain(entry) == [
        ("segment.bytes", "5000000", ConfigSource.TOPIC),
        (key, "4000000", ConfigSource.BROKER),
        (key, "3000000", ConfigSource.ALL_BROKERS),
        (key, "2000000", ConfigSource.STATIC),
        (key, "1073741824", ConfigSource.DEFAULT),
    ]
    assert (await change(broker, TOPIC, "t", ("segment.bytes", DELETE, None)))[0] == 0
    entry = (await describe(broker, TOPIC, "t"))["segment.bytes"]
    assert (entry.value, entry.config_source) == ("4000000", ConfigSource.BROKER)


@pytest.mark.options({"log.retention.hours": "3"})
async def test_a_value_given_in_hours_is_shown_in_the_topics_own_unit(broker: BrokerHandlers) -> None:
    await create(broker, "t")
    entry = (await describe(broker, TOPIC, "t"))["retention.ms"]
    assert (entry.value, entry.config_source) == ("10800000", ConfigSource.STATIC)
    assert chain(entry) == [("log.retention.hours", "3", ConfigSource.STATIC)]


def row(entries: dict[str, describe_configs.DescribeConfigsResourceResult], name: str) -> tuple[Any, ...]:
    entry = entries[name]
    return (entry.value, entry.config_source, entry.read_only, Type(entry.config_type), chain(entry))


async def test_a_broker_shows_each_name_of_a_setting_and_null_for_what_is_not_set(broker: BrokerHandlers) -> None:
    shown = await describe(broker, BROKER, "1")
    hours = ("log.retention.hours", "168", ConfigSource.DEFAULT)
    assert row(shown, "log.retention.hours") == ("168", ConfigSource.DEFAULT, True, Type.INT, [hours])
    assert row(shown, "log.retention.minutes") == (None, ConfigSource.DEFAULT, True, Type.INT, [])
    assert row(shown, "log.retention.ms") == (None, ConfigSource.DEFAULT, False, Type.LONG, [])
    flush = ("log.flush.scheduler.interval.ms", str(LONG_MAX), ConfigSource.DEFAULT)
    assert row(shown, "log.flush.scheduler.interval.ms") == (
        str(LONG_MAX),
        ConfigSource.DEFAULT,
        True,
        Type.LONG,
        [flush],
    )
    assert row(shown, "log.flush.interval.ms") == (None, ConfigSource.DEFAULT, False, Type.LONG, [])
    assert row(shown, "broker.rack") == (None, ConfigSource.DEFAULT, True, Type.STRING, [])
    assert (shown["node.id"].value, shown["broker.id"].value) == ("1", "1")


@pytest.mark.options({"log.roll.hours": "5", "broker.rack": "r1"})
async def test_a_broker_shows_a_setting_under_the_name_by_which_it_was_set(broker: BrokerHandlers) -> None:
    shown = await describe(broker, BROKER, "1")
    assert row(shown, "log.roll.hours") == (
        "5",
        ConfigSource.STATIC,
        True,
        Type.INT,
        [("log.roll.hours", "5", ConfigSource.STATIC), ("log.roll.hours", "168", ConfigSource.DEFAULT)],
    )
    assert row(shown, "log.roll.ms") == (None, ConfigSource.DEFAULT, False, Type.LONG, [])
    rack = ("broker.rack", "r1", ConfigSource.STATIC)
    assert row(shown, "broker.rack") == ("r1", ConfigSource.STATIC, True, Type.STRING, [rack])
    assert (await change(broker, BROKER, "1", ("log.roll.ms", SET, "7000")))[0] == 0
    shown = await describe(broker, BROKER, "1")
    changed = ("log.roll.ms", "7000", ConfigSource.BROKER)
    hours = [("log.roll.hours", "5", ConfigSource.STATIC), ("log.roll.hours", "168", ConfigSource.DEFAULT)]
    assert row(shown, "log.roll.ms") == ("7000", ConfigSource.BROKER, False, Type.LONG, [changed, *hours])
    assert row(shown, "log.roll.hours") == ("5", ConfigSource.STATIC, True, Type.INT, hours)
    await create(broker, "t")
    entry = (await describe(broker, TOPIC, "t"))["segment.ms"]
    assert (entry.value, entry.config_source, chain(entry)) == ("7000", ConfigSource.BROKER, [changed, *hours])


async def test_all_settings_have_a_type_and_a_text_and_only_live_ones_can_be_written(broker: BrokerHandlers) -> None:
    await create(broker, "t")
    for kind, name in ((TOPIC, "t"), (BROKER, "1"), (GROUP, "g"), (METRICS, "m")):
        entries = await describe(broker, kind, name)
        assert entries
        assert all(entry.documentation and entry.config_type for entry in entries.values())
    brokers = await describe(broker, BROKER, "1")
    assert brokers["num.partitions"].read_only
    assert not brokers["log.retention.ms"].read_only
    assert "internal.segment.bytes" not in await describe(broker, TOPIC, "t")
    assert set(await describe(broker, TOPIC, "t", "retention.ms", "nope")) == {"retention.ms"}
    assert await describe(broker, BROKER, "") == {}


async def test_a_live_change_takes_effect_in_every_log_and_survives_a_restart(broker: BrokerHandlers) -> None:
    await create(broker, "t", "own")
    assert (await change(broker, TOPIC, "own", ("retention.ms", SET, "5")))[0] == 0
    assert (await change(broker, BROKER, "", ("log.retention.ms", SET, "77")))[0] == 0
    logs = {where.topic: each.log for where, each in broker.services.replicas.partitions.items()}
    assert (logs["t"].config.retention_ms, logs["own"].config.retention_ms) == (77, 5)
    await broker.restart()
    assert (await describe(broker, TOPIC, "t"))["retention.ms"].value == "77"


REFUSED: list[tuple[int, str, list[Change], ErrorCode]] = [
    (TOPIC, "t", [("nope", SET, "1")], ErrorCode.INVALID_CONFIG),
    (TOPIC, "t", [("retention.ms", SET, "x")], ErrorCode.INVALID_CONFIG),
    (TOPIC, "t", [("retention.ms", SET, None)], ErrorCode.INVALID_REQUEST),
    (TOPIC, "t", [("retention.ms", 9, "1")], ErrorCode.INVALID_REQUEST),
    (TOPIC, "t", [("flush.ms", SET, "1"), ("flush.ms", SET, "2")], ErrorCode.INVALID_REQUEST),
    (TOPIC, "t", [("flush.ms", SET, "1"), ("retention.ms", APPEND, "2")], ErrorCode.INVALID_CONFIG),
    (TOPIC, "nope", [("flush.ms", SET, "1")], ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (TOPIC, "a b", [("flush.ms", SET, "1")], ErrorCode.INVALID_TOPIC_EXCEPTION),
    (TOPIC, "", [("flush.ms", SET, "1")], ErrorCode.INVALID_REQUEST),
    (BROKER, "1", [("num.partitions", SET, "1")], ErrorCode.INVALID_REQUEST),
    (BROKER, "", [("log.retention.hours", SET, "1")], ErrorCode.INVALID_REQUEST),
    (BROKER, "1", [("log.retention.ms", SET, "x")], ErrorCode.INVALID_REQUEST),
    (BROKER, "2", [("log.retention.ms", SET, "1")], ErrorCode.INVALID_REQUEST),
    (BROKER, "x", [("log.retention.ms", SET, "1")], ErrorCode.INVALID_REQUEST),
    (LOGGER, "1", [("no.logger", SET, "INFO")], ErrorCode.INVALID_CONFIG),
    (LOGGER, "1", [("root", SET, "LOUD")], ErrorCode.INVALID_CONFIG),
    (LOGGER, "1", [("root", DELETE, None)], ErrorCode.INVALID_REQUEST),
    (LOGGER, "1", [("root", APPEND, "INFO")], ErrorCode.INVALID_REQUEST),
    (LOGGER, "2", [("root", SET, "INFO")], ErrorCode.INVALID_REQUEST),
    (METRICS, "m", [("nope", SET, "1")], ErrorCode.INVALID_REQUEST),
    (METRICS, "m", [("interval.ms", SET, "5")], ErrorCode.INVALID_REQUEST),
    (METRICS, "m", [("interval.ms", SET, "x")], ErrorCode.INVALID_CONFIG),
    (METRICS, "m", [("match", SET, "colour=red")], ErrorCode.INVALID_CONFIG),
    (METRICS, "m", [("match", SET, "client_id=(")], ErrorCode.INVALID_CONFIG),
    (METRICS, "", [("interval.ms", SET, "5000")], ErrorCode.INVALID_REQUEST),
    (GROUP, "g", [("nope", SET, "1")], ErrorCode.INVALID_CONFIG),
    (GROUP, "g", [("consumer.session.timeout.ms", SET, "5")], ErrorCode.INVALID_CONFIG),
    (GROUP, "g", [("share.auto.offset.reset", SET, "none")], ErrorCode.INVALID_CONFIG),
    (GROUP, "g", [("share.auto.offset.reset", SET, "Earliest")], ErrorCode.INVALID_CONFIG),
    (GROUP, "g", [("share.auto.offset.reset", SET, "by_duration:nonsense")], ErrorCode.INVALID_CONFIG),
    (GROUP, "", [("consumer.session.timeout.ms", SET, "50000")], ErrorCode.INVALID_REQUEST),
    (0, "t", [("flush.ms", SET, "1")], ErrorCode.INVALID_REQUEST),
]


async def test_a_change_that_cannot_be_has_kafkas_code_and_changes_nothing(broker: BrokerHandlers) -> None:
    await create(broker, "t")
    before = broker.services.cluster.current
    for kind, name, changes, code in REFUSED:
        got, message = await change(broker, kind, name, *changes)
        assert (got, bool(message)) == (code, True), (kind, name, changes)
    assert broker.services.cluster.current is before


async def test_validation_alone_changes_nothing_and_an_entity_named_twice_is_refused(broker: BrokerHandlers) -> None:
    await create(broker, "t")
    assert (await change(broker, TOPIC, "t", ("flush.ms", SET, "1"), validate_only=True))[0] == 0
    assert (await describe(broker, TOPIC, "t"))["flush.ms"].config_source == ConfigSource.DEFAULT
    resource = alter_configs.AlterConfigsResource(resource_type=TOPIC, resource_name="t", configs=[])
    twice = alter_configs.AlterConfigsRequest(resources=[resource, resource])
    answers = (await broker.call("alter_configs", 2, twice)).responses
    assert [answer.error_code for answer in answers] == [ErrorCode.INVALID_REQUEST] * 2


async def test_replacing_all_settings_forgets_what_is_not_named(broker: BrokerHandlers) -> None:
    await create(broker, "t")
    assert (await change(broker, TOPIC, "t", ("flush.ms", SET, "1"), ("retention.ms", SET, "2")))[0] == 0
    assert await replace(broker, TOPIC, "t", retention_ms="3") == 0
    assert broker.services.cluster.current.topics["t"].config == {"retention.ms": "3"}
    assert await replace(broker, LOGGER, "1", root="INFO") == ErrorCode.INVALID_REQUEST


async def test_groups_and_subscriptions_are_listed_once_something_is_set_for_them(broker: BrokerHandlers) -> None:
    await create(broker, "t")
    assert (await change(broker, GROUP, "a/b", ("consumer.session.timeout.ms", SET, "50000")))[0] == 0
    assert (await change(broker, METRICS, "m", ("interval.ms", SET, "6000"), ("match", SET, "client_id=x.*")))[0] == 0
    entry = (await describe(broker, GROUP, "a/b"))["consumer.session.timeout.ms"]
    assert (entry.value, entry.config_source) == ("50000", ConfigSource.GROUP)

    async def listed(version: int, *kinds: int) -> set[tuple[int, str]]:
        request = list_config_resources.ListConfigResourcesRequest(resource_types=list(kinds))
        answer = await broker.call("list_config_resources", version, request)
        assert answer.error_code == 0
        return {(each.resource_type, each.resource_name) for each in answer.config_resources}

    assert await listed(0) == {(METRICS, "m")}
    assert await listed(1) == {(GROUP, "a/b"), (METRICS, "m"), (LOGGER, "1"), (BROKER, "1"), (TOPIC, "t")}
    assert await listed(1, TOPIC, GROUP) == {(TOPIC, "t"), (GROUP, "a/b")}
    assert (await change(broker, GROUP, "a/b", ("consumer.session.timeout.ms", DELETE, None)))[0] == 0
    assert await listed(1, GROUP) == set()
    unknown = list_config_resources.ListConfigResourcesRequest(resource_types=[77])
    answer = await broker.call("list_config_resources", 1, unknown)
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION


GROUP_NUMBERS = {
    "consumer.session.timeout.ms": (20_000, 40_000, 30_000),
    "consumer.heartbeat.interval.ms": (2_000, 4_000, 3_000),
    "consumer.assignment.interval.ms": (200, 400, 300),
    "share.session.timeout.ms": (21_000, 41_000, 31_000),
    "share.heartbeat.interval.ms": (2_100, 4_100, 3_100),
    "share.assignment.interval.ms": (210, 410, 310),
    "share.record.lock.duration.ms": (10_000, 90_000, 40_000),
    "share.delivery.count.limit": (3, 20, 4),
    "share.partition.max.record.locks": (150, 9_000, 1_500),
}
"""The lowest and highest value and the default that a broker of the next tests has for settings of groups."""


def broker_options() -> dict[str, str]:
    options: dict[str, str] = {}
    for key, (lowest, highest, default) in GROUP_NUMBERS.items():
        kind, _, rest = key.partition(".")
        options |= {f"group.{kind}.min.{rest}": str(lowest), f"group.{kind}.max.{rest}": str(highest)}
        options[f"group.{key}"] = str(default)
    return options


@pytest.mark.options(broker_options())
async def test_the_settings_of_a_group_have_the_brokers_bounds_and_defaults(broker: BrokerHandlers) -> None:
    for key, (lowest, highest, default) in GROUP_NUMBERS.items():
        shown = (await describe(broker, GROUP, "g"))[key]
        assert (shown.value, shown.config_source) == (str(default), ConfigSource.STATIC), "the broker's setting"
        kind, _, rest = key.partition(".")
        assert await change(broker, GROUP, "g", (key, SET, str(lowest - 1))) == (
            ErrorCode.INVALID_CONFIG,
            f"{key} must be greater than or equal to group.{kind}.min.{rest}",
        )
        assert await change(broker, GROUP, "g", (key, SET, str(highest + 1))) == (
            ErrorCode.INVALID_CONFIG,
            f"{key} must be less than or equal to group.{kind}.max.{rest}",
        )
        for value in (lowest, highest):
            assert await change(broker, GROUP, "g", (key, SET, str(value))) == (0, None)
        assert (await describe(broker, GROUP, "g"))[key].value == str(highest)
    limits = ShareGroupSettings(broker.services.cluster, broker.services.config.share)("g").limits
    assert (limits.lock_duration_ms, limits.delivery_count_max, limits.record_locks_max) == (90_000, 20, 9_000)


@pytest.mark.parametrize("kind", ["consumer", "share"])
@pytest.mark.options(
    {
        **{f"group.{kind}.min.session.timeout.ms": "1" for kind in ("consumer", "share")},
        **{f"group.{kind}.session.timeout.ms": "5000" for kind in ("consumer", "share")},
    }
)
async def test_the_session_timeout_of_a_group_is_longer_than_its_heartbeat_interval(
    broker: BrokerHandlers, kind: str
) -> None:
    session, heartbeat = f"{kind}.session.timeout.ms", f"{kind}.heartbeat.interval.ms"
    refused = (ErrorCode.INVALID_CONFIG, f"{session} must be greater than {heartbeat}")
    assert await change(broker, GROUP, "g", (heartbeat, SET, "15000"), (session, SET, "15000")) == refused
    assert await change(broker, GROUP, "g", (heartbeat, SET, "14999"), (session, SET, "15000")) == (0, None)
    assert await change(broker, GROUP, "h", (session, SET, "5000")) == refused
    assert await change(broker, GROUP, "h", ("share.auto.offset.reset", SET, "earliest")) == (0, None)


@pytest.mark.usefixtures("root_level")
async def test_a_loggers_level_changes_at_once_and_goes_back_to_its_parents(broker: BrokerHandlers) -> None:
    logger = logging.getLogger("ottla.net.server")
    assert (await change(broker, LOGGER, "1", ("root", SET, "ERROR"), (logger.name, SET, "DEBUG")))[0] == 0
    assert logger.isEnabledFor(logging.DEBUG)
    levels = {name: entry.value for name, entry in (await _levels(broker)).items()}
    assert (levels["root"], levels[logger.name]) == ("ERROR", "DEBUG")
    assert (await change(broker, LOGGER, "1", (logger.name, DELETE, None), validate_only=True))[0] == 0
    assert logger.isEnabledFor(logging.DEBUG)
    assert (await change(broker, LOGGER, "1", (logger.name, DELETE, None)))[0] == 0
    assert not logger.isEnabledFor(logging.WARNING)


async def _levels(server: BrokerHandlers) -> dict[str, describe_configs.DescribeConfigsResourceResult]:
    asked = describe_configs.DescribeConfigsResource(resource_type=LOGGER, resource_name="1", configuration_keys=None)
    answer = await server.call("describe_configs", 4, describe_configs.DescribeConfigsRequest(resources=[asked]))
    return {entry.name: entry for entry in answer.results[0].configs}


UNKNOWN: list[tuple[int, str, ErrorCode]] = [
    (TOPIC, "nope", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    (TOPIC, "a b", ErrorCode.INVALID_TOPIC_EXCEPTION),
    (TOPIC, "", ErrorCode.INVALID_TOPIC_EXCEPTION),
    (BROKER, "2", ErrorCode.INVALID_REQUEST),
    (BROKER, "x", ErrorCode.INVALID_REQUEST),
    (LOGGER, "", ErrorCode.INVALID_REQUEST),
    (LOGGER, "2", ErrorCode.INVALID_REQUEST),
    (METRICS, "", ErrorCode.INVALID_REQUEST),
    (GROUP, "", ErrorCode.INVALID_REQUEST),
    (77, "x", ErrorCode.INVALID_REQUEST),
]


async def test_a_resource_that_cannot_be_described_fails_alone(broker: BrokerHandlers) -> None:
    resources = [
        describe_configs.DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
        for kind, name, _ in [*UNKNOWN, (BROKER, "1", ErrorCode.NONE)]
    ]
    answer = await broker.call("describe_configs", 4, describe_configs.DescribeConfigsRequest(resources=resources))
    *bad, good = answer.results
    assert [each.error_code for each in bad] == [code for _, _, code in UNKNOWN]
    assert all(each.error_message and not each.configs for each in bad)
    assert good.error_code == 0
    assert good.configs


async def test_security_that_would_be_missing_cannot_be_switched_on_while_the_broker_runs(
    broker: BrokerHandlers,
) -> None:
    config = incremental_alter_configs.AlterableConfig(
        name="listener.name.outside.ssl.provider", config_operation=0, value="SunJSSE"
    )
    resource = incremental_alter_configs.AlterConfigsResource(resource_type=BROKER, resource_name="1", configs=[config])
    request = incremental_alter_configs.IncrementalAlterConfigsRequest(resources=[resource])
    (answer,) = (await broker.call("incremental_alter_configs", 1, request)).responses
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    assert "Cannot update these configs dynamically" in answer.error_message
