"""Deletions that a kill interrupted are completed by the next start; directories of unknown topics are kept."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path, PurePath
from typing import Any

import pytest

from ottla.broker import config
from ottla.broker.broker import Broker
from ottla.broker.maintenance.topic_deletions import TopicDeletions
from ottla.broker.maintenance.unknown_directories import CannotDecide, unknown_directories
from ottla.broker.services import Services
from ottla.core.clock import SystemClock
from ottla.core.files import SystemFiles
from ottla.metadata_store import znodes
from ottla.metadata_store.store import MetadataStore

OPTIONS = {"listeners": "PLAINTEXT://127.0.0.1:0", "node.id": "1"}

Scenario = Callable[[Services, MetadataStore], Awaitable[None]]


class NoRenames:
    """Files on a disk where no directory of the topic can be renamed, as if the broker died before it could."""

    def __init__(self, topic: str) -> None:
        self._files, self._topic = SystemFiles(), topic

    def rename(self, old: PurePath, new: PurePath) -> None:
        if old.name.startswith(f"{self._topic}-"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(old))
        self._files.rename(old, new)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)


def live(path: Path, scenario: Scenario, files: Any = None) -> None:
    """Run a broker on `path`."""

    async def run() -> None:
        given, _ = config.read(file=None, environment={}, options=OPTIONS)
        broker = Broker(given, [path], clock=SystemClock(), files=files or SystemFiles())
        try:
            await broker.start()
            assert broker.services is not None
            assert broker._storage is not None
            await asyncio.wait_for(scenario(broker.services, broker._storage.store), 30)
        finally:
            await broker.stop()

    asyncio.run(run())


async def nothing(services: Services, store: MetadataStore) -> None:
    """Start and stop."""


async def create(services: Services, store: MetadataStore) -> None:
    del store
    await services.controller.create_topic("web", partitions=2)
    await services.controller.create_topic("kept", partitions=1)


def delete_and_die(path: Path) -> None:
    """Delete the topic in the metadata store, and die before a directory is renamed."""

    async def delete(services: Services, store: MetadataStore) -> None:
        del store
        assert await services.controller.delete_topics(["web"]) == [None]

    live(path, delete, NoRenames("web"))


def names(path: Path) -> set[str]:
    return {each.name for each in path.iterdir() if each.is_dir() and not each.name.endswith("-delete")}


def test_a_start_completes_the_deletions_that_were_begun(tmp_path: Path) -> None:
    live(tmp_path, create)
    delete_and_die(tmp_path)
    assert names(tmp_path) == {"web-0", "web-1", "kept-0"}

    async def check(services: Services, store: MetadataStore) -> None:
        assert names(tmp_path) == {"kept-0"}
        assert len(await store.children(znodes.DELETED_TOPICS)) == 1
        await TopicDeletions(store, services.replicas, services.node_id).remove_completed()
        assert not await store.children(znodes.DELETED_TOPICS)

    live(tmp_path, check)


def test_a_topic_of_the_same_name_does_not_get_the_records_of_a_deletion_that_was_begun(tmp_path: Path) -> None:
    live(tmp_path, create)
    delete_and_die(tmp_path)

    async def recreate(services: Services, store: MetadataStore) -> None:
        del store
        topic = await services.controller.create_topic("web", partitions=2)
        assert services.replicas.find("web", 0).log.topic_id == topic.topic_id

    live(tmp_path, recreate)
    assert names(tmp_path) == {"web-0", "web-1", "kept-0"}


def forget(path: Path, topic: str) -> None:
    """Make a topic unknown: its directories are moved away while it is deleted."""
    moved = [each for each in path.iterdir() if each.name.startswith(f"{topic}-")]
    for each in moved:
        each.rename(path.parent / each.name)

    async def delete(services: Services, store: MetadataStore) -> None:
        await services.controller.delete_topics([topic])
        await TopicDeletions(store, services.replicas, services.node_id).remove_completed()

    live(path, delete)
    for each in moved:
        (path.parent / each.name).rename(each)


def test_directories_of_unknown_topics_are_kept_and_reported_in_one_line_with_their_size(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "data"
    live(path, create)
    forget(path, "web")
    (path / "web-0" / "00000000000000000000.log").write_bytes(b"x" * 1000)

    with caplog.at_level(logging.WARNING):
        live(path, nothing)

    (line,) = [each.getMessage() for each in caplog.records if "does not know" in each.getMessage()]
    assert "are kept: 2 with " in line
    assert f"{path / 'web-1'} (" in line
    assert "ottla log remove-unknown" in line
    assert names(path) == {"web-0", "web-1", "kept-0"}


def test_an_unknown_directory_is_kept_under_another_name_when_its_name_is_needed(tmp_path: Path) -> None:
    path = tmp_path / "data"
    live(path, create)
    forget(path, "web")

    async def recreate(services: Services, store: MetadataStore) -> None:
        del store
        await services.controller.create_topic("web", partitions=1)
        services.replicas.find("web", 0)

    live(path, recreate)
    (aside,) = [name for name in names(path) if name.endswith("-stray")]
    assert aside.startswith("web-0.")
    live(path, nothing)
    assert aside in names(path)


def test_unknown_directories_are_listed_and_removed_on_request_alone(tmp_path: Path) -> None:
    path = tmp_path / "data"
    live(path, create)
    forget(path, "web")
    (path / f"kept-0.{'0' * 32}-stray").mkdir()

    found = unknown_directories(SystemFiles(), [path], remove=False)

    assert [(each.topic, each.partition) for each in found] == [("kept", 0), ("web", 0), ("web", 1)]
    assert len(names(path)) == 4
    assert unknown_directories(SystemFiles(), [path], remove=True) == found
    assert names(path) == {"kept-0"}
    live(path, nothing)


def test_unknown_directories_are_not_removed_beside_a_running_broker_or_without_the_metadata_store(
    tmp_path: Path,
) -> None:
    path = tmp_path / "data"

    async def check(services: Services, store: MetadataStore) -> None:
        del services, store
        with pytest.raises(CannotDecide, match="Stop its broker first"):
            await asyncio.to_thread(unknown_directories, SystemFiles(), [path], remove=True)

    live(path, check)
    (path / "ottla-metadata.db").rename(tmp_path / "away")
    with pytest.raises(CannotDecide, match="metadata store"):
        unknown_directories(SystemFiles(), [path], remove=True)
