"""Tests the administration of share groups against scripted responses of the coordinator."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from ottla.client import groups, share_groups
from ottla.core.errors import ErrorCode, GroupIdNotFound, KafkaError
from ottla.core.ids import TopicPartition
from ottla.wire.apis import ApiKey
from ottla.wire.generated import alter_share_group_offsets as alter
from ottla.wire.generated import consumer_group_describe as cgd
from ottla.wire.generated import delete_share_group_offsets as delete
from ottla.wire.generated import describe_groups as dg
from ottla.wire.generated import describe_share_group_offsets as offsets
from ottla.wire.generated import share_group_describe as sgd

NOT_FOUND = ErrorCode.GROUP_ID_NOT_FOUND
WEB = TopicPartition("web", 1)


class ScriptedCluster:
    """Answers each API with what the test gives."""

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.asked: list[Any] = []

    async def coordinator(self, key: str) -> int:
        return 1

    async def request(self, node_id: int, key: ApiKey, request: Any) -> Any:
        self.asked.append(request)
        return self.answers[key.name.lower()]

    async def retrying(self, attempt: Callable[[], Awaitable[Any]]) -> Any:
        return await attempt()


def run(work: Awaitable[Any]) -> Any:
    async def main() -> Any:
        return await work

    return asyncio.run(main())


def described(error: int = 0) -> ScriptedCluster:
    assigned = sgd.TopicPartitions(topic_name="web", partitions=[1])
    member = sgd.Member(
        member_id="m", client_id="c", client_host="/h", assignment=sgd.Assignment(topic_partitions=[assigned])
    )
    share = sgd.DescribedGroup(error_code=error, group_state="Stable", assignor_name="simple", members=[member])
    return ScriptedCluster(
        describe_groups=dg.DescribeGroupsResponse(groups=[dg.DescribedGroup(error_code=NOT_FOUND)]),
        consumer_group_describe=cgd.ConsumerGroupDescribeResponse(groups=[cgd.DescribedGroup(error_code=NOT_FOUND)]),
        share_group_describe=sgd.ShareGroupDescribeResponse(groups=[share]),
    )


def test_a_share_group_is_found_after_the_other_types() -> None:
    cluster: Any = described()
    group = run(groups.describe_group(cluster, "queue"))
    assert (group.kind, group.state, group.protocol) == ("share", "Stable", "simple")
    assert [(member.member_id, member.partitions) for member in group.members] == [("m", (WEB,))]
    with pytest.raises(GroupIdNotFound):
        run(groups.describe_group(described(NOT_FOUND), "queue"))  # type: ignore[arg-type]


def test_start_offsets_are_read_altered_and_deleted() -> None:
    found = [
        offsets.DescribeShareGroupOffsetsResponsePartition(partition_index=1, start_offset=7, leader_epoch=2),
        offsets.DescribeShareGroupOffsetsResponsePartition(partition_index=2, start_offset=-1),
    ]
    topic = offsets.DescribeShareGroupOffsetsResponseTopic(topic_name="web", partitions=found)
    cluster: Any = ScriptedCluster(
        describe_share_group_offsets=offsets.DescribeShareGroupOffsetsResponse(
            groups=[offsets.DescribeShareGroupOffsetsResponseGroup(topics=[topic])]
        ),
        alter_share_group_offsets=alter.AlterShareGroupOffsetsResponse(error_code=ErrorCode.NON_EMPTY_GROUP),
        delete_share_group_offsets=delete.DeleteShareGroupOffsetsResponse(
            responses=[delete.DeleteShareGroupOffsetsResponseTopic(topic_name="web")]
        ),
    )
    read = run(share_groups.start_offsets(cluster, "queue"))
    assert {where: found.offset for where, found in read.items()} == {WEB: 7}
    with pytest.raises(KafkaError) as failure:
        run(share_groups.alter_start_offsets(cluster, "queue", {WEB: 3}))
    assert failure.value.code is ErrorCode.NON_EMPTY_GROUP
    (changed,) = cluster.asked[-1].topics
    assert (changed.topic_name, changed.partitions[0].start_offset) == ("web", 3)
    outcomes = run(share_groups.delete_start_offsets(cluster, "queue", ["web"]))
    assert [(outcome.name, outcome.error) for outcome in outcomes] == [("web", None)]
