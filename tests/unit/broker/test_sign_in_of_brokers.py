"""Brokers sign in to each other where their listener has SASL."""

from __future__ import annotations

from pathlib import Path

import pytest

from ottla.broker import config as configuration
from ottla.broker.remote.inter_broker_security import inter_broker_sasl
from ottla.client.sasl import Sasl
from ottla.core.settings import InvalidSettings
from ottla.testing.cluster import TestCluster
from ottla.testing.real_machine import RealMachines

SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"
JAAS = "listener.name.plaintext.scram-sha-512.sasl.jaas.config"
LISTENER = {"listener.security.protocol.map": "PLAINTEXT:SASL_PLAINTEXT"}


async def test_a_follower_fetches_from_its_leader_by_a_connection_that_is_signed_in(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text("broker=secret of brokers\n")
    options = {
        **LISTENER,
        JAAS: f'{SCRAM} required username="broker" password="secret of brokers";',
        "ottla.initial.users.file": str(users),
    }
    async with TestCluster(RealMachines(tmp_path / "data"), options=options) as cluster:
        await cluster.start(2)
        await cluster.create_topic("t", replication_factor=2)
        everywhere = {("t", 0): frozenset({1, 2})}
        await cluster.until_in_sync(everywhere, seconds=20)
        assert cluster.in_sync_replicas()["t", 0] == {1, 2}
        follower = next(
            node for node in (1, 2) if cluster.services(1).cluster.current.topics["t"].partitions[0].leader != node
        )
        await cluster.kill(follower)
        await cluster.restart(follower)
        await cluster.until_in_sync(everywhere, seconds=20)
        assert cluster.in_sync_replicas()["t", 0] == {1, 2}


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        ({}, JAAS),
        ({JAAS: f'{SCRAM} required username="broker";'}, JAAS),
        ({JAAS: "nonsense"}, JAAS),
        ({"sasl.mechanism.inter.broker.protocol": "OAUTHBEARER"}, "sasl.mechanism.inter.broker.protocol"),
    ],
)
def test_a_broker_that_could_not_sign_in_to_others_does_not_start(options: dict[str, str], wrong: str) -> None:
    given = {**LISTENER, "listeners": "PLAINTEXT://127.0.0.1:0", **options}
    config, _ = configuration.read(file=None, environment={}, options=given)
    with pytest.raises(InvalidSettings) as refused:
        inter_broker_sasl(config, "PLAINTEXT")
    assert refused.value.problems[0].key == wrong


def test_the_password_is_that_of_the_listener_and_the_mechanism() -> None:
    given = {**LISTENER, "listeners": "PLAINTEXT://127.0.0.1:0", JAAS: f'{SCRAM} required username="b" password="c";'}
    config, _ = configuration.read(file=None, environment={}, options=given)
    assert inter_broker_sasl(config, "PLAINTEXT") == Sasl("SCRAM-SHA-512", "b", "c")
    assert inter_broker_sasl(config, "SSL") is None
