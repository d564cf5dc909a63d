"""A start with many logs: its file operations are off the loop and in parallel, and an idle partition takes little memory."""

from __future__ import annotations

import asyncio
import gc
import threading
import tracemalloc
import uuid
from pathlib import Path, PurePath
from typing import Any, cast

import pytest

from ottla import compiled
from ottla.broker import config
from ottla.broker.startup.open_storage import OpenedStorage, open_storage
from ottla.core.clock import SystemClock
from ottla.core.files import File, FileSystem, SystemFiles
from ottla.core.ids import TopicPartition
from ottla.metadata_store.cluster_view import ClusterView, PartitionView, TopicView
from ottla.replication.replicas import Replicas
from ottla.storage.config import LogConfig
from ottla.storage.directories.log_directory import DirectoryInUse, LogDirectory
from ottla.storage.directories.log_manager import LogManager
from tests.support.storage import NOW_MS, batch

ID = uuid.UUID(int=7)
LOGS = 40
PATIENCE_S = 30.0


def directory_of(path: Path, count: int, *, is_clean: bool = True) -> None:
    """Fill a log directory as a broker leaves it."""
    directory = open_directory(path)
    for at in range(count):
        log = directory.create_log(TopicPartition("many", at), ID)
        log.append(batch(b"a"), leader_epoch=0, now_ms=NOW_MS)
        log.flush()
    directory.checkpoint()
    if is_clean:
        directory.close()
    else:  # as a process that was killed
        for log in directory.logs.values():
            log.close_files()
        directory.lock.release()


def open_directory(path: Path) -> LogDirectory:
    return LogDirectory.open(SystemFiles(), path, SystemClock(), LogConfig(), node_id=1, cluster_id="cluster")


class AroundFiles:
    """The system's files; a compiled class has no subclass here."""

    def __init__(self) -> None:
        self.files = SystemFiles()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.files, name)


class SpyFiles(AroundFiles):
    """Notes in which threads the files and directories of logs are used."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: dict[str, set[int]] = {}

    def note(self, what: str, path: PurePath) -> None:
        if path.name.startswith("many-") or path.parent.name.startswith("many-"):
            self.threads.setdefault(what, set()).add(threading.get_ident())

    def open(self, path: PurePath, *, create: bool = False) -> File:
        self.note("open", path)
        return self.files.open(path, create=create)

    def names_in(self, directory: PurePath) -> list[str]:
        self.note("names", directory)
        return self.files.names_in(directory)

    def size_of(self, path: PurePath) -> int:
        self.note("size", path)
        return self.files.size_of(path)

    def is_directory(self, path: PurePath) -> bool:
        self.note("is directory", path)
        return self.files.is_directory(path)

    def sync_directory(self, path: PurePath) -> None:
        self.note("sync directory", path)
        self.files.sync_directory(path)


async def opened(path: Path, files: AroundFiles) -> OpenedStorage:
    given, _ = config.read(file=None, environment={}, options={})
    return await open_storage(
        config.of_directories(given, [path]), [path], clock=SystemClock(), files=cast("FileSystem", files)
    )


async def close(storage: OpenedStorage) -> None:
    storage.directories.close()
    await storage.store.close()


@pytest.mark.parametrize("is_clean", [True, False])
async def test_no_file_of_a_log_is_used_on_the_loop_while_the_logs_are_loaded(tmp_path: Path, is_clean: bool) -> None:
    directory_of(tmp_path, LOGS, is_clean=is_clean)
    files = SpyFiles()
    storage = await opened(tmp_path, files)
    used = {what: set(threads) for what, threads in files.threads.items()}
    assert len(storage.directories.opened[0].logs) == LOGS
    await close(storage)
    assert {"open", "names", "size", "is directory"} <= used.keys()
    assert threading.get_ident() not in set.union(*used.values())


async def test_all_logs_are_loaded_however_many_threads_load_them(tmp_path: Path) -> None:
    directory_of(tmp_path, LOGS)
    storage = await opened(tmp_path, AroundFiles())
    assert sorted(log.topic_partition.partition for _, log in storage.directories.logs()) == list(range(LOGS))
    await close(storage)


class HeldFiles(AroundFiles):
    """Has the listing of a log's directory wait until the loop releases it."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.released = threading.Event(), threading.Event()

    def names_in(self, directory: PurePath) -> list[str]:
        if directory.name.startswith("many-"):
            self.begun.set()
            assert self.released.wait(PATIENCE_S)
        return self.files.names_in(directory)


async def test_the_loop_turns_while_logs_are_loaded(tmp_path: Path) -> None:
    directory_of(tmp_path, 3)
    files = HeldFiles()
    opening = asyncio.ensure_future(opened(tmp_path, files))
    assert await asyncio.to_thread(files.begun.wait, PATIENCE_S)
    assert not opening.done()
    files.released.set()
    await close(await opening)


async def test_a_start_that_is_stopped_while_logs_are_loaded_leaves_the_directory_free(tmp_path: Path) -> None:
    directory_of(tmp_path, 3)
    files = HeldFiles()
    opening = asyncio.ensure_future(opened(tmp_path, files))
    assert await asyncio.to_thread(files.begun.wait, PATIENCE_S)
    with pytest.raises(DirectoryInUse):
        open_directory(tmp_path)
    opening.cancel()
    asyncio.get_running_loop().call_soon(files.released.set)
    with pytest.raises(asyncio.CancelledError):
        await opening
    directory = open_directory(tmp_path)
    assert directory.clean_broker_epoch is not None, "it was closed, not dropped"
    directory.close()


class FailingFiles(AroundFiles):
    """Refuses to list the directory of one log."""

    def names_in(self, directory: PurePath) -> list[str]:
        if directory.name == "many-1":
            raise PermissionError(13, "Permission denied", str(directory))
        return self.files.names_in(directory)


def test_an_error_in_a_thread_is_that_of_the_directory(tmp_path: Path) -> None:
    directory_of(tmp_path, 3)
    with pytest.raises(PermissionError, match="many-1"):
        LogDirectory.open(
            FailingFiles(), tmp_path, SystemClock(), LogConfig(), node_id=1, cluster_id="cluster", threads=4
        )
    open_directory(tmp_path).close()  # the lock was released


# ---- Memory

BYTES_MAX = {"compiled": 3850, "plain": 3900}
"""Of a partition that is led, alone and idle: its log, its replica, and what the start keeps of its files."""


async def test_an_idle_partition_takes_little_memory(tmp_path: Path) -> None:
    few, many = tmp_path / "few", tmp_path / "many"
    directory_of(few, 50)
    directory_of(many, 250)
    await memory_of(few, 50)  # what is imported and cached once
    taken = await memory_of(many, 250) - await memory_of(few, 50)
    assert taken / 200 <= BYTES_MAX["plain" if compiled.is_plain() else "compiled"]


async def memory_of(path: Path, count: int) -> int:
    """Return the bytes that the replicas of a directory take."""
    gc.collect()
    tracemalloc.start(1)
    try:
        directories = LogManager.open(
            SystemFiles(), [path], SystemClock(), LogConfig(), node_id=1, cluster_id="cluster"
        )
        replicas = Replicas(directories, node_id=1, defaults=LogConfig(), clock=SystemClock())
        views = tuple(PartitionView(at, 1, 1, (1,), (1,), 1) for at in range(count))
        topic = TopicView("many", ID, views, {}, 1, 1)
        applying = replicas.follow(ClusterView(), ClusterView(number=1).with_topics({"many": topic}))
        if applying is not None:
            await applying
        assert len(replicas.partitions) == count
        gc.collect()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    await replicas.close()
    return taken
