"""Reads the last batches of a topic, to see how large producers make them."""

from __future__ import annotations

from ottla.client.cluster import Cluster
from ottla.client.offsets import by_topic
from ottla.core.files import FileRegion
from ottla.core.ids import NO_TOPIC_ID, TopicPartition
from ottla.diagnosis.facts import BatchSample, TopicFacts
from ottla.records.batch import CODEC_BITS, split
from ottla.wire.apis import ApiKey
from ottla.wire.hot.fetch import FIRST_WITH_TOPIC_IDS

SAMPLED_OFFSETS, SAMPLED_BYTES, SAMPLED_PARTITIONS = 200, 256 << 10, 8


async def sample_batches(cluster: Cluster, topic: TopicFacts) -> BatchSample:
    """Read the last batches of some partitions, those with the most records."""
    counts = {tp: end - topic.starts.get(tp, 0) for tp, end in topic.ends.items() if end > topic.starts.get(tp, 0)}
    chosen = sorted(counts, key=lambda tp: -counts[tp])[:SAMPLED_PARTITIONS]
    batches = records = size_bytes = uncompressed = 0
    for node_id, tps in (await cluster.by_leader(chosen)).items():
        for data in await _fetch(cluster, node_id, topic, tps):
            for _, header in split(data, partial_tail=True):
                batches += 1
                records += header.record_count
                size_bytes += header.size_bytes
                uncompressed += not header.attributes & CODEC_BITS
    return BatchSample(batches, records, size_bytes, uncompressed)


async def _fetch(
    cluster: Cluster, node_id: int, topic: TopicFacts, partitions: list[TopicPartition]
) -> list[bytes | bytearray | memoryview]:
    from ottla.wire.generated.fetch import FetchPartition, FetchRequest, FetchTopic

    topics = [
        FetchTopic(
            topic=name,
            topic_id=topic.info.topic_id,
            partitions=[
                FetchPartition(
                    partition=tp.partition,
                    fetch_offset=max(topic.starts.get(tp, 0), topic.ends[tp] - SAMPLED_OFFSETS),
                    partition_max_bytes=SAMPLED_BYTES,
                )
                for tp in tps
            ],
        )
        for name, tps in by_topic(partitions).items()
    ]
    ask = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=SAMPLED_BYTES * len(partitions), topics=topics)
    at_most = FIRST_WITH_TOPIC_IDS - 1 if topic.info.topic_id == NO_TOPIC_ID else None
    answer = await cluster.request(node_id, ApiKey.FETCH, ask, at_most=at_most)
    return [
        data.records
        for response in answer.responses
        for data in response.partitions
        if data.records and not isinstance(data.records, FileRegion)
    ]
