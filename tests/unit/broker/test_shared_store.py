"""zookeeper.connect: which store a broker uses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ottla.broker import config
from ottla.broker.config import BrokerConfig
from ottla.broker.startup.cluster_store import store_opener
from ottla.broker.startup.open_storage import NoUsableDirectory
from ottla.core.settings import InvalidSettings
from ottla.metadata_store.sqlite_file import FILE_NAME


def settings(**options: str) -> BrokerConfig:
    given = {name.replace("_", "."): text for name, text in options.items()}
    return config.read(file=None, environment={}, options=given)[0]


def test_without_the_setting_a_broker_has_a_store_of_its_own(tmp_path: Path) -> None:
    assert store_opener(settings(), [tmp_path]) is None
    assert store_opener(settings(zookeeper_connect="a:1/x"), [tmp_path]) is not None


def test_addresses_that_are_none_are_an_invalid_setting(tmp_path: Path) -> None:
    with pytest.raises(InvalidSettings, match=r"zookeeper\.connect=a: 'a' is not host:port\. Write host:port"):
        store_opener(settings(zookeeper_connect="a"), [tmp_path])


def test_a_directory_with_a_store_of_its_own_does_not_join_a_cluster(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).touch()
    with pytest.raises(NoUsableDirectory, match="metadata store of a broker without ZooKeeper"):
        store_opener(settings(zookeeper_connect="a:1"), [tmp_path])


def test_a_broker_without_zookeeper_does_not_import_kazoo() -> None:
    code = "import sys, ottla.broker.process.server, ottla.broker.startup.cluster_store; print('kazoo' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
