"""Declares the settings of events and of what counts as slow, and makes what they ask for."""

from __future__ import annotations

import asyncio

from ottla.core.clock import Clock
from ottla.core.events import EventLog
from ottla.core.settings import DAY_MS, Section, Type, setting

SLOW_REQUEST = "ottla.slow.request.ms"


class EventConfig(Section):
    """Holds how many events a broker keeps, where it writes them, and the form of the log."""

    events_max: int = setting(
        "ottla.events.max", default=1_000, kind=Type.INT, at_least=10, at_most=100_000,
        doc="Number of events of each kind that a broker keeps in memory (docs/why.md), and that wait for the topic.",
    )  # fmt: skip
    topic_enable: bool = setting(
        "ottla.events.topic.enable", default=False, kind=Type.BOOLEAN,
        doc="Whether events are written to the topic `__ottla_events` too. Clients cannot write to it.",
    )  # fmt: skip
    topic_partitions: int = setting(
        "ottla.events.topic.num.partitions", default=12, kind=Type.INT, at_least=1,
        doc="Number of partitions of `__ottla_events`. Each broker writes to one that it leads: there should be "
        "several for each broker.",
    )  # fmt: skip
    topic_replication_factor: int = setting(
        "ottla.events.topic.replication.factor", default=3, kind=Type.SHORT, at_least=1,
        doc="Number of replicas of `__ottla_events`. A broker alone has one.",
    )  # fmt: skip
    topic_retention_ms: int = setting(
        "ottla.events.topic.retention.ms", default=7 * DAY_MS, kind=Type.LONG, unit="milliseconds", at_least=-1,
        doc="How long events stay in `__ottla_events`, as it is created; -1 is for ever.",
    )  # fmt: skip
    log_format: str = setting(
        "ottla.log.format", default="text", kind=Type.STRING, choices=("text", "key-value", "json"),
        doc="Format of the lines of the log: text for people, key-value or json for programs. One record is one line "
        "in the last two, also with a traceback.",
    )  # fmt: skip
    slow_fsync_ms: int = setting(
        "ottla.slow.fsync.ms", default=1_000, kind=Type.LONG, unit="milliseconds", at_least=1,
        doc="A round of fsyncs of a log directory that takes so long is an event and a line in the log.",
    )  # fmt: skip
    slow_request_ms: int = setting(
        SLOW_REQUEST, default=1_000, kind=Type.LONG, unit="milliseconds", at_least=-1,
        doc="A request that takes so long from its arrival to its response is an event and a line in the log. Waits "
        "that a client asks for do not count: Fetch, ShareFetch, JoinGroup and SyncGroup. The default is in effect "
        "while metrics are served, since requests are timed then; where it is set, always. -1 turns it off.",
    )  # fmt: skip


def make_events(config: EventConfig, clock: Clock, node_id: int) -> EventLog:
    """Return the log of the events of a broker, for its event loop."""
    post = asyncio.get_running_loop().call_soon_threadsafe
    return EventLog(clock, node_id=node_id, events_max=config.events_max, post=post)
