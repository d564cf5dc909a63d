"""Runs members of one group until standard input is closed, and writes what they own and what is acknowledged.

Each line of the log is an event: monotonic nanoseconds (of the machine, so the same in all processes), member, event,
generation (-1 where the client does not show it), partition, offset.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import threading
import time
from typing import IO

from confluent_kafka import Consumer, KafkaException, TopicPartition

from ottla.client.addresses import parse_addresses
from ottla.client.cluster import Cluster
from ottla.client.group_member import GroupMember
from ottla.client.groups import committed_offsets
from ottla.core import ids

COMMIT_EVERY_S = 0.2


class EventLog:
    """Appends events; one write for each line, so that a kill leaves whole lines."""

    def __init__(self, file: IO[str]) -> None:
        self._file, self._lock = file, threading.Lock()

    def write(self, member: str, event: str, partition: int, *, generation: int = -1, offset: int = -1) -> None:
        with self._lock:
            print(time.monotonic_ns(), member, event, generation, partition, offset, file=self._file, flush=True)


def librdkafka_member(name: str, asked: argparse.Namespace, log: EventLog, stop: threading.Event) -> None:
    """A consumer of librdkafka, of either protocol: commits the next offset of its partitions again and again."""
    offsets: dict[int, int] = {}

    def assigned(consumer: Consumer, partitions: list[TopicPartition]) -> None:
        for found in consumer.committed(partitions, timeout=30):
            offsets[found.partition] = max(found.offset, 0)
            log.write(name, "assigned", found.partition, offset=offsets[found.partition])

    def revoked(_: Consumer, partitions: list[TopicPartition]) -> None:
        for each in partitions:
            log.write(name, "revoked", each.partition)
            offsets.pop(each.partition, None)

    settings: dict[str, str | int | bool] = {
        "bootstrap.servers": asked.bootstrap,
        "group.id": asked.group,
        "client.id": name,
        "enable.auto.commit": False,
    }
    if asked.client == "kip848":
        settings |= {"group.protocol": "consumer"}
    else:
        settings |= {
            "session.timeout.ms": asked.session_ms,
            "heartbeat.interval.ms": 500,
            "partition.assignment.strategy": "range",
        }
    consumer = Consumer(settings)
    consumer.subscribe([asked.topic], on_assign=assigned, on_revoke=revoked, on_lost=revoked)
    while not stop.is_set():
        consumer.poll(COMMIT_EVERY_S)
        if offsets:
            wanted = [TopicPartition(asked.topic, number, offset + 1) for number, offset in offsets.items()]
            try:
                done = consumer.commit(offsets=wanted, asynchronous=False)
            except KafkaException:
                continue
            for each in done:
                if each.error is None and each.partition in offsets:
                    offsets[each.partition] = each.offset
                    log.write(name, "acknowledged", each.partition, offset=each.offset)
    consumer.close()


async def ottla_member(name: str, asked: argparse.Namespace, log: EventLog, stop: threading.Event) -> None:
    """A member of our client: the same, and its generations are known."""
    async with await Cluster.connect(parse_addresses(asked.bootstrap)) as cluster:
        rebalance = asyncio.Event()
        member = GroupMember(
            cluster,
            asked.group,
            [asked.topic],
            on_rebalance=rebalance.set,
            session_timeout_s=asked.session_ms / 1000,
            heartbeat_s=0.5,
        )
        while not stop.is_set():
            rebalance.clear()
            partitions = await member.join()
            found = await committed_offsets(cluster, asked.group, partitions) if partitions else {}
            offsets = {each: found[each].offset if each in found else 0 for each in partitions}
            for each, offset in offsets.items():
                log.write(name, "assigned", each.partition, generation=member.generation_id, offset=offset)
            await _commit_until(rebalance, stop, member, offsets, name, log)
            for each in partitions:
                log.write(name, "revoked", each.partition, generation=member.generation_id)
        await member.leave()


async def _commit_until(
    rebalance: asyncio.Event,
    stop: threading.Event,
    member: GroupMember,
    offsets: dict[ids.TopicPartition, int],
    name: str,
    log: EventLog,
) -> None:
    while not rebalance.is_set() and not stop.is_set():
        await asyncio.sleep(COMMIT_EVERY_S)
        wanted = {each: offset + 1 for each, offset in offsets.items()}
        if wanted and await member.commit(wanted):
            offsets.update(wanted)
            for each, offset in wanted.items():
                log.write(name, "acknowledged", each.partition, offset=offset)


async def ottla_members(names: list[str], asked: argparse.Namespace, log: EventLog, stop: threading.Event) -> None:
    await asyncio.gather(*(ottla_member(name, asked, log, stop) for name in names))


def set_at_end_of_input(stop: threading.Event) -> None:
    """Ask the members to stop when the campaign closes the pipe, or ends."""
    sys.stdin.read()
    stop.set()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--group", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--client", choices=("librdkafka", "kip848", "ottla"), required=True)
    parser.add_argument("--members", type=int, required=True)
    parser.add_argument("--session-ms", type=int, default=30_000)
    parser.add_argument("--log", required=True)
    asked = parser.parse_args()
    stop = threading.Event()
    names = [f"{asked.name}-{number}" for number in range(asked.members)]
    with open(asked.log, "a", encoding="ascii") as file:  # noqa: PTH123
        log = EventLog(file)
        if asked.client == "ottla":
            threading.Thread(target=set_at_end_of_input, args=(stop,), daemon=True).start()
            asyncio.run(ottla_members(names, asked, log, stop))
            return
        threads = [threading.Thread(target=librdkafka_member, args=(name, asked, log, stop)) for name in names]
        for thread in threads:
            thread.start()
        set_at_end_of_input(stop)
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main()
