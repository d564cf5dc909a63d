"""Starts with a corrupt, missing or foreign `meta.properties`, and without the metadata store."""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path

import pytest

from ottla.broker import config
from ottla.broker.startup.open_storage import open_storage
from ottla.core.clock import SystemClock
from ottla.core.files import SystemFiles
from ottla.metadata_store.sqlite_file import FILE_NAME
from ottla.storage.directories.log_directory import ForeignDirectory
from ottla.storage.integrity.metadata_backup import FILE_NAME as BACKUP_FILE
from ottla.testing.cluster import TestCluster
from ottla.testing.real_machine import RealMachines


def open_and_close(*paths: Path, options: dict[str, str] | None = None) -> str:
    """Open the storage as a start does, with the node id of the directories; returns the cluster id."""

    async def run() -> str:
        given, _ = config.read(file=None, environment={}, options=options or {})
        given = config.of_directories(given, paths)
        storage = await open_storage(given, paths, clock=SystemClock(), files=SystemFiles())
        storage.directories.close()
        await storage.store.close()
        return storage.directories.opened[0].meta.cluster_id

    return asyncio.run(run())


def corrupt(path: Path, old: str, new: str) -> str:
    """Edit `meta.properties`; returns the text before."""
    file = path / "meta.properties"
    text = file.read_text()
    changed = re.sub(old, new, text)
    assert changed != text
    file.write_text(changed)
    return text


def field(text: str, key: str) -> str:
    found = re.search(rf"^{re.escape(key)}=(.*)$", text, re.MULTILINE)
    assert found
    return found[1]


@pytest.fixture
def used(tmp_path: Path) -> Path:
    """A directory in which a broker has run."""
    path = tmp_path / "used"

    async def use() -> None:
        async with TestCluster(RealMachines(path), has_shared_store=False) as cluster:
            await cluster.start(1)
            await cluster.create_topic("web", configs={"retention.ms": "1000"})

    asyncio.run(use())
    return path


def test_an_empty_meta_properties_is_refused_with_the_lines_to_write(used: Path) -> None:
    file = used / "meta.properties"
    before = file.read_text()
    cluster_id = field(before, "cluster.id")
    file.write_text("")

    with pytest.raises(ForeignDirectory) as refused:
        open_and_close(used)

    assert f"write cluster.id={cluster_id} and node.id=1 into the file" in str(refused.value)
    file.write_text(f"cluster.id={cluster_id}\nnode.id=1\n")
    assert open_and_close(used) == cluster_id


def test_a_meta_properties_without_a_cluster_id_is_refused_with_the_id_of_the_store(used: Path) -> None:
    before = corrupt(used, "cluster.id=.*", "")

    with pytest.raises(ForeignDirectory, match=re.escape(f"write cluster.id={field(before, 'cluster.id')} into")):
        open_and_close(used)


def test_a_missing_meta_properties_without_a_copy_is_written_with_the_cluster_id_of_the_store(used: Path) -> None:
    cluster_id = field((used / "meta.properties").read_text(), "cluster.id")
    (used / "meta.properties").unlink()
    (used / BACKUP_FILE).unlink()

    assert open_and_close(used) == cluster_id
    assert open_and_close(used) == cluster_id


def test_a_meta_properties_of_another_cluster_is_refused_with_the_id_of_the_store(used: Path) -> None:
    before = corrupt(used, "cluster.id=.*", "cluster.id=another")

    with pytest.raises(ForeignDirectory, match=re.escape(f"write cluster.id={field(before, 'cluster.id')} into")):
        open_and_close(used)


def test_of_two_directories_the_one_that_contradicts_the_store_is_named(tmp_path: Path) -> None:
    paths = tmp_path / "one", tmp_path / "two"
    cluster_id = open_and_close(*paths)
    corrupt(paths[0], "cluster.id=.*", "cluster.id=another")

    with pytest.raises(ForeignDirectory) as refused:
        open_and_close(*paths)

    assert str(paths[0] / "meta.properties") in str(refused.value)
    assert f"write cluster.id={cluster_id} into it" in str(refused.value)
    assert str(paths[1]) not in str(refused.value)


@pytest.mark.parametrize("options", [{}, {"node.id": "2"}])
def test_a_meta_properties_of_another_node_never_starts_as_that_node(used: Path, options: dict[str, str]) -> None:
    before = corrupt(used, "node.id=1", "node.id=2")

    with pytest.raises(ForeignDirectory) as refused:
        open_and_close(used, options=options)

    assert "belongs to node 1, but this broker has node.id=2" in str(refused.value)
    assert f"Start it with node.id=1 and write node.id=1 into {used / 'meta.properties'}" in str(refused.value)
    (used / "meta.properties").write_text(before)
    open_and_close(used)


@pytest.mark.parametrize("written", ["", "abc", "-1", "1.5"])
def test_a_node_id_that_is_no_number_is_refused_with_the_line_to_write(used: Path, written: str) -> None:
    before = corrupt(used, "node.id=1", f"node.id={written}")

    with pytest.raises(
        ForeignDirectory, match=r"is corrupt, it has no valid node\.id\. .* write node\.id=1 into the file"
    ):
        open_and_close(used)

    (used / "meta.properties").write_text(before)
    open_and_close(used)


def test_another_node_id_on_the_command_line_is_refused_with_the_one_of_the_store(used: Path) -> None:
    with pytest.raises(ForeignDirectory, match=r"Start it with node\.id=1$"):
        open_and_close(used, options={"node.id": "2"})


def test_a_lost_meta_properties_does_not_let_another_node_in(used: Path) -> None:
    (used / "meta.properties").unlink()
    (used / BACKUP_FILE).unlink()

    with pytest.raises(ForeignDirectory, match=r"belongs to node 1, but this broker has node\.id=2"):
        open_and_close(used, options={"node.id": "2"})

    assert not (used / "meta.properties").exists()
    open_and_close(used)


def test_a_start_without_the_metadata_store_warns_that_topic_settings_were_lost(
    used: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (used / FILE_NAME).unlink()

    with caplog.at_level(logging.WARNING):
        open_and_close(used)
        open_and_close(used)

    (line,) = [record.getMessage() for record in caplog.records if "settings were lost" in record.getMessage()]
    assert str(used / FILE_NAME) in line
    assert "web" in line
    assert "restore the file from a backup" in line


def test_a_new_directory_warns_of_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        open_and_close(tmp_path / "new")

    assert not caplog.records
