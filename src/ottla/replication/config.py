"""Declares the settings of replication, with Apache Kafka's names and defaults."""

from __future__ import annotations

from ottla.core.settings import LONG_MAX, Section, Type, setting


class ReplicationConfig(Section):
    """Holds the settings of replica fetchers and of the in-sync replicas."""

    lag_time_max_ms: int = setting(
        "replica.lag.time.max.ms", default=30_000, kind=Type.LONG, unit="ms", at_least=1,
        doc="A follower that has not reached the log end of its leader for this long leaves the in-sync replicas.",
    )  # fmt: skip
    fetchers: int = setting(
        "num.replica.fetchers", default=1, kind=Type.INT, at_least=1,
        doc="Connections to each leader broker over which its partitions are replicated.",
    )  # fmt: skip
    fetch_max_bytes: int = setting(
        "replica.fetch.max.bytes", default=1 << 20, kind=Type.INT, unit="bytes", at_least=0,
        doc="Bytes of one partition in one answer to a replica fetcher; the first batch comes whole all the same.",
    )  # fmt: skip
    fetch_response_max_bytes: int = setting(
        "replica.fetch.response.max.bytes", default=10 << 20, kind=Type.INT, unit="bytes", at_least=0,
        doc="Bytes of one answer to a replica fetcher; the first batch comes whole all the same.",
    )  # fmt: skip
    fetch_wait_max_ms: int = setting(
        "replica.fetch.wait.max.ms", default=500, kind=Type.INT, unit="ms", at_least=0,
        doc="A leader without new records answers a replica fetcher after this time.",
    )  # fmt: skip
    fetch_min_bytes: int = setting(
        "replica.fetch.min.bytes", default=1, kind=Type.INT, unit="bytes", at_least=0,
        doc="Bytes for which a leader waits before it answers a replica fetcher.",
    )  # fmt: skip
    fetch_backoff_ms: int = setting(
        "replica.fetch.backoff.ms", default=1_000, kind=Type.INT, unit="ms", at_least=0,
        doc="Time before a partition is fetched again after an error.",
    )  # fmt: skip
    socket_timeout_ms: int = setting(
        "replica.socket.timeout.ms", default=30_000, kind=Type.INT, unit="ms", at_least=1,
        doc="A connection to a leader that does not answer a fetch for this long, above the time it may wait, is "
        "closed.",
    )  # fmt: skip
    leader_throttled_rate: int = setting(
        "leader.replication.throttled.rate", default=LONG_MAX, kind=Type.LONG, unit="bytes", at_least=0, live=True,
        doc="Bytes a second that this broker sends to throttled replicas which are not in sync "
        "(leader.replication.throttled.replicas of a topic).",
    )  # fmt: skip
    follower_throttled_rate: int = setting(
        "follower.replication.throttled.rate", default=LONG_MAX, kind=Type.LONG, unit="bytes", at_least=0, live=True,
        doc="Bytes a second that throttled replicas of this broker which are not in sync fetch "
        "(follower.replication.throttled.replicas of a topic).",
    )  # fmt: skip
    alter_log_dirs_rate: int = setting(
        "replica.alter.log.dirs.io.max.bytes.per.second", default=LONG_MAX, kind=Type.LONG, unit="bytes", at_least=0,
        live=True, doc="Bytes a second with which replicas are copied to other log directories of this broker.",
    )  # fmt: skip
