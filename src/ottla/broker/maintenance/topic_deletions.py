"""Removes the notes of deleted topics from the metadata store once no log of theirs is left.

DeleteTopics writes a note for each topic, with the brokers that have logs of it, in the commit that deletes it; then
each broker renames its directories and takes itself off the note. A broker that is killed in between, or was down,
finds the note at its next start and renames them then (`Replicas.handle_strays`). Directories of other topics that the
cluster does not know are kept.
"""

from __future__ import annotations

import uuid

from ottla.core.errors import StorageError
from ottla.metadata_store import znodes
from ottla.metadata_store.store import Delete, MetadataStore, Op, Put, SessionLost, StoreError
from ottla.replication.replicas import Replicas


class TopicDeletions:
    """Compares the notes with the logs on the disks."""

    def __init__(self, store: MetadataStore, replicas: Replicas, node_id: int) -> None:
        self._store, self._replicas, self._node_id = store, replicas, node_id

    async def remove_completed(self) -> None:
        """Remove this broker from the notes of topics of which it has no log, and notes without brokers.

        A full disk or another broker's change at the same moment keeps a note until the next call.
        """
        try:
            noted = await self._store.children(znodes.DELETED_TOPICS)
        except SessionLost:
            return  # until there is another session
        if not noted:
            return
        for topic_id in sorted(self._replicas.completed_deletions(znodes.decode_deleted_topic_ids(noted))):
            try:
                await self._remove(topic_id)
            except (StorageError, StoreError, znodes.MalformedNode):
                continue  # the store has logged it, or the note is read again at the next call; a malformed one stays

    async def _remove(self, topic_id: uuid.UUID) -> None:
        path = znodes.deleted_topic_path(topic_id)
        node = await self._store.get(path)
        if node is None:
            return
        deleted = znodes.decode_deleted_topic(path, node.value)
        others = tuple(each for each in deleted.brokers if each != self._node_id)
        if others and others == deleted.brokers:
            return
        text = znodes.encode_deleted_topic(deleted._replace(brokers=others))
        op: Op = Put(path, text, node.version) if others else Delete(path, node.version)
        await self._store.commit([op])
