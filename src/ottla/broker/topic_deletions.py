"""Removes the notes of deleted topics from the metadata store once no log of theirs is left.

DeleteTopics writes a note for each topic in the commit that deletes it; then the directories are renamed. A broker that
is killed in between finds the note at its next start and renames them then (`Replicas.handle_strays`). Directories of
other topics that the cluster does not know are kept.
"""

from __future__ import annotations

from ottla.coordination import layout
from ottla.coordination.store import Delete, MetadataStore
from ottla.core.errors import StorageError
from ottla.replication.replicas import Replicas


class TopicDeletions:
    """Compares the notes with the logs on the disks."""

    def __init__(self, store: MetadataStore, replicas: Replicas) -> None:
        self._store, self._replicas = store, replicas

    async def remove_completed(self) -> None:
        """Remove the notes of the topics that have no log left. A full disk keeps them until the next call."""
        noted = await self._store.children(layout.DELETED_TOPICS)
        if not noted:
            return
        done = self._replicas.completed_deletions(layout.decode_deleted_topic_ids(noted))
        if done:
            try:
                await self._store.commit([Delete(layout.deleted_topic_path(each)) for each in done])
            except StorageError:
                return  # the store has logged it
