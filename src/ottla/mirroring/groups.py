"""Copies the committed offsets of groups to the target cluster, translated to the offsets of the copies.

An offset is only ever moved forward, and only in a group that has no members in the target cluster: consumers that have
moved there commit their own.
"""

from __future__ import annotations

import fnmatch
import logging
from collections.abc import Mapping

from ottla.client.cluster import Cluster
from ottla.client.groups import commit_offsets, committed_offsets, list_groups
from ottla.client.offsets import beginning_offsets
from ottla.core.errors import GroupIdNotFound, IllegalGeneration, KafkaError, UnknownMemberId
from ottla.core.ids import TopicPartition
from ottla.mirroring.topics import OWN_PREFIX
from ottla.mirroring.translation import OffsetTranslation

log = logging.getLogger(__name__)

_HAS_MEMBERS = (UnknownMemberId, IllegalGeneration)
_KINDS = frozenset({"classic", "consumer", ""})  # empty: the broker is too old to report it


async def copy_group_offsets(
    source: Cluster,
    target: Cluster,
    *,
    patterns: tuple[str, ...],
    copies: Mapping[TopicPartition, TopicPartition],
    translations: Mapping[TopicPartition, OffsetTranslation],
) -> int:
    """Copy the offsets of the groups that match; `copies` maps partitions of the source to those of their copies.

    Returns the number of offsets written. A group that fails is logged, the others are copied.
    """
    written = 0
    starts: dict[TopicPartition, int] = {}
    for group in await list_groups(source):
        name = group.group_id
        if group.kind not in _KINDS or name.startswith(OWN_PREFIX):
            continue
        if not any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
            continue
        try:
            wanted = await _translated(source, target, name, copies, translations, starts)
            if wanted:
                await commit_offsets(target, name, wanted)
                written += len(wanted)
        except _HAS_MEMBERS:
            log.debug("group %s has members in the target cluster: its offsets are its own", name)
        except KafkaError as error:
            log.warning("the offsets of group %s were not copied: %s", name, error.message)
    return written


async def _translated(
    source: Cluster,
    target: Cluster,
    group: str,
    copies: Mapping[TopicPartition, TopicPartition],
    translations: Mapping[TopicPartition, OffsetTranslation],
    starts: dict[TopicPartition, int],
) -> dict[TopicPartition, int]:
    """Return the offsets to commit in the target: those that lie beyond what the group has there."""
    committed = await committed_offsets(source, group)
    try:
        present = await committed_offsets(target, group)
    except GroupIdNotFound:
        present = {}
    wanted = {}
    for tp, offset in committed.items():
        copy = copies.get(tp)
        translation = translations.get(copy) if copy is not None else None
        if copy is None or translation is None:
            continue
        found = translation.to_target(offset.offset)
        if found is None:
            if copy not in starts:
                starts |= await beginning_offsets(target, [copy])
            found = starts[copy]
        if copy not in present or present[copy].offset < found:
            wanted[copy] = found
    return wanted
