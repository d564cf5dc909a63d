"""Compaction: records cleaned per second and memory beside Apache Kafka's cleaner, and what a producer feels of it.

Both brokers get the same log, with the same settings, in turns; a smaller one is compacted first, so that neither is
measured cold. The clock runs from the answer to the request that makes the topic a compacted one until the cleaner's
checkpoint says that it came to the end. The producer's latencies are measured on one broker in turns too: while a log
is compacted, and without.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks import clients
from benchmarks.keyed import SEGMENT_BYTES, write_keyed
from benchmarks.progress import Progress
from benchmarks.report import CLEANER_TITLE, machine, number, today, write_part
from ottla.core.files import SystemFiles
from ottla.core.ids import TopicPartition
from ottla.records.batch_reader import read_headers
from ottla.storage.small_files import offsets_text, parse_offsets
from tests.support.kafka_jars import VERSION, kafka_jars
from tests.support.ottla_process import OttlaProcess
from tests.support.processes import descendants, until, usage
from tests.support.real_kafka import CLUSTER_ID, FULL_JVM, RealKafka

MIB = 1 << 20
WAIT_S = 600.0
EVERY_S = 0.02
Server = RealKafka | OttlaProcess


class Cleaned(NamedTuple):
    """One broker's compaction of the whole log."""

    seconds: float
    cpu_s: float  # of the process that cleans, meanwhile
    kept: int
    peak_bytes: int  # of the process that cleans: for Kafka the whole broker


class Felt(NamedTuple):
    """What a synchronous producer saw, in ms."""

    p50: float
    p99: float
    requests: int


class Sizes(NamedTuple):
    """How much there is to do."""

    records: int
    keys: int
    rounds: int


def run(sizes: Sizes, page: Path | None, progress: Progress) -> bool:
    """All of it; whether Ottla was as fast as Kafka and the producer's p99 did not double."""
    load = os.getloadavg()[0]
    directory = Path(tempfile.mkdtemp(prefix="ottla-cleaner-"))
    try:
        size = write_keyed(directory / "big", "big", records=sizes.records, keys=sizes.keys, cluster_id=CLUSTER_ID)
        write_keyed(
            directory / "warm", "warm", records=sizes.records // 10, keys=sizes.keys // 10, cluster_id=CLUSTER_ID
        )
        progress.line(f"{sizes.records:,} records over {sizes.keys:,} keys, {size / MIB:,.0f} MiB")
        figures: dict[str, list[Cleaned]] = {"Kafka": [], "Ottla": []}
        for turn in range(sizes.rounds):
            for name in ("Kafka", "Ottla") if turn % 2 == 0 else ("Ottla", "Kafka"):
                figures[name].append(cleaned_by(name, directory, sizes.records))
                progress.line(f"turn {turn + 1} of {sizes.rounds}, {name}: {figures[name][-1]}")
        felt = producers(directory, records=sizes.records, turns=sizes.rounds, progress=progress)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    lines = [*table(figures, felt, sizes, size), "", f"The machine's load before it began: {load:.1f}."]
    progress.line("\n".join(lines))
    if page is not None:
        write_part(page, CLEANER_TITLE, lines)
    with_it, without = (statistics.median(each.p99 for each in felt[name]) for name in ("while", "without"))
    return _rate(figures["Ottla"], sizes) >= _rate(figures["Kafka"], sizes) and with_it <= 2 * without


# ---- The cleaners


def cleaned_by(name: str, directory: Path, records: int) -> Cleaned:
    """A broker of its own compacts the small log and then the big one."""
    turn = directory / "turn"
    shutil.rmtree(turn, ignore_errors=True)
    server: Server
    if name == "Kafka":
        server = RealKafka(kafka_jars(), turn, jvm_options=FULL_JVM, settings={"log.cleaner.backoff.ms": "100"})
    else:
        server = OttlaProcess(turn, options=("-o", "log.cleaner.backoff.ms=100"))
    with_logs(server, {"warm": (directory / "warm", "warm", records // 10), "big": (directory / "big", "big", records)})
    server.start()
    try:
        compact(server, "warm", records // 10)
        seconds, cpu_s, peak = compact(server, "big", records)
        kept = records_in(server.data / "big-0")
    finally:
        server.stop()
        shutil.rmtree(turn, ignore_errors=True)
    return Cleaned(seconds, cpu_s, kept, peak)


def with_logs(server: Server, logs: dict[str, tuple[Path, str, int]]) -> None:
    """Let a broker make its topics, and put logs that were made before in their place while it is down."""
    server.start()
    for topic in logs:
        make_topic(server.bootstrap, topic, {"segment.bytes": str(SEGMENT_BYTES), "min.cleanable.dirty.ratio": "0.01"})
    clients.make_topic(server.port, "felt")
    server.stop()
    for topic, (made, made_topic_name, _) in logs.items():
        partition = server.data / f"{topic}-0"
        for path in partition.glob("0*"):
            path.unlink()
        sealed = sorted((made / f"{made_topic_name}-0").glob("*.log"))[:-1]
        for path in (made / f"{made_topic_name}-0").glob("0*"):
            if path in sealed:
                os.link(path, partition / path.name)  # it is only ever read and renamed
            else:
                shutil.copy(path, partition / path.name)
    if isinstance(server, OttlaProcess):  # what it noted of the empty logs is not true of these
        for known in (".kafka_cleanshutdown", "ottla-copies"):
            (server.data / known).unlink(missing_ok=True)
        synced = {TopicPartition(topic, 0): records for topic, (_, _, records) in logs.items()}
        (server.data / "recovery-point-offset-checkpoint").write_text(offsets_text(synced))


def compact(server: Server, topic: str, records: int) -> tuple[float, float, int]:
    """Make a topic a compacted one and wait for its cleaner; seconds, those of its processor, and its most memory."""
    before = {pid: usage(pid).cpu_s for pid in cleaning_processes(server)}
    began = let_compact(server, topic)
    checkpoint, peak, cpu_s = server.data / "cleaner-offset-checkpoint", 0, 0.0
    while True:
        for pid in cleaning_processes(server):
            with contextlib.suppress(OSError, KeyError):  # a worker that has just ended
                seen = usage(pid)
                peak, cpu_s = max(peak, seen.peak_rss_bytes), max(cpu_s, seen.cpu_s - before.get(pid, 0.0))
        text = checkpoint.read_text() if checkpoint.exists() else ""
        if (parse_offsets(text) or {}).get(TopicPartition(topic, 0), 0) >= records:
            return time.perf_counter() - began, cpu_s, peak
        if time.perf_counter() - began > WAIT_S:
            raise TimeoutError(f"{topic} was not compacted in {WAIT_S} s")
        time.sleep(EVERY_S)


def let_compact(server: Server, topic: str) -> float:
    """From now on the cleaner may take the topic; the time by perf_counter."""
    from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource  # type: ignore[attr-defined]

    entry = ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
    for each in admin.incremental_alter_configs([resource]).values():
        each.result(20)
    return time.perf_counter()


def cleaning_processes(server: Server) -> list[int]:
    """Kafka cleans in a thread of the broker, Ottla in processes below it."""
    if isinstance(server, RealKafka):
        return [server.pid]
    return descendants(server.pid)


def records_in(partition: Path) -> int:
    """How many records the segments of a partition hold."""
    files, count = SystemFiles(), 0
    for path in partition.glob("*.log"):
        file = files.open(path)
        count += sum(each.header.record_count for each in read_headers(file, 0, file.size(), chunk_bytes=MIB))
        file.close()
    return count


# ---- The producer


def make_topic(bootstrap: str, name: str, config: dict[str, str]) -> None:
    """One partition with settings."""
    from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    (made,) = admin.create_topics([NewTopic(name, 1, 1, config=config)]).values()
    made.result(20)


def producers(directory: Path, *, records: int, turns: int, progress: Progress) -> dict[str, list[Felt]]:
    """One synchronous producer of 200 B: in turns while the big log is compacted, and for as long without."""
    server = OttlaProcess(directory / "ottla", options=("-o", "log.cleaner.backoff.ms=100"))
    names = [f"big{turn}" for turn in range(turns)]
    with_logs(server, dict.fromkeys(names, (directory / "big", "big", records)))
    server.start()
    felt: dict[str, list[Felt]] = {"without": [], "while": []}
    try:
        clients.synchronous(server.port, "felt", producers=1, seconds=2)  # warm
        for turn, name in enumerate(names):
            over = threading.Event()
            let_compact(server, name)
            threading.Thread(target=_watch, args=(server, name, over), daemon=True).start()
            busy, took = clients.synchronous_until(server.port, "felt", over)
            felt["while"].append(Felt(busy.p50_ms, busy.p99_ms, round(busy.per_second * took)))
            calm = clients.synchronous(server.port, "felt", producers=1, seconds=took)
            felt["without"].append(Felt(calm.p50_ms, calm.p99_ms, round(calm.per_second * took)))
            progress.line(f"producer, turn {turn + 1} of {turns}: {felt['while'][-1]}, without {felt['without'][-1]}")
    finally:
        server.stop()
    return felt


def _watch(server: OttlaProcess, name: str, over: threading.Event) -> None:
    until(lambda: f"{name}-0 compacted" in server.log, timeout_s=WAIT_S, what=f"the compaction of {name}")
    over.set()


# ---- The report page


def table(figures: dict[str, list[Cleaned]], felt: dict[str, list[Felt]], sizes: Sizes, size: int) -> Sequence[str]:
    """What the page says."""
    kafka, ottla = figures["Kafka"], figures["Ottla"]
    what = (
        f"Measured {today()} on {machine()}. {sizes.records:,} records of about 120 B over {sizes.keys:,} keys in "
        f"random order, {size / MIB:,.0f} MiB in segments of {SEGMENT_BYTES // MIB} MiB, all of it dirty; compacted "
        f"{sizes.rounds} times by each, in turns, with the default settings of both (a map of at most 128 MiB, one "
        "thread), after a smaller log to warm up. From the request that makes the topic a compacted one until the "
        "cleaner's checkpoint says that it came to the end."
    )
    rates = _rate(kafka, sizes), _rate(ottla, sizes)
    peaks = [statistics.median(each.peak_bytes for each in cleaned) / MIB for cleaned in (kafka, ottla)]
    seconds = [statistics.median(each.seconds for each in cleaned) for cleaned in (kafka, ottla)]
    cpu = [statistics.median(each.cpu_s for each in cleaned) for cleaned in (kafka, ottla)]
    rows = [
        what,
        "",
        f"| figure (median) | Kafka {VERSION} | Ottla | ratio |",
        "| --- | --- | --- | --- |",
        f"| records cleaned per second | {rates[0]:,.0f} | {rates[1]:,.0f} | {rates[1] / rates[0]:.2f}x |",
        f"| seconds | {seconds[0]:.1f} | {seconds[1]:.1f} | |",
        f"| processor seconds | {cpu[0]:.1f} (whole broker) | {cpu[1]:.1f} (worker) | {cpu[0] / cpu[1]:.2f}x |",
        f"| records left | {kafka[0].kept:,} | {ottla[0].kept:,} | |",
        f"| peak memory, MiB | {peaks[0]:.0f} (whole broker) | {peaks[1]:.0f} (worker) | {peaks[0] / peaks[1]:.1f}x |",
        "",
        "A synchronous producer of 200 B records on the same broker, in turns while that log is compacted and for as",
        "long without:",
        "",
        "| figure (median of the turns) | without | while compacting | ratio |",
        "| --- | --- | --- | --- |",
    ]
    for name in ("p50", "p99"):
        calm, busy = (statistics.median(getattr(each, name) for each in felt[kind]) for kind in ("without", "while"))
        rows.append(f"| {name}, ms | {number(calm)} | {number(busy)} | {busy / calm:.2f}x |")
    return rows


def _rate(cleaned: list[Cleaned], sizes: Sizes) -> float:
    return statistics.median(sizes.records / each.seconds for each in cleaned)
