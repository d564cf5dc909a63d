"""What the console changes: a preview first, then the change; and what it refuses."""

import html
import json
import re
from collections.abc import Iterator

import pytest

from ottla.client import groups
from ottla.client.cluster import Cluster
from ottla.client.transactions import TransactionalProducer
from ottla.core.clock import SystemClock
from ottla.core.ids import TopicPartition
from ottla.testing import Kafka, kafka
from tests.support.console import browsing, connect_to, options_for


@pytest.fixture(scope="module")
def brokers() -> Iterator[Kafka]:
    with kafka(topics={"orders": 2}, brokers=2) as k:
        for number in range(10):
            k.produce("orders", str(number), partition=0)
        yield k


async def committed(k: Kafka, group: str) -> dict[TopicPartition, int]:
    async with await connect_to(k.bootstrap)() as cluster:
        return {tp: at.offset for tp, at in (await groups.committed_offsets(cluster, group)).items()}


async def commit(k: Kafka, group: str, offset: int) -> None:
    async with await connect_to(k.bootstrap)() as cluster:
        await groups.commit_offsets(cluster, group, {TopicPartition("orders", 0): offset})


async def test_a_topic_is_created_extended_changed_and_deleted(brokers: Kafka) -> None:
    async with browsing(options_for(brokers.bootstrap)) as browser:
        page = await browser.carry_out("/topics", {"name": "made", "partitions": "2", "replicas": ""})
        assert "Created topic made." in page
        await browser.carry_out("/topics/made/partitions", {"partitions": "3"})
        assert len(brokers.topic("made").partitions()) == 3
        page = await browser.carry_out(
            "/topics/made/settings", {"name": "retention.ms", "value": "7d", "operation": "set"}
        )
        assert "604800000" in page
        wrong = await browser.post("/topics/made/delete", {"step": "apply", "confirmation": "other"}, 400)
        assert "type the name of the topic" in wrong
        assert "made" in brokers.topics()
        await browser.carry_out("/topics/made/delete", {}, confirmation="made")
        assert "made" not in brokers.topics()


async def test_a_preview_changes_nothing(brokers: Kafka) -> None:
    await commit(brokers, "previewed", 3)
    async with browsing(options_for(brokers.bootstrap)) as browser:
        page = await browser.post("/groups/previewed/reset", {"to": "start", "topic": "orders", "partition": ""})
        assert "-3" in page
        assert "ottla group seek previewed --to start --topic orders" in page
        await browser.post("/topics", {"name": "previewed"})
        assert "previewed" not in brokers.topics()
    assert (await committed(brokers, "previewed"))[TopicPartition("orders", 0)] == 3


async def test_the_offsets_of_a_group_are_reset_and_the_group_is_deleted(brokers: Kafka) -> None:
    await commit(brokers, "billing", 3)
    async with browsing(options_for(brokers.bootstrap)) as browser:
        await browser.carry_out("/groups/billing/reset", {"to": "-2", "topic": "", "partition": ""})
        assert (await committed(brokers, "billing"))[TopicPartition("orders", 0)] == 8
        await browser.carry_out("/groups/billing/delete", {})
        assert "billing" not in brokers.groups()


async def test_a_record_is_written_with_key_headers_and_bytes(brokers: Kafka) -> None:
    brokers.create_topic("written")
    fields = {"key": "k", "value": "base64:/w==", "headers": "trace: 1\n", "partition": ""}
    async with browsing(options_for(brokers.bootstrap)) as browser:
        await browser.carry_out("/topics/written/produce", fields)
        await browser.carry_out("/topics/written/produce", {"null_key": "1", "null_value": "1"})
    first, second = brokers.topic("written").records()
    assert (first.key, first.value, list(first.headers)) == (b"k", b"\xff", [("trace", b"1")])
    assert (second.key, second.value) == (None, None)


async def test_a_transaction_that_is_open_is_shown_and_aborted(brokers: Kafka) -> None:
    async with await connect_to(brokers.bootstrap)() as cluster, browsing(options_for(brokers.bootstrap)) as browser:
        await begin_transaction(cluster, "pay")
        page = await browser.get("/transactions?topic=orders")
        assert "Readers of committed records wait" in page
        assert "/transactions/pay" in page
        page = await browser.carry_out("/transactions/pay/abort", {})
        assert "Aborted the transaction of pay" in page
        assert "no open transaction" in await browser.post("/transactions/pay/abort", {}, 400)


async def begin_transaction(cluster: Cluster, name: str) -> None:
    producer = TransactionalProducer(cluster, name, clock=SystemClock())
    await producer.init()
    producer.begin()
    await producer.send("orders", value=b"open", partition=0)
    await producer.flush()


async def test_quotas_and_users_are_set_and_removed(brokers: Kafka) -> None:
    async with browsing(options_for(brokers.bootstrap)) as browser:
        fields = {"user": "alice", "client-id": "", "ip": "", "quota": "producer_byte_rate", "value": "1048576"}
        assert "1.0 MB/s" in await browser.carry_out("/quotas", fields)
        page = await browser.carry_out("/quotas", {**fields, "value": ""})
        assert "There are no quotas" in page
        page = await browser.carry_out("/users", {"name": "alice"}, password="correct horse")
        assert "SCRAM-SHA-512" in page
        page = await browser.carry_out("/users/delete", {"name": "alice"})
        assert "There are no SCRAM users" in page


async def test_a_password_is_never_written_into_a_page(brokers: Kafka) -> None:
    async with browsing(options_for(brokers.bootstrap)) as browser:
        for status, fields in ((400, {"name": "bob", "password": "canary-secret"}), (200, {"name": "bob"})):
            page = await browser.post("/users", fields, status)
            assert "canary-secret" not in page


async def test_replicas_are_moved(brokers: Kafka) -> None:
    async with browsing(options_for(brokers.bootstrap)) as browser:
        page = await browser.post("/reassignments", {"topic": "orders", "partition": "1", "replicas": "2"})
        line = html.unescape(re.findall(r"<code>(echo .*?)</code>", page)[0])
        assert json.loads(line.split("'")[1])["partitions"] == [{"topic": "orders", "partition": 1, "replicas": [2]}]
        await browser.carry_out("/reassignments", {"topic": "orders", "partition": "1", "replicas": "2"})
        assert brokers.wait_until(lambda: brokers.topic("orders").partitions()[1].replicas == (2,))
        wrong = {"topic": "orders", "partition": "1", "replicas": "77"}
        assert "write ids of brokers" in await browser.post("/reassignments", wrong, 400)


ACTIONS = (
    "/topics",
    "/topics/orders/delete",
    "/topics/orders/partitions",
    "/topics/orders/settings",
    "/topics/orders/produce",
    "/groups/g/reset",
    "/groups/g/delete",
    "/transactions/t/abort",
    "/acls",
    "/acls/delete",
    "/users",
    "/users/delete",
    "/quotas",
    "/reassignments",
)


@pytest.mark.parametrize("path", ACTIONS)
async def test_an_action_needs_the_token_of_its_session(brokers: Kafka, path: str) -> None:
    async with browsing(options_for(brokers.bootstrap)) as browser:
        await browser.get("/topics")
        for token in ({}, {"csrf": "wrong"}):
            response = await browser.client.post(path, data={**token, "step": "apply"})
            assert response.status_code == 403
            assert "the form is not of this session" in response.text


@pytest.mark.parametrize("path", ACTIONS)
async def test_a_read_only_console_changes_nothing_and_shows_no_buttons(brokers: Kafka, path: str) -> None:
    async with browsing(options_for(brokers.bootstrap, may_change=False)) as browser:
        session = await browser.console.sessions.begin()
        browser.client.cookies.set("ottla_console", session.token)
        response = await browser.client.post(path, data={"csrf": session.csrf, "step": "apply", "name": "x"})
        assert response.status_code == 403
        assert "read-only" in response.text
        assert '<form method="post"' not in await browser.get("/topics/orders")
