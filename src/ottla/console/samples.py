"""Samples end offsets, sizes and lags again and again, into a ring of bounded size, for the plots over time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from array import array
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Final

from ottla.client.cluster import Cluster
from ottla.client.errors import CannotConnect
from ottla.client.offsets import LATEST, list_offsets
from ottla.client.offsets_of_groups import Offsets, offsets_of_groups
from ottla.console.snapshot import Snapshot, partitions_of
from ottla.core.clock import Clock, SystemClock
from ottla.core.errors import KafkaError
from ottla.core.ids import TopicPartition

log = logging.getLogger(__name__)

EVERY_S: Final = 10.0
SAMPLES_MAX: Final = 360
"""An hour of them."""
SERIES_MAX: Final = 6000
_PARTITIONS_PER_REQUEST: Final = 500
_REST: Final = 30
"""The pause after a sample, in multiples of the time that it took."""
_UNKNOWN: Final = -1


class Ring:
    """The last values of named series, at common times."""

    def __init__(self, length: int = SAMPLES_MAX, *, series_max: int = SERIES_MAX) -> None:
        self._length, self._series_max = length, series_max
        self._times = array("q")
        self._values: dict[str, array[int]] = {}

    def __len__(self) -> int:
        return len(self._times)

    def add(self, wall_ms: int, values: Mapping[str, int]) -> None:
        """Add a value to each series; a series that has none now gets a gap. The oldest sample goes."""
        count = len(self._times)
        self._times.append(wall_ms)
        for name in [name for name in self._values if name not in values]:
            self._values[name].append(_UNKNOWN)
        for name, value in values.items():
            series = self._values.get(name)
            if series is None:
                if len(self._values) >= self._series_max:
                    continue
                series = self._values[name] = array("q", [_UNKNOWN]) * count
            series.append(value)
        if len(self._times) > self._length:
            del self._times[0]
            for name in list(self._values):
                del self._values[name][0]
                if max(self._values[name]) == _UNKNOWN:
                    del self._values[name]

    def series(self, name: str) -> tuple[list[int], list[int | None]]:
        """Return the times in milliseconds and the values of a series."""
        values = self._values.get(name)
        if values is None:
            return [], []
        return list(self._times), [None if value == _UNKNOWN else value for value in values]

    def rates(self, name: str) -> tuple[list[int], list[float | None]]:
        """Return the increase of a series in each second, from sample to sample; a decrease is a gap."""
        times, values = self.series(name)
        rates: list[float | None] = []
        for at in range(1, len(values)):
            before, now, elapsed_ms = values[at - 1], values[at], times[at] - times[at - 1]
            known = before is not None and now is not None and now >= before and elapsed_ms > 0
            rates.append((now - before) * 1000 / elapsed_ms if known else None)  # type: ignore[operator]
        return times[1:], rates

    def rate_now(self, name: str) -> float | None:
        """Return the last rate that is known of a series."""
        return next((rate for rate in reversed(self.rates(name)[1]) if rate is not None), None)


def topic_records(topic: str) -> str:
    """Return the name of the series of a topic's end offsets, summed over its partitions."""
    return f"topic-records/{topic}"


def topic_bytes(topic: str) -> str:
    """Return the name of the series of a topic's bytes, summed over its replicas."""
    return f"topic-bytes/{topic}"


def group_lag(group: str) -> str:
    """Return the name of the series of a group's lag."""
    return f"group-lag/{group}"


CLUSTER_RECORDS, CLUSTER_BYTES = "cluster-records", "cluster-bytes"


class Sampler:
    """Takes the samples, as long as it runs; and keeps the last committed offsets of all groups and the last ends."""

    def __init__(
        self,
        cluster: Callable[[], Awaitable[Cluster]],
        snapshot: Callable[[], Awaitable[Snapshot]],
        *,
        every_s: float = EVERY_S,
        clock: Clock | None = None,
    ) -> None:
        self._cluster, self._snapshot, self._every_s = cluster, snapshot, every_s
        self._clock = clock or SystemClock()
        self.ring = Ring()
        self.ends: Mapping[TopicPartition, int] = {}
        self.committed: Mapping[str, Offsets] = {}
        self._running: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin, if it does not run yet."""
        if self._running is None or self._running.done():
            self._running = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """End, with the sample under way."""
        if self._running is not None:
            self._running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._running

    async def _run(self) -> None:
        while True:
            began = self._clock.monotonic()
            try:
                await self.sample()
            except (KafkaError, CannotConnect) as error:
                log.debug("no sample was taken: %s", error)
            except Exception:
                log.exception("a sample failed")
            took_s = self._clock.monotonic() - began
            await asyncio.sleep(max(self._every_s, _REST * took_s))

    async def sample(self) -> None:
        """Take one sample now. Raises KafkaError or CannotConnect."""
        snapshot, cluster = await self._snapshot(), await self._cluster()
        led = [tp for topic in snapshot.topics.values() for tp in partitions_of(topic)]
        self.ends = ends = await _end_offsets(cluster, led)
        self.committed = committed = await offsets_of_groups(cluster, snapshot.groups.values())
        records: dict[str, int] = {}
        for tp, end in ends.items():
            records[tp.topic] = records.get(tp.topic, 0) + end
        values = {CLUSTER_RECORDS: sum(records.values()), CLUSTER_BYTES: sum(snapshot.sizes.values())}
        values |= {group_lag(name): lag for name, offsets in committed.items() if (lag := lag_of(offsets, ends)) >= 0}
        values |= {topic_records(name): count for name, count in records.items()}
        values |= {topic_bytes(name): size_bytes for name, size_bytes in snapshot.sizes.items()}
        self.ring.add(self._clock.wall_ms(), values)

    def lag(self, group: str) -> int | None:
        """Return the lag of a group in the last sample; None if it has committed nothing."""
        offsets = self.committed.get(group)
        lag = _UNKNOWN if offsets is None else lag_of(offsets, self.ends)
        return None if lag < 0 else lag

    def groups_of(self, topic: str) -> dict[str, Offsets]:
        """Return the groups that have committed offsets in a topic, with those."""
        groups = {}
        for group, offsets in self.committed.items():
            here = {tp: offset for tp, offset in offsets.items() if tp.topic == topic}
            if here:
                groups[group] = here
        return groups


def lag_of(offsets: Offsets, ends: Mapping[TopicPartition, int]) -> int:
    """Return the records from committed offsets up to the ends; -1 if there is none to compare.

    >>> tp = TopicPartition("t", 0)
    >>> lag_of({tp: 3}, {tp: 10}), lag_of({}, {tp: 10})
    (7, -1)
    """
    lags = [max(0, ends[tp] - offset) for tp, offset in offsets.items() if tp in ends]
    return sum(lags) if lags else _UNKNOWN


async def _end_offsets(cluster: Cluster, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
    """Return the high watermarks, some hundred partitions at a time: between them the loop serves pages."""
    asked, offsets = list(partitions), dict[TopicPartition, int]()
    for first in range(0, len(asked), _PARTITIONS_PER_REQUEST):
        some = asked[first : first + _PARTITIONS_PER_REQUEST]
        try:
            answers = await list_offsets(cluster, dict.fromkeys(some, LATEST))
        except KafkaError as error:
            log.debug("the ends of some partitions are unknown: %s", error)
            continue
        offsets |= {tp: answer.offset for tp, answer in answers.items()}
    return offsets
