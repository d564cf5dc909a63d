"""ZooKeeper's jars: each is verified before it is used."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from ottla.local_cluster import zookeeper_jars
from ottla.local_cluster.zookeeper_jars import LOCK, LOCK_OF_TLS, VERSION, _keep_locked
from ottla.pipeline import jars
from ottla.pipeline.jars import JarsNotFound


def test_the_lock_has_the_server_in_its_version() -> None:
    assert f"zookeeper-{VERSION}.jar" in LOCK
    assert LOCK.items() < LOCK_OF_TLS.items()
    assert all(len(bytes.fromhex(digest)) == 32 for digest in LOCK_OF_TLS.values())


def test_a_jar_with_another_digest_is_refused_and_a_missing_one_named(tmp_path: Path) -> None:
    good = b"the server"
    lock = {"zookeeper.jar": hashlib.sha256(good).hexdigest()}

    with pytest.raises(JarsNotFound, match=r"Maven brought no zookeeper\.jar"):
        _keep_locked(tmp_path, "Maven", lock)
    (tmp_path / "zookeeper.jar").write_bytes(b"another")
    with pytest.raises(JarsNotFound, match=r"with SHA-256 .+ Expected .+: do not use it"):
        _keep_locked(tmp_path, "Maven", lock)

    (tmp_path / "zookeeper.jar").write_bytes(good)
    (tmp_path / "netty.jar").write_bytes(b"not needed")
    _keep_locked(tmp_path, "Maven", lock)
    assert [path.name for path in tmp_path.iterdir()] == ["zookeeper.jar"]


def test_without_maven_and_pyspark_the_error_names_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jars, "find_spec", lambda _: None)
    monkeypatch.setenv("PATH", "")

    with pytest.raises(JarsNotFound, match=r"install Maven, or the pipeline's libraries: pip install '.\[pipeline\]'"):
        zookeeper_jars.zookeeper_jars({"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path)}, lambda _: None)
