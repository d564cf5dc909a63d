"""Clients that record all that they do and see. Each runs in a process of its own, on Ottla's own client library."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from ottla.client.cluster import Cluster as Client
from ottla.client.consumer import Consumer, ConsumerOptions
from ottla.client.errors import CannotConnect
from ottla.client.groups import commit_offsets, committed_offsets
from ottla.client.offsets import end_offsets
from ottla.client.producer import Producer, ProducerOptions, RecordMetadata
from ottla.client.replica_admin import ElectionType, alter_reassignments, elect_leaders
from ottla.client.transactions import TransactionalProducer, TransactionalProducerState
from ottla.core.errors import KafkaError
from ottla.core.ids import TopicPartition
from ottla.testing.sim_loop import SimClock
from tests.simulation.cluster import SimCluster
from tests.simulation.history import Commit, Outcome, Seen, Send, Value
from tests.simulation.scenario import Scenario

TOPIC = "web"
DELIVERY_S = 20.0
_FIRST_VERSION_SHARE = 0.4  # of the transactional producers: without the epochs of KIP-890


class Workload:
    """The clients of one run."""

    def __init__(self, cluster: SimCluster, scenario: Scenario) -> None:
        self.cluster, self.scenario, self.history = cluster, scenario, cluster.history
        self.loop = cluster.loop
        self.partitions = [TopicPartition(TOPIC, index) for index in range(scenario.partitions)]
        self.is_stopping = False
        self._moves = 0
        self._writing: list[asyncio.Task[None]] = []
        self._reading: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start all clients."""
        for number in range(1, self.scenario.producers + 1):
            self._writing.append(self._start(f"producer-{number}", self._produce(f"p{number}")))
        for number in range(1, self.scenario.consumers + 1):
            reading = self._consume(f"c{number}", read_committed=number == 2)
            self._reading.append(self._start(f"consumer-{number}", reading))
        for number in range(1, self.scenario.transactional + 1):
            self._writing.append(self._start(f"transactional-{number}", self._transact(f"t{number}")))
        for number in range(1, self.scenario.committers + 1):
            self._writing.append(self._start(f"committer-{number}", self._commit(f"g{number}")))

    async def stop(self) -> None:
        """End the clients; waits until each knows what became of its last records."""
        self.is_stopping = True
        if self._writing:
            await asyncio.wait(self._writing, timeout=DELIVERY_S * 3)
        await asyncio.sleep(1)  # consumers receive the last records
        for task in [*self._writing, *self._reading]:
            if not task.done():
                if task in self._writing:
                    self.cluster.problem("a client has not ended")
                task.cancel()
            elif task.exception() is not None:
                self.cluster.problem(f"a client failed: {task.exception()!r}")

    def _start(self, host: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self.loop.create_task(work, context=self.cluster.client_process(host))

    # ---- Producers

    async def _produce(self, name: str) -> None:
        rng = self.loop.rng_for(f"client/{name}")
        client = await self.cluster.patient_client(name, retry_s=DELIVERY_S)
        options = ProducerOptions(delivery_timeout_s=DELIVERY_S, linger_s=0.002, auto_create=False)
        producer = Producer(client, clock=SimClock(), options=options)
        counters = dict.fromkeys(self.partitions, 0)
        while not self.is_stopping:
            for _ in range(rng.choice((1, 1, 1, 4))):
                partition = rng.choice(self.partitions)
                counters[partition] += 1
                await self._send(producer, partition, Value(name, counters[partition]))
            await asyncio.sleep(rng.random() * 2 * self.scenario.pause_s)
        await producer.flush()

    async def _send(self, producer: Producer | TransactionalProducer, partition: TopicPartition, value: Value) -> Send:
        send = Send(partition, value, self.loop.time())
        self.history.sends.append(send)
        try:
            sent = await producer.send(TOPIC, value=value.encode(), partition=partition.partition)
        except (KafkaError, CannotConnect, OSError):
            send.completed_s, send.outcome = self.loop.time(), Outcome.FAILED  # not even queued
            return send
        sent.add_done_callback(lambda done: self._sent(send, done))
        return send

    def _sent(self, send: Send, done: asyncio.Future[RecordMetadata]) -> None:
        if done.cancelled() or done.exception() is not None:
            return  # unknown: a request may have had an effect
        send.completed_s, send.outcome = self.loop.time(), Outcome.OK
        send.offset = done.result().offset

    async def _transact(self, name: str) -> None:
        rng = self.loop.rng_for(f"client/{name}")
        client = await self.cluster.patient_client(name, retry_s=DELIVERY_S)
        options = ProducerOptions(delivery_timeout_s=DELIVERY_S, linger_s=0.002, auto_create=False)
        counters = dict.fromkeys(self.partitions, 0)
        is_old = rng.random() < _FIRST_VERSION_SHARE

        def new_producer() -> TransactionalProducer:
            return TransactionalProducer(
                client, name, clock=SimClock(), options=options, timeout_ms=15_000, first_version=is_old
            )

        producer = new_producer()
        number = 0
        while not self.is_stopping:
            try:
                if producer.state in {
                    TransactionalProducerState.UNINITIALIZED,
                    TransactionalProducerState.FENCED,
                    TransactionalProducerState.FAILED,
                }:
                    producer = new_producer()
                    await producer.init()
                number += 1
                await self._transaction(producer, name, number, counters, is_abort=rng.random() < 0.3)
            except (KafkaError, CannotConnect, OSError):
                producer.state = TransactionalProducerState.FAILED
                await asyncio.sleep(0.5)
            await asyncio.sleep(rng.random() * 2 * self.scenario.pause_s)

    async def _transaction(
        self,
        producer: TransactionalProducer,
        name: str,
        number: int,
        counters: dict[TopicPartition, int],
        *,
        is_abort: bool,
    ) -> None:
        rng = self.loop.rng_for(f"client/{name}")
        end = Commit(name, number, None, self.loop.time(), is_abort=is_abort)
        producer.begin()
        for _ in range(rng.randrange(1, 4)):
            partition = rng.choice(self.partitions)
            counters[partition] += 1
            await self._send(producer, partition, Value(name, counters[partition], number))
        await producer.flush()
        end.invoked_s = self.loop.time()
        self.history.transactions.append(end)
        await (producer.abort() if is_abort else producer.commit())
        end.completed_s, end.outcome = self.loop.time(), Outcome.OK

    # ---- Consumers

    async def _consume(self, name: str, *, read_committed: bool) -> None:
        client = await self.cluster.patient_client(name, retry_s=2.0)
        positions = dict.fromkeys(self.partitions, 0)
        while not self.is_stopping:
            consumer = Consumer(client, positions, options=ConsumerOptions(read_committed=read_committed))
            try:
                async for partition, records in consumer.chunks():
                    for record in records:
                        self._saw(name, partition, record, read_committed=read_committed)
                    positions = dict(consumer.positions)
            except (KafkaError, CannotConnect, OSError):
                positions = dict(consumer.positions)
                await asyncio.sleep(0.5)
            finally:
                await consumer.close()

    def _saw(self, name: str, partition: TopicPartition, record: Any, *, read_committed: bool) -> None:
        value = Value.decode(record.value)
        self.history.seen.append(
            Seen(self.loop.time(), name, partition, record.offset, value, read_committed=read_committed)
        )

    async def _commit(self, group: str) -> None:
        rng = self.loop.rng_for(f"client/{group}")
        client = await self.cluster.patient_client(group, retry_s=5.0)
        number = 0
        while not self.is_stopping:
            number += 1
            partition = rng.choice(self.partitions)
            commit = Commit(group, number, partition, self.loop.time())
            self.history.commits.append(commit)
            try:
                await commit_offsets(client, group, {partition: number})
                commit.outcome = Outcome.OK
            except (KafkaError, CannotConnect, OSError):
                pass
            commit.completed_s = self.loop.time()
            await asyncio.sleep(rng.random() * 4 * self.scenario.pause_s)

    # ---- The final read

    async def read_all(self) -> None:
        """Read every partition from its start in both isolation levels, and the committed offsets."""
        client = await self.cluster.patient_client("final", retry_s=40.0)
        for final, read_committed in ((self.history.final, False), (self.history.final_committed, True)):
            final.update({partition: [] for partition in self.partitions})
            ends = await end_offsets(client, self.partitions, read_committed=read_committed)
            options = ConsumerOptions(read_committed=read_committed)
            consumer = Consumer(client, dict.fromkeys(self.partitions, 0), end=ends, options=options)
            async for partition, records in consumer.chunks():
                final[partition] += [(record.offset, Value.decode(record.value or b"")) for record in records]
            await consumer.close()
        for number in range(1, self.scenario.committers + 1):
            group = f"g{number}"
            found = await committed_offsets(client, group, self.partitions)
            self.history.final_commits.update({(group, tp): each.offset for tp, each in found.items()})

    async def in_process(self, name: str, work: Coroutine[Any, Any, None], *, seconds: float, what: str) -> bool:
        """Run a coroutine as a client; a problem is recorded if it fails or takes too long."""
        task = self.loop.create_task(work, context=self.cluster.client_process(name))
        await asyncio.wait((task,), timeout=seconds)
        if not task.done():
            task.cancel()
            self.cluster.problem(f"not within {seconds:g} s: {what}")
        elif task.exception() is not None:
            self.cluster.problem(f"{what}: {task.exception()!r}")
        else:
            return True
        return False

    def reassign(self, index: int, replicas: list[int]) -> None:
        """Begin to move a partition to other brokers; the controller may refuse."""
        self._moves += 1
        self._start(f"admin-{self._moves}", self._reassign(self.partitions[index], replicas))

    async def _reassign(self, partition: TopicPartition, replicas: list[int]) -> None:
        client = await self.cluster.patient_client("admin")
        try:
            await alter_reassignments(client, {partition: replicas})
        except (KafkaError, CannotConnect, OSError):
            pass

    def elect(self, index: int, replicas: list[int]) -> None:
        """Begin to let the first of the replicas of a partition lead, in this order; the controller may refuse."""
        self._moves += 1
        self._start(f"admin-{self._moves}", self._elect(self.partitions[index], replicas))

    async def _elect(self, partition: TopicPartition, replicas: list[int]) -> None:
        try:
            await self.move(partition, replicas)
            await self.elect_preferred(partition)
        except (KafkaError, CannotConnect, OSError):
            pass

    async def elect_preferred(self, partition: TopicPartition) -> None:
        """Let the first replica of a partition lead."""
        await elect_leaders(await self.cluster.patient_client("admin"), ElectionType.PREFERRED, [partition])

    async def move(self, partition: TopicPartition, replicas: list[int]) -> None:
        """Begin to move a partition to these brokers, or change the order of its replicas."""
        await alter_reassignments(await self.cluster.patient_client("admin"), {partition: replicas})

    async def create_topic(self) -> None:
        """Create the topic; tries until it exists."""
        from ottla.client.admin import NewTopic, create_topics

        client: Client = await self.cluster.patient_client("admin")
        configs = {"min.insync.replicas": str(self.scenario.min_isr)}
        if self.scenario.is_page_cache:
            configs["durability"] = "page-cache"
        if self.scenario.segment_bytes:
            configs["internal.segment.bytes"] = str(self.scenario.segment_bytes)
        topic = NewTopic(TOPIC, self.scenario.partitions, self.scenario.replication, configs)
        while True:
            try:
                ((outcome, _),) = await create_topics(client, [topic])
            except (KafkaError, CannotConnect, OSError) as error:
                outcome_error: object = error
            else:
                outcome_error = outcome.error
            if outcome_error is None or "exists" in str(outcome_error):
                return
            await asyncio.sleep(0.5)
