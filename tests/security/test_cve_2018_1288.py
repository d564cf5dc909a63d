"""CVE-2018-1288: a client that poses as a replica must not read what it may not, nor be taken for a follower."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from ottla.broker.requests.registry import APIS
from ottla.core.error_codes import ErrorCode
from ottla.testing.kit.kafka import Kafka, kafka
from ottla.wire.apis import ApiKey
from tests.support.acl_scene import prepare
from tests.support.acl_users import users
from tests.support.authorized_broker import SUPER_USER, authorize, authorizer_of
from tests.support.requests_of_users import NODE_ID, SETTINGS, TOPIC
from tests.support.wire_client import Answer, Wire

ROW = APIS[ApiKey.FETCH]
FOLLOWER = 2
MAY_READ, MAY_ACT_AS_BROKER = "only-TOPIC-READ", "only-CLUSTER-CLUSTER_ACTION"
DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


class Broker:
    """A broker with a topic that has a record, and its clients."""

    def __init__(self, kit: Kafka) -> None:
        self._port = int(kit.bootstrap.rpartition(":")[2])
        self.services: Any = kit._running.brokers[NODE_ID]._services
        authorize(kit._running.brokers[NODE_ID], authorizer_of(acl for user in users() for acl in user.acls))
        with Wire(self._port, client_id=SUPER_USER) as wire:
            self._topic_id = prepare(wire)

    def fetch(self, user: str, version: int, *, replica_id: int, session_epoch: int = -1, many: int = 1) -> Answer:
        """Fetch from the start; `many`: partitions named, of which one exists."""
        with Wire(self._port, client_id=user) as wire:
            return self.fetch_by(wire, version, replica_id=replica_id, session_epoch=session_epoch, many=many)

    def fetch_in_session(self, user: str, version: int) -> list[Answer]:
        """Fetch many partitions as a consumer, and then as a replica what the session has."""
        with Wire(self._port, client_id=user) as wire:
            first = self.fetch_by(wire, version, replica_id=-1, session_epoch=0, many=2000)
            session: dict[str, int] = {"session_id": first["session_id"], "session_epoch": 1}
            return [first, self.fetch_by(wire, version, replica_id=FOLLOWER, many=0, **session)]

    def fetch_by(
        self, wire: Wire, version: int, *, replica_id: int, session_id: int = 0, session_epoch: int = -1, many: int = 1
    ) -> Answer:
        """Fetch from the start."""
        partitions = [
            {
                "partition": index,
                "current_leader_epoch": -1,
                "fetch_offset": 0,
                "last_fetched_epoch": -1,
                "log_start_offset": -1,
                "partition_max_bytes": 1000,
            }
            for index in range(many)
        ]
        topic = {"topic": TOPIC, "topic_id": self._topic_id, "partitions": partitions}
        return wire.call(
            "fetch",
            version,
            replica_id=replica_id,
            replica_state={"replica_id": replica_id, "replica_epoch": -1},
            max_wait=0,
            min_bytes=1,
            max_bytes=1000,
            session_id=session_id,
            session_epoch=session_epoch,
            topics=[topic] if partitions else [],
        )


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with kafka(options={**SETTINGS, "max.incremental.fetch.session.cache.slots": "100"}) as kit:
        yield Broker(kit)


def partitions_of(answer: Answer) -> list[Answer]:
    """All partitions of a response."""
    return [partition for topic in answer["responses"] for partition in topic["partitions"]]


each_version = pytest.mark.parametrize("version", range(ROW.min_version, ROW.max_version + 1))


@each_version
@pytest.mark.parametrize("many", [1, 2000], ids=["one partition", "many partitions"])
@pytest.mark.parametrize("session_epoch", [-1, 0], ids=["without session", "with session"])
def test_a_client_that_may_read_a_topic_may_not_fetch_it_as_a_replica(
    broker: Broker, version: int, many: int, session_epoch: int
) -> None:
    answer = broker.fetch(MAY_READ, version, replica_id=FOLLOWER, session_epoch=session_epoch, many=many)

    partitions = partitions_of(answer)
    assert len(partitions) == many
    assert {partition["error_code"] for partition in partitions} == {DENIED}
    assert not any(partition["records"] for partition in partitions)
    assert broker.services.replica_sessions is None, "no session of a follower was made"


@pytest.mark.parametrize("version", range(7, ROW.max_version + 1))
def test_nor_what_it_has_in_a_session_as_a_consumer(broker: Broker, version: int) -> None:
    as_consumer, as_replica = broker.fetch_in_session(MAY_READ, version)

    assert any(partition["records"] for partition in partitions_of(as_consumer))
    partitions = partitions_of(as_replica)
    assert len(partitions) == 2000
    assert {partition["error_code"] for partition in partitions} == {DENIED}
    assert not any(partition["records"] for partition in partitions)


@each_version
def test_a_client_that_may_read_a_topic_fetches_it_as_a_consumer(broker: Broker, version: int) -> None:
    (partition,) = partitions_of(broker.fetch(MAY_READ, version, replica_id=-1))
    assert partition["error_code"] == ErrorCode.NONE and partition["records"]


@each_version
def test_a_broker_may_not_fetch_a_topic_as_a_consumer_that_it_may_not_read(broker: Broker, version: int) -> None:
    (partition,) = partitions_of(broker.fetch(MAY_ACT_AS_BROKER, version, replica_id=-1))
    assert partition["error_code"] == DENIED and not partition["records"]


def test_a_broker_is_served_as_a_replica(broker: Broker) -> None:
    answer = broker.fetch(MAY_ACT_AS_BROKER, ROW.max_version, replica_id=FOLLOWER)
    assert DENIED not in {partition["error_code"] for partition in partitions_of(answer)}
