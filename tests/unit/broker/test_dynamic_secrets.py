"""Secrets that AlterConfigs sets: encrypted in the metadata store, decrypted in memory, shown to no one."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from ottla.broker.dynamic_secrets import NOT_CONFIGURED
from ottla.client.connection import Connection
from ottla.core.errors import ErrorCode
from ottla.metadata_store import znodes
from ottla.metadata_store.store import Create
from ottla.security.password_encoder import PasswordEncoder, is_encoded
from ottla.testing.cluster import TestCluster
from ottla.wire.apis import ApiKey
from ottla.wire.generated import alter_configs, describe_configs, incremental_alter_configs

pytestmark = pytest.mark.simulated_time

BROKER = 4
SECRET, CANARY = "canary-encoder-secret", "canary-key-password"
NAME = "custom.password"
SETTINGS = (NAME, "custom.jaas.config", "listener.name.other.secret")
"""Of no declared setting: their names say that they are secrets. Those of TLS need a listener with TLS."""
encodes = pytest.mark.options({"password.encoder.secret": SECRET, "password.encoder.iterations": "100000"})


async def _set(connection: Connection, name: str, *changes: tuple[str, str | None], op: int = 0) -> tuple[int, str]:
    configs = [
        incremental_alter_configs.AlterableConfig(name=key, config_operation=op, value=value) for key, value in changes
    ]
    resource = incremental_alter_configs.AlterConfigsResource(resource_type=BROKER, resource_name=name, configs=configs)
    request = incremental_alter_configs.IncrementalAlterConfigsRequest(resources=[resource])
    answer = await connection.request(ApiKey.INCREMENTAL_ALTER_CONFIGS, request, timeout_s=20)
    return answer.responses[0].error_code, answer.responses[0].error_message or ""


async def _described(connection: Connection, name: str) -> list[Any]:
    resource = describe_configs.DescribeConfigsResource(resource_type=BROKER, resource_name=name)
    request = describe_configs.DescribeConfigsRequest(
        resources=[resource], include_synonyms=True, include_documentation=True
    )
    answer = await connection.request(ApiKey.DESCRIBE_CONFIGS, request, timeout_s=20)
    return list(answer.results[0].configs)


def _stored(cluster: TestCluster, node_id: int) -> dict[str, str]:
    return dict(cluster.services(cluster.controller).cluster.current.broker_configs[str(node_id)].values)


def _other_than_the_controller(cluster: TestCluster) -> int:
    return next(node_id for node_id in cluster.brokers if node_id != cluster.controller)


@encodes
async def test_a_secret_is_encrypted_by_its_broker_and_used_by_it_alone(
    cluster: TestCluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    node_id = _other_than_the_controller(cluster)
    services = cluster.services(node_id)
    connection = await services.nodes.connect_to(node_id)
    assert await _set(connection, str(node_id), *((key, CANARY) for key in SETTINGS)) == (ErrorCode.NONE, "")
    stored = _stored(cluster, node_id)
    assert all(is_encoded(stored[key]) for key in SETTINGS) and CANARY not in str(stored)
    assert {PasswordEncoder(SECRET).decode(stored[key]) for key in SETTINGS} == {CANARY}
    await cluster.until(lambda: services.config.dynamic.get(NAME) == CANARY)
    assert [services.config.dynamic.get(key) for key in SETTINGS] == [CANARY] * 3
    for other in cluster.brokers.keys() - {node_id}:
        assert NAME not in cluster.services(other).config.dynamic
    for entry in await _described(connection, str(node_id)):
        assert CANARY not in f"{entry}"
        assert entry.name not in SETTINGS or (entry.value, entry.is_sensitive) == (None, True)
    assert CANARY not in caplog.text and CANARY not in repr(services.config)
    await cluster.stop(node_id)
    await cluster.restart(node_id)
    assert cluster.services(node_id).config.dynamic.get(NAME) == CANARY


@encodes
async def test_both_requests_that_alter_settings_encrypt_what_they_store(cluster: TestCluster) -> None:
    node_id = cluster.controller
    connection = await cluster.services(node_id).nodes.connect_to(node_id)
    config = alter_configs.AlterableConfig(name=NAME, value=CANARY)
    resource = alter_configs.AlterConfigsResource(resource_type=BROKER, resource_name=str(node_id), configs=[config])
    request = alter_configs.AlterConfigsRequest(resources=[resource])
    answer = await connection.request(ApiKey.ALTER_CONFIGS, request, timeout_s=20)
    assert answer.responses[0].error_code == ErrorCode.NONE
    assert is_encoded(_stored(cluster, node_id)[NAME])
    assert cluster.services(node_id).config.dynamic.get(NAME) == CANARY
    assert await _set(connection, str(node_id), (NAME, None), op=1) == (ErrorCode.NONE, "")
    assert NAME not in cluster.services(node_id).config.dynamic


async def test_without_a_secret_of_the_encoder_a_secret_is_refused_and_not_even_forwarded(cluster: TestCluster) -> None:
    for node_id in (cluster.controller, _other_than_the_controller(cluster)):
        connection = await cluster.services(node_id).nodes.connect_to(node_id)
        code, message = await _set(connection, str(node_id), (NAME, CANARY))
        assert (code, message) == (ErrorCode.INVALID_REQUEST, f"{NAME}: {NOT_CONFIGURED}")
    assert not cluster.services(cluster.controller).cluster.current.broker_configs


@encodes
async def test_a_secret_is_a_setting_of_one_broker(cluster: TestCluster) -> None:
    for node_id in (cluster.controller, _other_than_the_controller(cluster)):
        connection = await cluster.services(node_id).nodes.connect_to(node_id)
        code, message = await _set(connection, "", (NAME, CANARY))
        assert code == ErrorCode.INVALID_REQUEST
        assert message == f"Cannot update these configs at default cluster level, broker id must be specified: [{NAME}]"


@encodes
async def test_what_a_client_sends_in_the_form_of_an_encrypted_value_is_a_secret_too(cluster: TestCluster) -> None:
    node_id = cluster.controller
    connection = await cluster.services(node_id).nodes.connect_to(node_id)
    text = PasswordEncoder(SECRET, iterations=100_000).encode("chosen by the client")
    await _set(connection, str(node_id), (NAME, text))
    assert _stored(cluster, node_id)[NAME] != text
    assert cluster.services(node_id).config.dynamic.get(NAME) == text


@encodes
@pytest.mark.brokers(1)
async def test_after_a_change_of_the_encoders_secret_all_is_encrypted_again_with_the_new_one(
    cluster: TestCluster, caplog: pytest.LogCaptureFixture
) -> None:
    connection = await cluster.services(1).nodes.connect_to(1)
    await _set(connection, "1", *((key, CANARY) for key in SETTINGS), ("log.retention.ms", "7"))
    machine = cluster.machine(1)
    machine.options = {
        **machine.options,
        "password.encoder.secret": "canary-new-secret",
        "password.encoder.old.secret": SECRET,
    }
    before = _stored(cluster, 1)
    await cluster.stop(1)
    await cluster.restart(1)
    await cluster.until(lambda: _stored(cluster, 1)[NAME] != before[NAME])  # a watch reports it
    stored = _stored(cluster, 1)
    assert {PasswordEncoder("canary-new-secret").decode(stored[key]) for key in SETTINGS} == {CANARY}
    assert stored["log.retention.ms"] == "7"
    machine.options = {**machine.options, "password.encoder.old.secret": ""}
    await cluster.stop(1)
    await cluster.restart(1)
    assert cluster.services(1).config.dynamic.get(NAME) == CANARY and _stored(cluster, 1) == stored
    machine.options = {**machine.options, "password.encoder.secret": "lost"}
    await cluster.stop(1)
    await cluster.restart(1)
    assert NAME not in cluster.services(1).config.dynamic and _stored(cluster, 1) == stored
    assert f"{NAME} cannot be decrypted" in caplog.text and "canary" not in caplog.text


@encodes
@pytest.mark.brokers(1)
async def test_a_value_that_was_encrypted_by_kafka_is_used(cluster: TestCluster) -> None:
    text = PasswordEncoder(SECRET, iterations=4096, key_bits=128).encode("of Kafka")  # its number of iterations
    controller = cluster.services(1).controller
    path = znodes.config_path(znodes.BROKERS_KIND, "1")
    await controller._store.commit([Create(path, znodes.encode_config({NAME: text}))])
    await cluster.until(lambda: cluster.services(1).config.dynamic.get(NAME) == "of Kafka")
