"""Fetches the jars of Apache ZooKeeper's server once into the user's cache, and verifies each by its SHA-256.

A tool resolves the jars as it does those of Spark (`pipeline/jars.py`). Of what it brings only the jars that the server
loads are kept: the rest are for TLS over Netty and for other platforms.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from ottla.pipeline.jars import Artifact, JarsNotFound, Notify, default_tool, fetch_jars
from ottla.pipeline.java import cache_directory

VERSION = "3.9.5"
ARTIFACTS = (
    Artifact("org.apache.zookeeper", "zookeeper", VERSION),
    Artifact("io.dropwizard.metrics", "metrics-core", "4.1.12.1"),  # this and the next: "provided" in ZooKeeper's POM
    Artifact("org.xerial.snappy", "snappy-java", "1.1.10.5"),
    Artifact("org.slf4j", "slf4j-simple", "2.0.13"),  # logs to standard error
)
LOCK = MappingProxyType(
    {
        "metrics-core-4.1.12.1.jar": "cec34936faa625039f4e46123eccaa10a9eb9d9a40c6075830cd81330e259cf9",
        "slf4j-api-2.0.13.jar": "e7c2a48e8515ba1f49fa637d57b4e2f590b3f5bd97407ac699c3aa5efb1204a9",
        "slf4j-simple-2.0.13.jar": "3153fe1d689cffb94f1530b58470c306685ba68844de8857116e3b6ebb81d9f7",
        "snappy-java-1.1.10.5.jar": "0f3f1857ed33116583f480b4df5c0218836c47bfbc9c6221c0d73f356decf37b",
        "zookeeper-3.9.5.jar": "936d025db1a85f085edea25048c3f5b3de5fc29329c371a10925e3b78b0b38a0",
        "zookeeper-jute-3.9.5.jar": "abcbc7f9d6c493daa118da6fa3061a201e2c521217526e8535adfb56b629e52a",
    }
)
"""Every jar on the server's class path, with its SHA-256."""


def zookeeper_jars(environment: Mapping[str, str], notify: Notify, *, tool: str | None = None) -> Path:
    """Return the directory of the jars, filled on first use. Raises JarsNotFound.

    `tool` as for `fetch_jars`. `notify` gets one line if the jars have to be fetched.
    """
    target = cache_directory(environment) / f"zookeeper-{VERSION}"
    if not _is_complete(target):
        by = tool or default_tool(environment)
        notify(f"no ZooKeeper here: fetching ZooKeeper {VERSION} with {by} (about 4 MB, once) into {target}")
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            fetched = Path(scratch) / "jars"
            fetched.mkdir()
            how = fetch_jars(ARTIFACTS, fetched, environment, tool=by)
            _keep_locked(fetched, how)
            _move_into_place(fetched, target)
    return target


def _is_complete(directory: Path) -> bool:
    return all((directory / name).is_file() for name in LOCK)


def _keep_locked(directory: Path, how: str) -> None:
    """Verify the jars of the lock and delete all others. Raises JarsNotFound."""
    for name, digest in LOCK.items():
        jar = directory / name
        if not jar.is_file():
            raise JarsNotFound(f"{how} brought no {name}, which ZooKeeper needs")
        found = hashlib.sha256(jar.read_bytes()).hexdigest()
        if found != digest:
            raise JarsNotFound(f"{how} brought a {name} with SHA-256 {found}. Expected {digest}: do not use it")
    for path in directory.iterdir():
        if path.name not in LOCK:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _move_into_place(fetched: Path, target: Path) -> None:
    """Rename the fetched directory to its final path, where one with missing jars is replaced.

    Of two processes that fetched at once, the first stays.
    """
    if target.exists() and not _is_complete(target):
        shutil.rmtree(target)
    try:
        fetched.rename(target)
    except OSError:
        if not _is_complete(target):
            raise
