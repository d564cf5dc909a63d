"""The functions that plant the faults of the table."""

from __future__ import annotations

import asyncio
import datetime as dt
import socket
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

from confluent_kafka import AcknowledgeType, ShareConsumer

from ottla.client.admin import AlterConfigOp, alter_configs
from ottla.client.consumer_protocol import write_assignment
from ottla.client.offsets import delete_records
from ottla.client.producer import Producer
from ottla.client.quota_admin import alter_quotas
from ottla.client.transactions import TransactionalProducer
from ottla.core.clock import SystemClock
from ottla.core.errors import KafkaError
from ottla.core.ids import TopicPartition
from ottla.core.settings import AlterConfigOpType, ConfigResourceType
from ottla.records.builder import NewRecord, build_batch
from ottla.testing.kit.assertions.producing import ProducerRecord
from ottla.wire.apis import ApiKey
from ottla.wire.generated.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from tests.diagnosis.planting import MINUTE_MS, Planted
from tests.support.certificates import Certificates

LONG = str((1 << 63) - 1)
DOWN = {"auto.leader.rebalance.enable": "false", "replica.lag.time.max.ms": "1000"}

# ---- Groups


async def records(p: Planted, topic: str, count: int = 100, *, age_ms: int = 0, partitions: int = 1) -> None:
    """Make a topic with records of an age."""
    await asyncio.to_thread(p.k.create_topic, topic, partitions)
    stamp = p.k.now_ms() - age_ms
    many = [ProducerRecord(b"%d" % n, partition=n % partitions, timestamp_ms=stamp) for n in range(count)]
    await asyncio.to_thread(p.k.produce_many, topic, many)


async def no_members(p: Planted) -> None:
    await records(p, "unread")
    await p.commit("unread", {("unread", 0): 10})


async def idle_members(p: Planted) -> None:
    await records(p, "narrow")
    first = await p.join("crowd", "narrow")
    second = asyncio.ensure_future(p.join("crowd", "narrow", client_id="second"))
    await asyncio.to_thread(p.k.wait_until, lambda: len(p.k.group("crowd").members()) == 2)
    again = await p.join("crowd", "narrow", member_id=first.member_id)
    other = await second
    owned = {first.member_id: write_assignment([TopicPartition("narrow", 0)]), other.member_id: write_assignment([])}
    await asyncio.gather(
        p.sync("crowd", again, owned if again.leader == again.member_id else None),
        p.sync("crowd", other, owned if other.leader == other.member_id else None),
    )


async def storm(p: Planted) -> None:
    await records(p, "stormy")
    for _ in range(6):
        joined = await p.join("storm", "stormy")
        await p.leave("storm", joined.member_id, "the consumer is being closed")


async def slow_consumer(p: Planted) -> None:
    await records(p, "slow")
    joined = await p.join("slow", "slow", client_id="sleepy")
    await p.sync("slow", joined, {joined.member_id: write_assignment([TopicPartition("slow", 0)])})
    await p.leave("slow", joined.member_id, "consumer poll timeout has expired.")


async def late_member(p: Planted) -> None:
    await records(p, "late")
    joined = await p.join("late", "late", client_id="tardy", rebalance_ms=300)
    await p.sync("late", joined, {joined.member_id: write_assignment([TopicPartition("late", 0)])})
    p.task(p.join("late", "late", client_id="prompt", rebalance_ms=300))  # for which the first one does not join again


async def duplicate_static_member(p: Planted) -> None:
    await records(p, "static")
    for client_id in ("pod-1", "pod-2", "pod-1", "pod-2"):
        joined = await p.join("static", "static", instance_id="worker", client_id=client_id)
        assert not joined.error_code


async def mixed_assignors(p: Planted) -> None:
    await records(p, "mixed")
    joined = await p.join("mixed", "mixed")
    await p.sync("mixed", joined, {joined.member_id: write_assignment([TopicPartition("mixed", 0)])})
    assert (await p.join("mixed", "mixed", protocol="cooperative-sticky", client_id="odd")).error_code


async def endless_rebalance(p: Planted) -> None:
    await records(p, "endless")
    joined = await p.join("endless", "endless", rebalance_ms=600_000)
    await p.sync("endless", joined, {joined.member_id: write_assignment([TopicPartition("endless", 0)])})
    p.task(p.join("endless", "endless", client_id="new", rebalance_ms=600_000))


async def trimmed(p: Planted) -> None:
    await records(p, "trimmed")
    await p.commit("trimmed", {("trimmed", 0): 10})
    await delete_records(p.cluster, {TopicPartition("trimmed", 0): 50})


async def beyond_end(p: Planted) -> None:
    await records(p, "short", 5)
    await p.commit("beyond", {("short", 0): 1_000})


async def short_retention(p: Planted) -> None:
    await asyncio.to_thread(p.k.create_topic, "brief", configs={"retention.ms": str(60 * MINUTE_MS)})
    await asyncio.to_thread(
        p.k.produce_many, "brief", [ProducerRecord(b"x", timestamp_ms=p.k.now_ms() - 55 * MINUTE_MS)]
    )
    await p.commit("brief", {("brief", 0): 0})


async def expired_offsets(p: Planted) -> None:
    await records(p, "old")
    await p.commit("old", {("old", 0): 10})
    await asyncio.to_thread(p.k.advance, days=8)


async def never_committed(_: Planted) -> None:
    return


async def lagging(p: Planted) -> None:
    await records(p, "lagging", age_ms=10 * MINUTE_MS, partitions=2)
    joined = await p.join("lagging", "lagging")
    both = [TopicPartition("lagging", 0), TopicPartition("lagging", 1)]
    await p.sync("lagging", joined, {joined.member_id: write_assignment(both)})


async def share_consumer(p: Planted, group: str, topic: str, *, reject: bool) -> None:
    """Take records of a share group, and reject them or say nothing of them."""
    values = {"bootstrap.servers": p.k.bootstrap, "group.id": group, "share.acknowledgement.mode": "explicit"}

    def consume() -> ShareConsumer:
        consumer = ShareConsumer(values)
        consumer.subscribe([topic])
        p.k.create_topic(topic)
        for _ in range(100):
            p.k.produce(topic, b"x")
            messages = [message for message in consumer.poll(0.2) if message.error() is None]
            if messages:
                break
        for message in messages if reject else ():
            consumer.acknowledge(message, AcknowledgeType.REJECT)
        if reject:
            consumer.commit_sync(10.0)
        return consumer

    consumer = await asyncio.to_thread(consume)
    p.stack.push_async_callback(asyncio.to_thread, consumer.close)


async def lock_timeout(p: Planted) -> None:
    await share_consumer(p, "lockers", "locked", reject=False)
    await asyncio.to_thread(p.k.advance, seconds=40)


async def dead_letters(p: Planted) -> None:
    set_topic = AlterConfigOp("errors.deadletterqueue.topic.name", AlterConfigOpType.SET, "dlq.poison")
    await alter_configs(p.cluster, ConfigResourceType.GROUP, "rejecters", [set_topic])
    await share_consumer(p, "rejecters", "poison", reject=True)


async def blocked_group(p: Planted) -> None:
    await open_transaction(p, "held", "holder-2")
    await p.commit("held", {("held", 0): 0})


# ---- Topics and clients


async def open_transaction(p: Planted, topic: str, transactional_id: str) -> None:
    await asyncio.to_thread(p.k.create_topic, topic)
    producer = TransactionalProducer(p.cluster, transactional_id, clock=SystemClock())
    await producer.init()
    producer.begin()
    await producer.send(topic, value=b"held")
    await producer.flush()
    await asyncio.to_thread(p.k.produce, topic, b"after")


async def stuck_transaction(p: Planted) -> None:
    await open_transaction(p, "stuck", "holder")


async def hot_partition(p: Planted) -> None:
    await asyncio.to_thread(p.k.create_topic, "hot", 4)
    many = [ProducerRecord(b"x", partition=0 if n % 20 else 1) for n in range(400)]
    await asyncio.to_thread(p.k.produce_many, "hot", many)


async def small_batches(p: Planted) -> None:
    await asyncio.to_thread(p.k.create_topic, "small")
    for _ in range(60):
        await asyncio.to_thread(p.k.produce, "small", b"x")


async def wrong_clock(p: Planted) -> None:
    await asyncio.to_thread(p.k.create_topic, "future", configs={"message.timestamp.after.max.ms": LONG})
    await asyncio.to_thread(p.k.produce, "future", b"x", timestamp_ms=p.k.now_ms() + 26 * 60 * MINUTE_MS)


async def lag_of_compaction(p: Planted) -> None:
    configs = {"cleanup.policy": "compact", "min.compaction.lag.ms": LONG}
    await asyncio.to_thread(p.k.create_topic, "compacted", configs=configs)
    await asyncio.to_thread(p.k.produce, "compacted", b"x", key=b"k")


async def no_cleaner(p: Planted) -> None:
    await asyncio.to_thread(p.k.create_topic, "uncleaned", configs={"cleanup.policy": "compact"})
    await asyncio.to_thread(p.k.produce, "uncleaned", b"x", key=b"k")


async def active_segment(p: Planted) -> None:
    await asyncio.to_thread(p.k.create_topic, "growing", configs={"cleanup.policy": "compact"})
    many = [ProducerRecord(b"x", key=b"k%d" % (n % 10)) for n in range(1_500)]
    await asyncio.to_thread(p.k.produce_many, "growing", many)


async def send(p: Planted, topic: str, value: bytes, client_id: str) -> None:
    """Produce a record that is refused."""
    producer = Producer(await p.client(client_id), clock=SystemClock())
    try:
        await (await producer.send(topic, value=value))
    except KafkaError:
        return
    finally:
        await producer.close(flush=False)


async def no_key(p: Planted) -> None:
    await asyncio.to_thread(p.k.create_topic, "keyed", configs={"cleanup.policy": "compact"})
    await send(p, "keyed", b"x", "keyless")


async def too_large(p: Planted) -> None:
    await asyncio.to_thread(p.k.create_topic, "letters", configs={"max.message.bytes": "1000"})
    await send(p, "letters", b"x" * 5_000, "fat")


async def refused_client(p: Planted) -> None:
    await asyncio.to_thread(p.k.create_topic, "notes", configs={"max.message.bytes": "1000"})
    await send(p, "notes", b"x" * 5_000, "heavy")


async def produce_raw(p: Planted, topic: str, batch: bytes, *, at_most: int | None = None) -> None:
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=batch)])
    info = await p.cluster.topic(topic, fresh=True)
    data.topic_id = info.topic_id
    ask = ProduceRequest(acks=-1, timeout_ms=1_000, topic_data=[data])
    await p.cluster.request(info.partitions[0].leader_id, ApiKey.PRODUCE, ask, at_most=at_most)


async def wrong_codec(p: Planted) -> None:
    await asyncio.to_thread(p.k.create_topic, "codec")
    batch = bytearray(build_batch([NewRecord(value=b"x")]))
    batch[22] |= 4  # zstd, in the attributes, whose checksum is not looked at first
    await produce_raw(p, "codec", bytes(batch), at_most=6)


async def fenced_producer(p: Planted) -> None:
    await asyncio.to_thread(p.k.create_topic, "fenced")
    older, newer = (TransactionalProducer(p.cluster, "twin", clock=SystemClock()) for _ in range(2))
    await older.init()
    older.begin()
    await older.send("fenced", value=b"1")
    await older.flush()
    await newer.init()
    try:
        await (await older.send("fenced", value=b"2"))
    except KafkaError:
        return


async def idle_topic(p: Planted) -> None:
    await records(p, "idle", 3, age_ms=9 * 24 * 60 * MINUTE_MS)


async def empty_topic(p: Planted) -> None:
    await asyncio.to_thread(p.k.create_topic, "empty")


async def quota(p: Planted) -> None:
    await asyncio.to_thread(p.k.create_topic, "loud")
    await alter_quotas(p.cluster, {"client-id": "loud"}, values={"producer_byte_rate": 100.0})
    producer = Producer(await p.client("loud"), clock=SystemClock())
    for _ in range(3):
        await (await producer.send("loud", value=b"x" * 2_000))
    await producer.close()


# ---- Brokers


async def broker_down(p: Planted) -> None:
    if 3 in p.k.brokers:
        for topic, factor, configs in (
            ("copied", 3, {}),
            ("strict", 3, {"min.insync.replicas": "3"}),
            ("single", 1, {}),
        ):
            await asyncio.to_thread(p.k.create_topic, topic, 3, replication_factor=factor, configs=configs)
        await asyncio.to_thread(p.k.down, 3)


async def one_replica(p: Planted) -> None:
    await asyncio.to_thread(p.k.create_topic, "lonely", 1, replication_factor=1)
    await asyncio.to_thread(p.k.produce, "lonely", b"x")


async def restarted_broker(p: Planted) -> None:
    await asyncio.to_thread(p.k.create_topic, "moved", 6, replication_factor=3)
    await asyncio.to_thread(p.k.down, 1)
    await asyncio.to_thread(p.k.up, 1)


async def unclean_election(p: Planted) -> None:
    configs = {"unclean.leader.election.enable": "true"}
    await asyncio.to_thread(p.k.create_topic, "unclean", 6, replication_factor=2, configs=configs)
    await asyncio.to_thread(p.k.down, 3)
    many = [ProducerRecord(b"x", partition=n) for n in range(6)]
    await asyncio.to_thread(p.k.produce_many, "unclean", many)

    async def die(cluster: object) -> None:
        await cluster.kill(2)  # type: ignore[attr-defined]
        await cluster.restart(3)  # type: ignore[attr-defined]

    await p.on_brokers(die)


async def nothing(_: Planted) -> None:
    return


async def full_disk(p: Planted) -> None:
    await asyncio.to_thread(p.k.create_topic, "filled")
    p.stack.callback(p.k.disk.full().remove)
    await send_refused(p, "filled")


async def send_refused(p: Planted, topic: str) -> None:
    try:
        await asyncio.to_thread(p.k.produce, topic, b"x" * 1_000)
    except Exception:  # noqa: BLE001 - whatever the disk has refused
        return


async def failed_disk(p: Planted) -> None:
    await asyncio.to_thread(p.k.create_topic, "failed", 1, replication_factor=2)
    await asyncio.to_thread(lambda: p.k.disk.fail("sync", broker=2))
    leader = (await p.cluster.topic("failed", fresh=True)).partitions[0].leader_id
    if leader != 2:
        await asyncio.to_thread(p.k.move_leader, "failed", to=2)
    await send(p, "failed", b"x", "writer")


async def lost_session(p: Planted) -> None:
    await p.on_brokers(lambda cluster: cluster.expire(2))


async def slow_fsync(p: Planted) -> None:
    await asyncio.to_thread(p.k.create_topic, "fsync")
    fault = p.k.disk.slow(20)
    await asyncio.to_thread(p.k.produce, "fsync", b"x")
    fault.remove()


async def slow_request(p: Planted) -> None:
    await p.cluster.refresh(None)


async def connection_limit(p: Planted) -> None:
    host, _, port = p.k.bootstrap.rpartition(":")
    opened = [await asyncio.open_connection(host, int(port)) for _ in range(12)]
    ends = [asyncio.ensure_future(reader.read()) for reader, _ in opened]
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    for _, writer in opened:
        writer.close()


async def http_client(p: Planted) -> None:
    host, _, port = p.k.bootstrap.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(b"GET / HTTP/1.1\r\n\r\n")
    await reader.read()
    writer.close()


# ---- Connections


async def unknown_host(p: Planted) -> None:
    p.target = "no-such-host.invalid:9092"


async def closed_port(p: Planted) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        p.target = f"127.0.0.1:{taken.getsockname()[1]}"


async def http_port(p: Planted) -> None:
    server = HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    p.stack.callback(server.server_close)
    p.stack.callback(server.shutdown)
    p.target = f"127.0.0.1:{server.server_port}"


async def tls_client(p: Planted) -> None:
    p.settings = {"security.protocol": "SSL"}


async def sasl_client(p: Planted, **settings: str) -> None:
    user = {"sasl.mechanism": "PLAIN", "sasl.username": "alice", "sasl.password": "plain secret", **settings}
    p.settings = {"security.protocol": "SASL_PLAINTEXT", **user}


async def wrong_password(p: Planted) -> None:
    await sasl_client(p, **{"sasl.password": "guess"})


async def wrong_mechanism(p: Planted) -> None:
    await sasl_client(p, **{"sasl.mechanism": "SCRAM-SHA-512"})


async def no_sign_in(p: Planted) -> None:
    p.settings = {}


async def missing_acl(p: Planted) -> None:
    await sasl_client(p)
    await asyncio.to_thread(p.k.create_topic, "secret")


AUTHORITIES: dict[str, str] = {}
"""The file of the authority by the name of the certificate, once brokers have it."""

TLS, OTHER, SOON = (
    {"listener.security.protocol.map": "PLAINTEXT:SSL", "ssl.keystore.type": "PEM", "ssl.keystore.location": name}
    for name in ("good", "other", "soon")
)
"""Settings of brokers with a certificate, in place of whose file is its name: see `with_certificate`."""


def with_certificate(options: Mapping[str, str], directory: Path) -> Mapping[str, str]:
    """Issue the certificate that settings name, and return them with its file."""
    name = options.get("ssl.keystore.location", "")
    if not name:
        return options
    made = Certificates(directory)
    soon = dt.datetime.fromtimestamp(SystemClock().wall_ms() / 1000 + 5.5 * 86_400, dt.UTC)
    hosts = ("kafka.example",) if name == "other" else ()
    store = made.store(f"{name}.pem", made.issue(*hosts, not_after=soon if name == "soon" else None))
    AUTHORITIES[name] = str(made.trusted)
    return {**options, "ssl.keystore.location": str(store)}


async def plaintext_client(p: Planted) -> None:
    p.settings = {}


async def untrusting_client(p: Planted) -> None:
    p.settings = {"security.protocol": "SSL"}


async def trusting_client(p: Planted) -> None:
    p.settings = {"security.protocol": "SSL", "ssl.truststore.location": AUTHORITIES["soon"]}


async def other_name(p: Planted) -> None:
    p.settings = {"security.protocol": "SSL", "ssl.truststore.location": AUTHORITIES["other"]}
