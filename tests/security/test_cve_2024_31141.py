"""Files and environment variables of the broker are read for its own file and command line alone (CVE-2024-31141).

A client that may set settings must not read them through `${file:...}` and `${env:...}`: what a request sets is stored
and shown as it is, also after a restart, and what the operator's variables stand for is shown to no client.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ottla.core.errors import ErrorCode
from ottla.core.settings import SettingText
from ottla.testing.cluster import BrokerHandlers
from ottla.wire.generated import describe_configs, incremental_alter_configs
from tests.support.clusters import started_cluster

BROKER, TOPIC, GROUP = 4, 2, 32
PREFIX = "errors.deadletterqueue.topic.name.prefix"
CANARY = "canary-of-the-environment"
pytestmark = pytest.mark.simulated_time


@pytest.fixture
async def broker(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BrokerHandlers]:
    """One broker, whose handlers are called without a socket."""
    async with started_cluster(request, tmp_path, brokers=1, has_shared_store=False) as cluster:
        yield cluster.handlers(1)


async def _set(broker: BrokerHandlers, kind: int, name: str, key: str, text: str) -> int:
    change = incremental_alter_configs.AlterableConfig(name=key, config_operation=0, value=text)
    resource = incremental_alter_configs.AlterConfigsResource(resource_type=kind, resource_name=name, configs=[change])
    request = incremental_alter_configs.IncrementalAlterConfigsRequest(resources=[resource])
    (answer,) = (await broker.call("incremental_alter_configs", 1, request)).responses
    assert CANARY not in f"{answer}"
    return int(answer.error_code)


async def _shown(broker: BrokerHandlers, kind: int, name: str) -> dict[str, Any]:
    resource = describe_configs.DescribeConfigsResource(resource_type=kind, resource_name=name)
    request = describe_configs.DescribeConfigsRequest(
        resources=[resource], include_synonyms=True, include_documentation=True
    )
    (answer,) = (await broker.call("describe_configs", 4, request)).results
    assert CANARY not in f"{[(each, each.synonyms) for each in answer.configs]}"
    return {each.name: each for each in answer.configs}


async def test_a_variable_that_a_request_sets_stays_text(
    broker: BrokerHandlers, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "secrets").write_text(f"k={CANARY}\n")
    (tmp_path / "k").write_text(CANARY)
    monkeypatch.setenv("CANARY", CANARY)
    variables = ("${env:CANARY}", f"${{file:{tmp_path}/secrets:k}}", f"${{directory:{tmp_path}:k}}")
    for text in variables:
        assert await _set(broker, BROKER, "1", PREFIX, text) == ErrorCode.NONE
        assert broker.services.config.share.dead_letter_topic_prefix == text
        assert (await _shown(broker, BROKER, "1"))[PREFIX].value == text
        assert await _set(broker, GROUP, "g", "errors.deadletterqueue.topic.name", text) == ErrorCode.NONE
        assert (await _shown(broker, GROUP, "g"))["errors.deadletterqueue.topic.name"].value == text
        assert await _set(broker, BROKER, "1", "log.retention.ms", text) == ErrorCode.INVALID_REQUEST
    await broker.restart()
    assert broker.services.config.share.dead_letter_topic_prefix == variables[-1]
    assert (await _shown(broker, BROKER, "1"))[PREFIX].value == variables[-1]


async def test_a_request_cannot_name_providers(broker: BrokerHandlers) -> None:
    for key, text in (
        ("config.providers", "file"),
        ("config.providers.file.class", "org.apache.kafka.common.config.provider.FileConfigProvider"),
        ("config.providers.file.param.allowed.paths", "/"),
    ):
        assert await _set(broker, BROKER, "1", key, text) == ErrorCode.INVALID_REQUEST
    assert not broker.services.cluster.current.broker_configs


async def test_what_the_operators_variables_stand_for_is_shown_to_no_client(broker: BrokerHandlers) -> None:
    given = {
        "ssl.keystore.location": SettingText(CANARY, "server.properties line 1", is_secret=True),
        "ssl.key.password": SettingText(CANARY, "server.properties line 2", is_secret=True),
        "log.dirs": SettingText(CANARY, "server.properties line 3", is_secret=True),
    }
    config = broker.services.config
    object.__setattr__(config, "given", {**config.given, **given})
    object.__setattr__(config, "tls", type(config.tls)(keystore_location=CANARY, key_password=CANARY))
    shown = await _shown(broker, BROKER, "1")
    for name in given:
        assert (shown[name].value, shown[name].is_sensitive, shown[name].synonyms) == (None, True, []), name
