"""Holds the settings of brokers in a test, besides those that the test gives."""

from __future__ import annotations

from collections.abc import Mapping

_OPTIONS: Mapping[str, str] = {
    "auto.create.topics.enable": "true",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.enable": "true",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "share.coordinator.state.topic.num.partitions": "1",
    "ottla.shutdown.max.ms": "0",  # clients of a test that is over get no answers any more
    "connections.max.idle.ms": "-1",  # clients stay connected when the time is moved
    "replica.socket.timeout.ms": str(24 * 3_600_000),  # and so do brokers
    "replica.fetch.backoff.ms": "20",
    "max.incremental.fetch.session.cache.slots": "0",  # each Fetch names all its partitions: faults and tests see them
    # What is due is done within a second, so that moving the time by seconds has an effect.
    "log.cleaner.backoff.ms": "1000",
    "offsets.retention.check.interval.ms": "1000",
    "log.segment.delete.delay.ms": "0",
}

_OF_THE_KIT: Mapping[str, str] = {
    "listeners": "port=",
    "node.id": "brokers=, whose ids begin with 1",
    "broker.id": "brokers=, whose ids begin with 1",
    "log.dirs": "data=",
    "log.dir": "data=",
}


def check_options(options: Mapping[str, str]) -> None:
    """Raise ValueError for a setting that the kit decides by itself."""
    for key in options.keys() & _OF_THE_KIT.keys():
        raise ValueError(f"options have {key}: use {_OF_THE_KIT[key]} instead")


def options_of(brokers: int) -> dict[str, str]:
    """Return the settings of each of so many brokers. Internal topics have a replica on each, three at most."""
    factor, in_sync = str(min(brokers, 3)), str(min(brokers, 2))
    return {
        **_OPTIONS,
        "offsets.topic.replication.factor": factor,
        "transaction.state.log.replication.factor": factor,
        "transaction.state.log.min.isr": in_sync,
        "share.coordinator.state.topic.replication.factor": factor,
        "share.coordinator.state.topic.min.isr": in_sync,
    }
