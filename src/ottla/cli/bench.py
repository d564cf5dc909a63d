"""`ottla bench`: measures the throughput of producing and consuming, and the latency of single records.

The result is that of client and broker together on one machine. `make bench` compares with Apache Kafka under the same
client.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Annotated, Any

import typer

from ottla.cli.connection import DEFAULT_TIMEOUT_S, ConnectionOptions, client_options_of, run_on_cluster
from ottla.cli.errors import CommandFailed, usage_error
from ottla.cli.options import Brokers, Format, OutputFormat, Profile, Timeout
from ottla.cli.output import ProgressBar, show_rows
from ottla.client import admin
from ottla.client.cluster import Cluster
from ottla.client.consumer import Consumer
from ottla.client.offsets import end_offsets
from ottla.client.producer import Producer, ProducerOptions
from ottla.core.clock import Clock, SystemClock
from ottla.core.ids import TopicPartition
from ottla.core.quantities import parse_size

app = typer.Typer(add_completion=False, rich_markup_mode=None)
_MIB = 1 << 20
_WARM_UP_REQUESTS = 50


class Driver(StrEnum):
    """The client to measure with."""

    AUTO = "auto"
    OWN = "own"
    CONFLUENT = "confluent"


@dataclass(frozen=True, slots=True)
class BenchResult:
    """The result of one case; the latencies are those of single requests, None if not measured."""

    case: str
    client: str
    records: int
    seconds: float
    records_per_s: float
    mib_per_s: float
    p50_ms: float | None = None
    p99_ms: float | None = None


def _parse_size(text: str) -> int:
    size = parse_size(str(text))
    if size is None:
        raise typer.BadParameter(f"{text!r} is not a size: write bytes, or 2KiB, 1MB")
    return size


@app.command()
def bench(
    records: Annotated[
        int, typer.Option("--records", "-n", min=1, metavar="N", help="Records to write and read back.")
    ] = 100_000,
    size_bytes: Annotated[
        int, typer.Option("--size", "-s", parser=_parse_size, metavar="BYTES", help="Size of each value: 200, 2KiB.")
    ] = 200,
    partitions: Annotated[
        int, typer.Option("--partitions", "-p", min=1, metavar="N", help="Partitions of the topic that it creates.")
    ] = 1,
    requests: Annotated[
        int, typer.Option("--requests", min=1, metavar="N", help="Single records, for the latency.")
    ] = 1_000,
    client: Annotated[
        Driver, typer.Option("--client", help="auto: confluent-kafka if installed, else Ottla's own.")
    ] = Driver.AUTO,
    topic: Annotated[str | None, typer.Option("--topic", help="Use this topic and keep it.")] = None,
    shape: Format = OutputFormat.TABLE,
    brokers: Brokers = None,
    profile: Profile = None,
    timeout: Timeout = DEFAULT_TIMEOUT_S,
) -> None:
    """Measure a broker with acks=all: bulk producing, consuming, and the latency of single records."""
    clock = SystemClock()
    name = topic or f"ottla-bench-{clock.wall_ms()}"
    installed = importlib.util.find_spec("confluent_kafka") is not None
    if client is Driver.CONFLUENT and not installed:
        raise usage_error("confluent-kafka is not installed", "pip install confluent-kafka, or --client own")
    target = ConnectionOptions(brokers, profile, timeout)
    load = Load(name, records, size_bytes, requests)

    async def prepare(cluster: Cluster) -> None:
        if topic is None:
            for outcome, _ in await admin.create_topics(cluster, [admin.NewTopic(name, partitions)]):
                if outcome.error is not None:
                    raise outcome.error
        await cluster.topic(name)

    async def clean_up(cluster: Cluster) -> None:
        await admin.delete_topics(cluster, [name])

    run_on_cluster(target, prepare)
    try:
        if installed and client is not Driver.OWN:
            results = run_confluent(load, _confluent_settings(target), clock, timeout_s=timeout)
        else:
            results = run_on_cluster(target, lambda cluster: run_own(load, cluster, clock))
    finally:
        if topic is None:
            run_on_cluster(target, clean_up)
    columns = ["case", "client", "records", "seconds", "records_per_s", "mib_per_s", "p50_ms", "p99_ms"]
    rows = [asdict(result) for result in results]
    if shape is OutputFormat.TABLE:
        rows = [
            {**row, "seconds": f"{row['seconds']:.2f}", "records_per_s": f"{row['records_per_s']:.0f}"} for row in rows
        ]
    show_rows([_rounded(row) for row in rows], columns, shape)


def _confluent_settings(target: ConnectionOptions) -> dict[str, str]:
    """Return the brokers and the security of a cluster as librdkafka's settings. Raises CommandFailed."""
    from ottla.client.librdkafka_settings import NotForLibrdkafka, librdkafka_settings
    from ottla.security.key_stores import InvalidKeyStore

    brokers = {"bootstrap.servers": ",".join(str(address) for address in target.addresses())}
    try:
        return brokers | librdkafka_settings(client_options_of(target).security)
    except NotForLibrdkafka as error:
        raise usage_error(f"confluent-kafka: {error}", "use --client own") from None
    except InvalidKeyStore as error:
        raise usage_error(str(error)) from None


@dataclass(frozen=True, slots=True)
class Load:
    """The size of the workload."""

    topic: str
    records: int
    size_bytes: int
    requests: int

    @property
    def value(self) -> bytes:
        """A value of the given size that does not compress to almost nothing."""
        return bytes(i * 31 % 251 for i in range(self.size_bytes))


def measured(
    case: str, client: str, load: Load, records: int, seconds: float, times_s: list[float] | None = None
) -> BenchResult:
    """Compute a result from a count and times.

    >>> measured("latency", "own", Load("t", 1, 100, 4), 4, 2.0, [0.001, 0.002, 0.003, 0.004]).p50_ms
    2.0
    """
    per_s = records / seconds if seconds > 0 else 0.0
    ordered = sorted(times_s or [])
    return BenchResult(
        case=case,
        client=client,
        records=records,
        seconds=seconds,
        records_per_s=per_s,
        mib_per_s=per_s * load.size_bytes / _MIB,
        p50_ms=percentile_ms(ordered, 0.5),
        p99_ms=percentile_ms(ordered, 0.99),
    )


def percentile_ms(ordered_s: list[float], share: float) -> float | None:
    """Return the smallest of the sorted times that `share` of them do not exceed, in ms; None without times."""
    if not ordered_s:
        return None
    rank = max(1, -(-int(share * 100) * len(ordered_s) // 100))
    return ordered_s[rank - 1] * 1000


async def run_own(load: Load, cluster: Cluster, clock: Clock) -> list[BenchResult]:
    """Run the three cases with Ottla's own client."""
    tps = [TopicPartition(load.topic, p.partition) for p in (await cluster.topic(load.topic)).partitions]
    await _warm_up(load, cluster, clock, tps)
    results = []
    value = load.value
    async with Producer(cluster, clock=clock, options=ProducerOptions(batch_bytes=_MIB)) as producer:
        for tp in tps:
            await (await producer.send(load.topic, value=value, partition=tp.partition))
        starts = await end_offsets(cluster, tps)
        began = clock.monotonic()
        with ProgressBar("produce", total=load.records) as progress:
            futures = []
            for number in range(load.records):
                futures.append(await producer.send(load.topic, value=value))
                if number % 10_000 == 0:
                    progress.update(number)
            await producer.flush()
        for future in futures:
            future.result()
    results.append(measured("produce", "own", load, load.records, clock.monotonic() - began))

    began = clock.monotonic()
    read = await _read(load, cluster, starts)
    if read < load.records:
        raise CommandFailed(f"wrote {load.records} records to {load.topic} but read only {read}")
    results.append(measured("consume", "own", load, read, clock.monotonic() - began))

    times_s = []
    with ProgressBar("latency", total=load.requests) as progress:
        async with Producer(cluster, clock=clock, options=ProducerOptions(linger_s=0)) as producer:
            for number in range(-_WARM_UP_REQUESTS, load.requests):
                start = clock.monotonic()
                await (await producer.send(load.topic, value=value, partition=0))
                if number >= 0:
                    times_s.append(clock.monotonic() - start)
                    progress.update(number)
    results.append(measured("latency", "own", load, load.requests, sum(times_s), times_s))
    return results


async def _warm_up(load: Load, cluster: Cluster, clock: Clock, tps: list[TopicPartition]) -> None:
    """Write and read a record of each partition: connections, imports and the producer id are not measured."""
    starts = await end_offsets(cluster, tps)
    async with Producer(cluster, clock=clock) as producer:
        for tp in tps:
            await (await producer.send(load.topic, value=load.value, partition=tp.partition))
    await _read(load, cluster, starts)


async def _read(load: Load, cluster: Cluster, starts: dict[TopicPartition, int]) -> int:
    """Read from these offsets to the ends; returns the number of records."""
    read = 0
    ends = await end_offsets(cluster, starts)
    with ProgressBar("consume", total=load.records) as progress:
        async with Consumer(cluster, starts, end=ends) as consumer:
            async for _, records in consumer.chunks():
                read += len(records)
                progress.update(read)
    return read


def run_confluent(load: Load, settings: Mapping[str, str], clock: Clock, *, timeout_s: float) -> list[BenchResult]:
    """Run the three cases with confluent-kafka (librdkafka), with these settings of brokers and security."""
    import confluent_kafka as ck

    common = {**settings, "acks": "all", "enable.idempotence": True}
    failed: list[str] = []

    def note(error: Any, _message: Any) -> None:
        if error is not None:
            failed.append(str(error))

    bulk = ck.Producer({**common, "linger.ms": 5, "batch.size": _MIB, "queue.buffering.max.messages": 1_000_000})
    consumer = ck.Consumer(
        {
            **settings,
            "group.id": "ottla-bench",
            "enable.auto.commit": False,
            "fetch.queue.backoff.ms": 2,  # by default it fetches nothing for a second after its queue was full
        }
    )
    results = []
    try:
        _warm_up_confluent(ck, bulk, consumer, load, note, timeout_s)
        seconds = _timed(clock, lambda: _produce(bulk, load, note, timeout_s))
        results.append(measured("produce", "confluent", load, load.records, seconds))
        if not failed:
            consumer.resume(consumer.assignment())
            began, read = clock.monotonic(), _consume(consumer, load.records, timeout_s)
            results.append(measured("consume", "confluent", load, read, clock.monotonic() - began))
    finally:
        consumer.close()
    if not failed:
        one = ck.Producer({**common, "linger.ms": 0})
        for _ in range(_WARM_UP_REQUESTS):
            _produce_one(one, load, note, timeout_s)
        times_s = [_timed(clock, lambda: _produce_one(one, load, note, timeout_s)) for _ in range(load.requests)]
        results.append(measured("latency", "confluent", load, load.requests, sum(times_s), times_s))
    if failed:
        raise CommandFailed(f"{len(failed)} records were not written; the first: {failed[0]}")
    return results


def _warm_up_confluent(
    ck: Any, producer: Any, consumer: Any, load: Load, note: Callable[[Any, Any], None], timeout_s: float
) -> None:
    """Write and read a record of each partition; the consumer is paused after it."""
    numbers = list(consumer.list_topics(load.topic, timeout=timeout_s).topics[load.topic].partitions)
    starts = []
    for number in numbers:
        tp = ck.TopicPartition(load.topic, number)
        tp.offset = consumer.get_watermark_offsets(tp, timeout=timeout_s)[1]
        starts.append(tp)
        producer.produce(load.topic, load.value, partition=number, on_delivery=note)
    if producer.flush(timeout_s):
        raise CommandFailed(f"the first records were not acknowledged within {timeout_s:g} s")
    consumer.assign(starts)
    _consume(consumer, len(numbers), timeout_s)
    consumer.pause(consumer.assignment())


def _produce(producer: Any, load: Load, note: Callable[[Any, Any], None], timeout_s: float) -> None:
    value = load.value
    with ProgressBar("produce", total=load.records) as progress:
        for number in range(load.records):
            while True:
                try:
                    producer.produce(load.topic, value, on_delivery=note)
                    break
                except BufferError:
                    producer.poll(0.05)
            if number % 1_000 == 0:
                producer.poll(0)
                progress.update(number)
        if left := producer.flush(timeout_s):
            raise CommandFailed(f"{left} records were not acknowledged within {timeout_s:g} s")


def _produce_one(producer: Any, load: Load, note: Callable[[Any, Any], None], timeout_s: float) -> None:
    producer.produce(load.topic, load.value, partition=0, on_delivery=note)
    if producer.flush(timeout_s):
        raise CommandFailed(f"a record was not acknowledged within {timeout_s:g} s")


def _consume(consumer: Any, records: int, timeout_s: float) -> int:
    """Read this many records."""
    read = 0
    with ProgressBar("consume", total=records) as progress:
        while read < records:
            messages = consumer.consume(min(10_000, records - read), timeout=timeout_s)
            if not messages:
                raise CommandFailed(f"read {read} of {records} records, then nothing for {timeout_s:g} s")
            for message in messages:
                if message.error() is not None:
                    raise CommandFailed(f"reading failed: {message.error()}")
            read += len(messages)
            progress.update(read)
    return read


def _timed(clock: Clock, work: Callable[[], None]) -> float:
    began = clock.monotonic()
    work()
    return clock.monotonic() - began


def _rounded(row: dict[str, Any]) -> dict[str, Any]:
    return {name: round(value, 3) if isinstance(value, float) else value for name, value in row.items()}
