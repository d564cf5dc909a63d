"""CVE-2026-41727: headers of a record that look like those of a retry steered how often it was delivered.

Here a share group counts deliveries in its own state. The headers of dead letters (KIP-1191) are the broker's alone.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ottla.core.errors import ErrorCode
from ottla.records.builder import NewRecord
from ottla.testing.cluster import BrokerHandlers
from tests.support.clusters import started_cluster
from tests.support.waiting import until
from tests.unit.broker.test_dead_letters import AT_MS, CREATING, GROUP, QUEUE, alter, create, named, started_team
from tests.unit.broker.test_share_fetch import ACCEPT, REJECT, RELEASE, acquired

pytestmark = [pytest.mark.simulated_time, pytest.mark.options({**CREATING, "group.share.delivery.count.limit": "2"})]
FORGED = tuple(
    (f"__dlq.errors.{name}", value)
    for name, value in (
        ("topic", b"other"),
        ("partition", b"9"),
        ("offset", b"77"),
        ("group", b"other"),
        ("delivery.count", b"99"),
        ("message", b"forged"),
    )
)
COPYING = {"copy.record.enable": "true"}


@pytest.fixture
async def broker(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[BrokerHandlers]:
    """One broker, whose handlers are called without a socket."""
    async with started_cluster(request, tmp_path, brokers=1, has_shared_store=False) as cluster:
        yield cluster.handlers(1)


async def test_forged_headers_do_not_count_as_deliveries(broker: BrokerHandlers) -> None:
    team = await started_team(broker, COPYING)
    team.produce(NewRecord(b"k", b"v", AT_MS, FORGED))
    ada = team.client()
    assert acquired(await ada.fetch()) == [(0, 0, 1)]
    assert await ada.acknowledge(0, 0, RELEASE) == ErrorCode.NONE
    assert acquired(await ada.fetch()) == [(0, 0, 2)], "the record is delivered as often as any"
    assert await ada.acknowledge(0, 0, ACCEPT) == ErrorCode.NONE
    assert QUEUE not in team.services.cluster.current.topics


@pytest.mark.parametrize("settings", [{}, COPYING], ids=["without copies", "with copies"])
async def test_a_dead_letter_has_each_header_once_and_from_the_broker(
    broker: BrokerHandlers, settings: dict[str, str]
) -> None:
    team = await started_team(broker, settings)
    team.produce(NewRecord(b"k", b"v", AT_MS, FORGED))
    ada = team.client()
    assert acquired(await ada.fetch()) == [(0, 0, 1)]
    assert await ada.acknowledge(0, 0, REJECT) == ErrorCode.NONE
    await until(team.is_done(1))
    (letter,) = team.letters()
    assert len(letter.headers) == len(FORGED)
    found = named(letter)
    assert (found["topic"], found["partition"], found["offset"]) == ("t", "2", "0")
    assert (found["group"], found["delivery.count"]) == ("team", "1")
    assert found["message"] != "forged"


async def test_a_topic_gets_no_dead_letters_that_has_not_agreed(broker: BrokerHandlers) -> None:
    team = await started_team(broker, {})
    await create(team.server, "dlq.private", 1)
    await team.configure({"topic.name": "dlq.private"})
    team.produce(NewRecord(b"k", b"v", AT_MS, FORGED))
    ada = team.client()
    await ada.fetch()
    assert await ada.acknowledge(0, 0, REJECT) == ErrorCode.NONE
    await until(team.is_done(1))
    assert not team.letters("dlq.private")


async def test_a_queue_is_never_an_internal_topic(broker: BrokerHandlers) -> None:
    team = await started_team(broker, {})
    for name in ("__consumer_offsets", "__share_group_state", "__dlq"):
        changed = {"errors.deadletterqueue.topic.name": name}
        assert await alter(team.server, GROUP, "team", changed) == ErrorCode.INVALID_CONFIG
