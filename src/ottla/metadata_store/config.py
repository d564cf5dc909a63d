"""Declares the settings of the connection to ZooKeeper."""

from __future__ import annotations

from ottla.core.settings import INT_MAX, SECOND_MS, Section, Type, setting


class ZooKeeperConfig(Section):
    """Holds the addresses of ZooKeeper and the timeouts."""

    connect: str = setting(
        "zookeeper.connect", default="", kind=Type.STRING,
        doc="The ZooKeeper servers of the cluster, `host:port,host:port`, and optionally the path below which it keeps "
            "its metadata, such as `/ottla`. Empty means that this broker is the whole cluster, with a metadata store "
            "of its own.",
    )  # fmt: skip
    session_timeout_ms: int = setting(
        "zookeeper.session.timeout.ms", default=18 * SECOND_MS, kind=Type.INT, unit="milliseconds", at_least=1,
        at_most=INT_MAX,
        doc="A broker of which ZooKeeper hears nothing for this time is considered dead, and others lead its "
            "partitions. ZooKeeper bounds it to 2 to 20 of its own ticks.",
    )  # fmt: skip
    connection_timeout_ms: int = setting(
        "zookeeper.connection.timeout.ms", default=18 * SECOND_MS, kind=Type.INT, unit="milliseconds", at_least=1,
        at_most=INT_MAX,
        doc="The time in which a starting broker must have connected to ZooKeeper.",
    )  # fmt: skip
