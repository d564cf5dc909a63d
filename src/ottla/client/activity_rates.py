"""Computes rates between two snapshots of a cluster: of topics, partitions, groups, clients, brokers and APIs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ottla.client import broker_metrics as metrics
from ottla.client.activity import (
    Activity,
    ApiActivity,
    BrokerActivity,
    ClientActivity,
    GroupActivity,
    PartitionActivity,
    Snapshot,
    TopicActivity,
)
from ottla.client.broker_metrics import BrokerPage
from ottla.client.group_lag import GroupLag
from ottla.core.ids import TopicPartition

_PARTITIONS_MAX = 100


def activity_between(before: Snapshot, after: Snapshot) -> Activity:
    """Compute the rates between two snapshots. What is not in both has no rate."""
    seconds = max(after.at_s - before.at_s, 1e-3)
    topics = _topics(before, after, seconds)
    groups, clients = list[GroupActivity](), list[ClientActivity]()
    for name, lag in after.groups.items():
        earlier = before.groups.get(name)
        read = {} if earlier is None else _differences(_positions(earlier), _positions(lag))
        written = {} if earlier is None else _differences(_ends(earlier), _ends(lag))
        groups.append(
            GroupActivity(
                group=name,
                state=lag.group.state,
                members=len(lag.group.members),
                read_per_s=sum(read.values()) / seconds,
                written_per_s=sum(written.values()) / seconds,
                lag=lag.lag,
                lag_change=None if earlier is None or earlier.lag is None or lag.lag is None else lag.lag - earlier.lag,
                lag_s=after.lag_s.get(name),
            )
        )
        clients += [
            ClientActivity(
                client=member.client_id,
                host=member.client_host.lstrip("/"),
                group=name,
                partitions=len(member.partitions),
                read_per_s=sum(read.get(tp, 0) for tp in member.partitions) / seconds,
            )
            for member in lag.group.members
        ]
    return Activity(
        seconds=seconds,
        wall_ms=after.wall_ms,
        brokers=after.brokers,
        topics=topics,
        groups=sorted(groups, key=lambda group: (-group.read_per_s, -(group.lag or 0), group.group)),
        clients=sorted(clients, key=lambda client: (-client.read_per_s, client.client, client.host)),
        partitions=_partitions(before, after, seconds),
        broker_activity=_brokers(before, after, seconds),
        apis=_apis(before, after, seconds),
    )


def _topics(before: Snapshot, after: Snapshot, seconds: float) -> list[TopicActivity]:
    by_topic: dict[str, list[TopicPartition]] = {}
    for tp in after.ends:
        by_topic.setdefault(tp.topic, []).append(tp)
    written, grown, sizes = _differences(before.ends, after.ends), _grown(before, after), _led_sizes(after)
    activities = []
    for topic, tps in by_topic.items():
        counts = [written.get(tp, 0) for tp in tps]
        total, known = sum(counts), [sizes[tp] for tp in tps if tp in sizes]
        activities.append(
            TopicActivity(
                topic,
                len(tps),
                total / seconds,
                max(counts) / total if total else None,
                _rate([grown[tp] for tp in tps if tp in grown], seconds),
                sum(known) if known else None,
            )
        )
    return sorted(activities, key=lambda topic: (-topic.written_per_s, -(topic.bytes_per_s or 0), topic.topic))


def _partitions(before: Snapshot, after: Snapshot, seconds: float) -> list[PartitionActivity]:
    grown = _grown(before, after)
    written = [(count, tp) for tp, count in _differences(before.ends, after.ends).items() if count]
    return [
        PartitionActivity(
            tp.topic,
            tp.partition,
            after.leaders.get(tp, -1),
            count / seconds,
            grown[tp] / seconds if tp in grown else None,
        )
        for count, tp in sorted(written, key=lambda found: (-found[0], found[1]))[:_PARTITIONS_MAX]
    ]


def _brokers(before: Snapshot, after: Snapshot, seconds: float) -> list[BrokerActivity]:
    written, grown = _differences(before.ends, after.ends), _grown(before, after)
    led: dict[int, list[TopicPartition]] = {}
    for tp, leader in after.leaders.items():
        led.setdefault(leader, []).append(tp)
    activities = []
    for node in after.nodes:
        tps = led.get(node.node_id, [])
        page, earlier = after.pages.pages.get(node.node_id), before.pages.pages.get(node.node_id)

        def rate(name: str, page: BrokerPage | None = page, earlier: BrokerPage | None = earlier) -> float | None:
            difference = _increase(earlier, page, name)
            return None if difference is None else difference / seconds

        measured = _increase(earlier, page, metrics.LOOP_MEASURED)
        late_s = _increase(earlier, page, metrics.LOOP_DELAY)
        stalls = _increase(earlier, page, metrics.LOOP_STALLS)
        activities.append(
            BrokerActivity(
                broker=node.node_id,
                address=str(node.address),
                leaders=len(tps),
                written_per_s=sum(written.get(tp, 0) for tp in tps) / seconds,
                bytes_per_s=_rate([grown[tp] for tp in tps if tp in grown], seconds),
                bytes_out_per_s=rate(metrics.BYTES_OUT),
                requests_per_s=rate(metrics.REQUESTS),
                processor=rate(metrics.PROCESSOR),
                loop_delay_ms=1000 * late_s / measured if measured and late_s is not None else None,
                loop_stalls=None if stalls is None else int(stalls),
                memory_bytes=None if page is None else page.total(metrics.MEMORY),
                connections=None if page is None else page.total(metrics.CONNECTIONS),
                unread=after.pages.unread.get(node.node_id, ""),
            )
        )
    return sorted(activities, key=lambda broker: (-broker.written_per_s, broker.broker))


def _apis(before: Snapshot, after: Snapshot, seconds: float) -> list[ApiActivity]:
    requests = _increases(before, after, metrics.REQUESTS)
    sizes = _increases(before, after, metrics.REQUEST_BYTES)
    times = _increases(before, after, metrics.REQUEST_SECONDS)
    return [
        ApiActivity(
            api, count / seconds, sizes.get(api, 0.0) / seconds, 1000 * times[api] / count if api in times else None
        )
        for api, count in sorted(requests.items(), key=lambda found: (-found[1], found[0]))
        if count
    ]


def _increases(before: Snapshot, after: Snapshot, name: str) -> dict[str, float]:
    """Return by how much a counter has grown by API, over the brokers whose pages are in both snapshots."""
    sums: dict[str, float] = {}
    for node_id, page in after.pages.pages.items():
        earlier = before.pages.pages.get(node_id)
        if earlier is None:
            continue
        old = earlier.by(name, "request")
        for api, value in page.by(name, "request").items():
            sums[api] = sums.get(api, 0.0) + max(0.0, value - old.get(api, 0.0))
    return sums


def _increase(before: BrokerPage | None, after: BrokerPage | None, name: str) -> float | None:
    """Return by how much a counter has grown; None where it is not in both pages."""
    old, new = (None if page is None else _whole(page, name) for page in (before, after))
    return None if old is None or new is None else max(0.0, new - old)


def _whole(page: BrokerPage, name: str) -> float | None:
    """Return the sum of a counter: a series without `topic` counts all topics."""
    samples = [sample for sample in page.samples.get(name, ()) if "topic" not in sample.labels]
    return sum(sample.value for sample in samples) if samples else None


def _led_sizes(snapshot: Snapshot) -> dict[TopicPartition, int]:
    """Return the sizes of the leaders' logs."""
    return {
        tp: snapshot.sizes[leader][tp]
        for tp, leader in snapshot.leaders.items()
        if leader in snapshot.sizes and tp in snapshot.sizes[leader]
    }


def _grown(before: Snapshot, after: Snapshot) -> dict[TopicPartition, int]:
    """Return by how many bytes the log of each leader has grown; what retention removes meanwhile is missing there."""
    same = {tp for tp, leader in after.leaders.items() if before.leaders.get(tp) == leader}
    return {tp: size for tp, size in _differences(_led_sizes(before), _led_sizes(after)).items() if tp in same}


def _rate(amounts: Sequence[int], seconds: float) -> float | None:
    return sum(amounts) / seconds if amounts else None


def _positions(lag: GroupLag) -> dict[TopicPartition, int]:
    return {tp: lag.committed[tp].offset for tp in lag.partitions if tp in lag.committed}


def _ends(lag: GroupLag) -> dict[TopicPartition, int]:
    return {tp: lag.bounds[tp].end_offset for tp in lag.partitions if tp in lag.bounds}


def _differences(
    before: Mapping[TopicPartition, int], after: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int]:
    """Return how far each partition moved; one that moved back (a seek, a topic created again) did not move."""
    return {tp: max(0, at - before[tp]) for tp, at in after.items() if tp in before}
