"""Builds share groups from the records of `__consumer_offsets`; the last record of each key wins."""

from __future__ import annotations

from dataclasses import replace

from ottla.groups.modern.loading import LoadedModernGroup
from ottla.groups.modern.records import GroupMetadata, TargetMember, TargetMetadata
from ottla.groups.share.group import ShareGroup
from ottla.groups.share.records import (
    ShareCurrentAssignment,
    ShareMember,
    ShareRecordKey,
    ShareRecordType,
    ShareRecordValue,
    StatePartitions,
)


class LoadedShareGroup(LoadedModernGroup[ShareRecordKey, ShareRecordValue]):
    """Builds one share group."""

    def group(self) -> ShareGroup | None:
        """Return the group, or None if it is deleted. Its first event must be `Loaded`, which sets the timers."""
        metadata = self._values.get(ShareRecordKey(ShareRecordType.GROUP_METADATA, self._group_id))
        if not isinstance(metadata, GroupMetadata):
            return None
        group = ShareGroup(
            self._group_id, epoch=metadata.epoch, metadata_hash=metadata.metadata_hash, is_persisted=True
        )
        group.target_epoch = min(group.target_epoch, group.epoch)
        target = self._values.get(ShareRecordKey(ShareRecordType.TARGET_ASSIGNMENT_METADATA, self._group_id))
        if isinstance(target, TargetMetadata):
            group.target_epoch, group.target_wall_ms = min(target.epoch, group.epoch), target.wall_ms
        states = self._values.get(ShareRecordKey(ShareRecordType.STATE_PARTITION_METADATA, self._group_id))
        if isinstance(states, StatePartitions):
            group.initialized = {topic_id: indexes for topic_id, (_, indexes) in states.initialized.items()}
            group.names = {topic_id: name for topic_id, (name, _) in states.initialized.items()}
        for key, value in self._values.items():
            if isinstance(value, ShareMember):
                group.members[key.member_id] = self._with_current(value, group)
        for key, value in self._values.items():
            if isinstance(value, TargetMember) and key.member_id in group.members:
                group.target[key.member_id] = value.partitions
        return group

    def _with_current(self, member: ShareMember, group: ShareGroup) -> ShareMember:
        key = ShareRecordKey(ShareRecordType.CURRENT_MEMBER_ASSIGNMENT, self._group_id, member.member_id)
        current = self._values.get(key)
        if not isinstance(current, ShareCurrentAssignment):
            return member
        epoch = min(current.epoch, group.target_epoch)
        return replace(member, epoch=epoch, previous_epoch=current.previous_epoch, assigned=current.assigned)
