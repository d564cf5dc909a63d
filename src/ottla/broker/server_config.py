"""Declares the settings of the broker as a whole."""

from __future__ import annotations

from ottla.core.settings import SECOND_MS, Content, Section, Type, setting

ALL_DIRECTORIES = "*"


class ServerConfig(Section):
    """Holds the broker's id, its data directories and its overall limits."""

    node_id: int = setting(
        "node.id", default=1, kind=Type.INT, at_least=0, synonyms=("broker.id",),
        doc="The broker's id in its cluster. It is written to the data directory and cannot change afterwards. If it "
            "is not set, the id in the directory is used.",
    )  # fmt: skip
    rack: str = setting(
        "broker.rack",
        default="",
        kind=Type.STRING,
        doc="The rack of the broker, reported to clients; empty means none.",
    )
    replica_selector: str = setting(
        "replica.selector.class", default="", kind=Type.STRING,
        choices=(
            "org.apache.kafka.common.replica.LeaderSelector",
            "org.apache.kafka.common.replica.RackAwareReplicaSelector",
        ),
        doc="The choice of the replica that a consumer reads from. RackAwareReplicaSelector directs a consumer with "
        "`client.rack` to an in-sync replica in that rack. Empty means the leader.",
    )  # fmt: skip
    log_dirs: tuple[str, ...] = setting(
        "log.dirs", default=(), kind=Type.LIST, synonyms=("log.dir",),
        doc="The data directories, best one per disk. Empty means `ottla` in the user's data "
        "directory (`$XDG_DATA_HOME`, else `~/.local/share`). A new partition is placed in the "
        "directory with the fewest partitions.",
    )  # fmt: skip
    cordoned_log_dirs: tuple[str, ...] = setting(
        "cordoned.log.dirs", default=(), kind=Type.LIST, live=True, content=Content.MEMBER,
        doc="Directories of `log.dirs` that get no new replicas, or `*` for all (KIP-1066). A broker with no other "
            "directory gets none from the controller. What is there stays until it is moved or reassigned.",
    )  # fmt: skip
    metadata_log_dir: str = setting(
        "metadata.log.dir", default="", kind=Type.STRING,
        doc="The directory of the metadata store. Empty means the first of `log.dirs`. The broker does not start "
            "without it.",
    )  # fmt: skip
    segments_open_max: int = setting(
        "ottla.open.segments.max", default=0, kind=Type.INT, at_least=0,
        doc="Maximum number of segment files kept open between uses; the least recently used are "
        "closed. 0 means a third of the process's limit of file handles (`ulimit -n`). "
        "Connections get another third.",
    )  # fmt: skip
    fetch_bytes_max: int = setting(
        "fetch.max.bytes", default=55 << 20, kind=Type.INT, unit="bytes", at_least=1024,
        doc="Maximum size of a fetch response. A first batch larger than this is still returned "
        "whole.",
    )  # fmt: skip
    fetch_sessions_max: int = setting(
        "max.incremental.fetch.session.cache.slots", default=1000, kind=Type.INT, at_least=0,
        doc="Maximum number of fetch sessions (KIP-227).",
    )  # fmt: skip
    request_timeout_ms: int = setting(
        "request.timeout.ms", default=30 * SECOND_MS, kind=Type.INT, unit="milliseconds", at_least=0,
        doc="Maximum time to wait for the response of another broker, as for a request that is forwarded to the "
        "controller.",
    )  # fmt: skip
    controlled_shutdown: bool = setting(
        "controlled.shutdown.enable", default=True, kind=Type.BOOLEAN,
        doc="Before a broker of a cluster stops, its leaders move to other brokers.",
    )  # fmt: skip
    controlled_shutdown_retries: int = setting(
        "controlled.shutdown.max.retries", default=3, kind=Type.INT, at_least=1,
        doc="With `controlled.shutdown.retry.backoff.ms` the maximum time that a stop waits for other brokers to take "
        "over: their product.",
    )  # fmt: skip
    controlled_shutdown_backoff_ms: int = setting(
        "controlled.shutdown.retry.backoff.ms", default=5 * SECOND_MS, kind=Type.LONG, unit="milliseconds", at_least=1,
        doc="See `controlled.shutdown.max.retries`.",
    )  # fmt: skip
    shutdown_ms: int = setting(
        "ottla.shutdown.max.ms", default=10 * SECOND_MS, kind=Type.LONG, unit="milliseconds", at_least=0,
        doc="Maximum time that a shutdown waits for requests in progress before it closes their "
        "connections.",
    )  # fmt: skip
