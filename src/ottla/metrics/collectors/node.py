"""Reads what belongs to the broker itself: connections, disks, flushes, compaction, transactions, quotas, its loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from ottla.core.errors import KafkaError
from ottla.core.histogram import Histogram
from ottla.core.ids import SHARE_STATE_TOPIC, TRANSACTIONS_TOPIC
from ottla.metrics.loop_watch import STALL_S
from ottla.metrics.page import COUNTER, GAUGE, HISTOGRAM, SUMMARY, Page, escape, family, labels_of
from ottla.metrics.reading import Reading
from ottla.replication.group_commit import GroupCommit
from ottla.security.quotas.client_quotas import THROTTLED_MAX

_NET, _DISK, _BROKER, _TXN = "Connections", "Disks", "Broker", "Transactions"
_SOCKETS = "kafka_server_socket_server_metrics_"
SOFTWARE_MAX = 50
"""Libraries of clients that have series of their own: clients name them."""

CONNECTIONS = family(f"{_SOCKETS}connection_count", GAUGE, "Connections", "listener", group=_NET)
CREATED = family(f"{_SOCKETS}connection_creation", COUNTER, "Connections that were opened", "listener", group=_NET)
REFUSED = family("ottla_connections_refused", COUNTER, "Connections above a limit", "listener", group=_NET)
SOFTWARE = family(
    "ottla_connections_by_software",
    GAUGE,
    f"Connections by what clients say of their library: the {SOFTWARE_MAX} most frequent, and `other`",
    "software version",
    group=_NET,
)
SIGNED_IN = family(
    f"{_SOCKETS}successful_authentication", COUNTER, "Sign-ins by SASL", "listener mechanism", group=_NET
)
NOT_SIGNED_IN = family(
    f"{_SOCKETS}failed_authentication", COUNTER, "Sign-ins by SASL that failed", "listener mechanism", group=_NET
)
THROTTLED = family(
    "ottla_quota_limits", GAUGE, "Clients with a quota of which this broker has measured something", group=_NET
)
THROTTLE_TIME = family(
    "ottla_client_throttle_seconds",
    COUNTER,
    f"Seconds that a client had to wait for its quotas: of {THROTTLED_MAX:,} users and client ids, and `other`",
    "user client_id",
    group=_NET,
)
FLUSH = family(
    "kafka_log_logflushstats_logflushrateandtimems",
    SUMMARY,
    "Milliseconds of the rounds of fsyncs of all log directories; quantiles within a factor of two",
    group=_DISK,
)
FLUSH_SECONDS = family("ottla_flush_seconds", HISTOGRAM, "Seconds of a round of fsyncs", "directory", group=_DISK)
OFFLINE = family("kafka_log_logmanager_offlinelogdirectorycount", GAUGE, "Log directories that failed", group=_DISK)
DIRECTORY_OFFLINE = family(
    "kafka_log_logmanager_logdirectoryoffline", GAUGE, "1 if the log directory failed", "logdirectory", group=_DISK
)
DISK_TOTAL = family("ottla_log_directory_disk_bytes", GAUGE, "Size of the disk", "directory", group=_DISK)
DISK_FREE = family(
    "ottla_log_directory_usable_bytes",
    GAUGE,
    "Bytes that records may use; 0: the disk is full",
    "directory",
    group=_DISK,
)
KM_DISK = family(
    "kminion_kafka_broker_log_dir_size_total_bytes",
    GAUGE,
    "Bytes of all logs of the broker",
    "broker_id address port rack_id",
    group="Names of kminion",
)
CLEANINGS = family("ottla_cleaner_logs_cleaned", COUNTER, "Logs that were compacted", group=_DISK)
CLEANED_BYTES = family("ottla_cleaner_bytes_read", COUNTER, "Bytes that compaction has read", group=_DISK)
WRITTEN_BYTES = family("ottla_cleaner_bytes_written", COUNTER, "Bytes that compaction has written", group=_DISK)
CLEANING_SECONDS = family("ottla_cleaner_seconds", COUNTER, "Seconds that compaction took", group=_DISK)
UNCLEANABLE = family(
    "kafka_log_logcleanermanager_uncleanable_partitions_count",
    GAUGE,
    "Logs that cannot be compacted: `ottla log` says why",
    group=_DISK,
)
TRANSACTIONS = family(
    "ottla_transactional_ids", GAUGE, "Transactional ids that this broker coordinates", "state", group=_TXN
)
LATE = family(
    "ottla_transactions_late",
    GAUGE,
    "Transactions that are open for longer than any may be: readers of committed records wait",
    group=_TXN,
)
SHARE_PARTITIONS = family(
    "ottla_share_partitions", GAUGE, "Share partitions in the memory of this broker", group="Groups"
)
LOOP_DELAY = family(
    "ottla_loop_delay_seconds",
    HISTOGRAM,
    "Seconds by which the event loop was late, measured each 0.1 s",
    group=_BROKER,
)
LOOP_STALLS = family(
    "ottla_loop_stalls", COUNTER, f"Delays of the event loop above {STALL_S * 1000:g} ms", group=_BROKER
)
REQUEST_MEMORY = family(
    "ottla_request_memory_bytes",
    GAUGE,
    "Memory of large requests that arrive, of queued.max.request.bytes",
    group=_BROKER,
)
FETCH_SESSIONS = family(
    "kafka_server_fetchsessioncache_numincrementalfetchsessions", GAUGE, "Fetch sessions of consumers", group=_BROKER
)
INFO = family("ottla_broker_info", GAUGE, "1", "node_id cluster_id rack", group=_BROKER)


def collect(reading: Reading, page: Page) -> Iterator[None]:
    """Read the broker."""
    services, view = reading.services, reading.view
    rack = services.config.server.rack
    page.add(INFO, 1, labels_of(node_id=services.node_id, cluster_id=view.cluster_id, rack=rack))
    page.add(FETCH_SESSIONS, len(services.fetch_sessions))
    page.add_histogram(LOOP_DELAY, reading.loop_watch.delays)
    page.add(LOOP_STALLS, reading.loop_watch.stalls)
    yield from _connections(reading, page)
    _flushes(reading, page)
    yield
    yield from _directories(reading, page)
    _cleaner(reading, page)
    yield
    yield from _transactions(reading, page)


def _connections(reading: Reading, page: Page) -> Iterator[None]:
    listeners = reading.broker.listeners
    if listeners is None:
        return
    limits = listeners.limits
    for name, count in limits.created.items():
        labels = labels_of(listener=name)
        page.add(CONNECTIONS, limits.per_listener.get(name, 0), labels)
        page.add(CREATED, count, labels)
        page.add(REFUSED, limits.refused[name], labels)
    software: Counter[tuple[str, str]] = Counter()
    for number, connection in enumerate(list(listeners.connections)):
        if connection.software is not None:
            software[connection.software] += 1
        if number % 500 == 0 and reading.slices.spend(100):
            yield
    for (name, version), count in software.most_common(SOFTWARE_MAX):
        page.add(SOFTWARE, count, labels_of(software=name[:100], version=version[:100]))
    others = software.total() - sum(count for _, count in software.most_common(SOFTWARE_MAX))
    page.add(SOFTWARE, others, labels_of(software="other", version=""))
    sign_ins = reading.services.sign_ins
    if sign_ins is not None:
        for declared, counts in ((SIGNED_IN, sign_ins.successes), (NOT_SIGNED_IN, sign_ins.failures)):
            for listener, mechanism in sign_ins.successes.keys() | sign_ins.failures.keys():
                page.add(declared, counts[listener, mechanism], labels_of(listener=listener, mechanism=mechanism))
    page.add(REQUEST_MEMORY, reading.broker.request_memory.used_bytes)
    if reading.broker.quotas is not None:
        clients = reading.broker.quotas.clients
        page.add(THROTTLED, len(clients))
        for (user, client_id), throttled_ms in list(clients.throttled_ms.items()):
            page.add(THROTTLE_TIME, throttled_ms / 1000, labels_of(user=user, client_id=client_id))
            if reading.slices.spend():
                yield


def _flushes(reading: Reading, page: Page) -> None:
    commits = reading.services.replicas.group_commits
    measured = {directory: measure_flushes(commit) for directory, commit in commits.items()}
    for directory, durations in measured.items():
        page.add_histogram(FLUSH_SECONDS, durations, labels_of(directory=directory.path))
    page.add_summary(FLUSH, _sum(measured.values()))


def measure_flushes(commit: GroupCommit) -> Histogram:
    """Return how long the rounds of fsyncs took since this was first called: they are not measured before."""
    if commit.speed.durations is None:
        commit.speed.durations = Histogram()
    return commit.speed.durations


def _sum(histograms: Iterable[Histogram]) -> Histogram:
    total = Histogram()
    for histogram in histograms:
        for bucket, count in enumerate(histogram.counts):
            total.counts[bucket] += count
        total.total_us += histogram.total_us
    return total


def _directories(reading: Reading, page: Page) -> Iterator[None]:
    directories = reading.services.replicas.directories
    page.add(OFFLINE, len(directories.offline))
    for path in directories.offline:
        page.add(DIRECTORY_OFFLINE, 1, labels_of(logdirectory=path))
    stored = 0
    for directory in directories.online:
        labels = f'directory="{escape(str(directory.path))}"'
        page.add(DIRECTORY_OFFLINE, 0, labels_of(logdirectory=directory.path))
        for log in list(directory.logs.values()):
            stored += log.size_bytes
            if reading.slices.spend():
                yield
        try:
            total, free = directory.disk_bytes()
        except OSError:  # the disk does not report its size
            continue
        page.add(DISK_TOTAL, total, labels)
        page.add(DISK_FREE, 0 if directory.health.is_full else free, labels)
    broker = reading.view.brokers.get(reading.services.node_id)
    if broker is not None:
        endpoint = next(iter(broker.endpoints.values()))
        labels = labels_of(
            broker_id=broker.node_id, address=endpoint.host, port=endpoint.port, rack_id=broker.rack or ""
        )
        page.add(KM_DISK, stored, labels)


def _cleaner(reading: Reading, page: Page) -> None:
    cleaner = reading.broker.log_cleaner
    if cleaner is None:
        return
    page.add(CLEANINGS, cleaner.cleanings)
    page.add(CLEANED_BYTES, cleaner.bytes_read)
    page.add(WRITTEN_BYTES, cleaner.bytes_written)
    page.add(CLEANING_SECONDS, cleaner.seconds)
    page.add(UNCLEANABLE, len(cleaner.uncleanable))


def _transactions(reading: Reading, page: Page) -> Iterator[None]:
    page.add(LATE, reading.broker.late_transactions)
    coordinators, view = reading.services.coordinators, reading.view
    if TRANSACTIONS_TOPIC in view.topics:
        try:
            ids = coordinators.transactions.transactional_ids()
        except KafkaError:  # they are being loaded
            ids = []
        states = Counter(runtime.metadata.state.kafka_name for runtime in ids)
        for state, count in sorted(states.items()):
            page.add(TRANSACTIONS, count, f'state="{state}"')
        if reading.slices.spend(len(ids) // 10):
            yield
    if SHARE_STATE_TOPIC in view.topics:
        page.add(SHARE_PARTITIONS, len(coordinators.share_partitions))
