"""Builds consumer groups from the records of `__consumer_offsets`; the last record of each key wins."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from uuid import UUID

from ottla.groups.consumer.group import ConsumerGroup
from ottla.groups.consumer.member import AssignedPartitions, ConsumerMember
from ottla.groups.consumer.records import (
    ConsumerCurrentAssignment,
    ConsumerRecordKey,
    ConsumerRecordType,
    ConsumerRecordValue,
    ResolvedRegex,
    TopicsMetadata,
)
from ottla.groups.modern.loading import LoadedModernGroup
from ottla.groups.modern.records import GroupMetadata, TargetMember, TargetMetadata

log = logging.getLogger(__name__)


class LoadedConsumerGroup(LoadedModernGroup[ConsumerRecordKey, ConsumerRecordValue]):
    """Builds one consumer group."""

    def group(self) -> ConsumerGroup | None:
        """Return the group, or None if it is deleted. Its first event must be `Loaded`, which sets the timers."""
        metadata = self._values.get(ConsumerRecordKey(ConsumerRecordType.GROUP_METADATA, self._group_id))
        if not isinstance(metadata, GroupMetadata):
            return None
        group = ConsumerGroup(self._group_id, epoch=metadata.epoch, metadata_hash=metadata.metadata_hash)
        targets: dict[str, TargetMember] = {}
        currents: dict[str, ConsumerCurrentAssignment] = {}
        members: dict[str, ConsumerMember] = {}
        regexes: dict[str, ResolvedRegex] = {}
        for key, value in self._values.items():
            match value:
                case ConsumerMember():
                    members[key.name] = value
                case TargetMember():
                    targets[key.name] = value
                case ConsumerCurrentAssignment():
                    currents[key.name] = value
                case TargetMetadata(epoch, wall_ms):
                    group.target_epoch, group.target_wall_ms = min(epoch, group.epoch), wall_ms
                case ResolvedRegex():
                    regexes[key.name] = value._replace(version=0)  # the image of an older process
                case TopicsMetadata():
                    group.has_partition_metadata = True
                case _:
                    pass
        for member_id, member in members.items():
            current = currents.get(member_id)
            group.put(member if current is None else _with_current(group, member, current))
        group.target = {name: target.partitions for name, target in targets.items() if name in members}
        subscribed = group.subscribed_regexes()
        group.regexes = {regex: resolved for regex, resolved in regexes.items() if regex in subscribed}
        return group


def _with_current(group: ConsumerGroup, member: ConsumerMember, current: ConsumerCurrentAssignment) -> ConsumerMember:
    return replace(
        member,
        epoch=min(current.epoch, group.epoch),
        previous_epoch=current.previous_epoch,
        state=current.state,
        assigned=_free(group, member.member_id, current.assigned),
        pending_revocation=_free(group, member.member_id, current.pending_revocation),
    )


def _free(group: ConsumerGroup, member_id: str, partitions: AssignedPartitions) -> AssignedPartitions:
    """Leave out partitions that another member has too, which only a log with missing records can report."""
    found: dict[UUID, Mapping[int, int]] = {}
    for topic_id, indexes in partitions.items():
        free = {index: epoch for index, epoch in indexes.items() if not group.is_owned(topic_id, index)}
        if len(free) < len(indexes):
            log.warning(
                "group %s: member %s loses partitions of topic %s that another member has",
                group.group_id,
                member_id,
                topic_id,
            )
        if free:
            found[topic_id] = free
    return found
