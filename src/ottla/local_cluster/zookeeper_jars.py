"""Fetches the jars of Apache ZooKeeper's server once into the user's cache, and verifies each by its SHA-256.

A tool resolves the jars as it does those of Spark (`pipeline/jars.py`). Of what it brings only the jars that the server
loads are kept: Netty's for one with TLS, which has a directory of its own, and none for other platforms.
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
_NETTY_VERSION = "4.1.130"
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
_NETTY = MappingProxyType(
    {
        "buffer": "00a522b67ea35cb7b4dd9cf27f85c6c58f5e306785aa045302e5f6b2d4944a87",
        "codec": "52636bc29bd62120b97bbe5d1d21eab9b1cb2bef8efbb54d2221c5f3fa08d8cd",
        "common": "53921f28dd5a352b1bed0e1cbcc54d013dc60ffebeae9b2b1e53eabef317e581",
        "handler": "98c78ec187ca30a4b9775bf6f632f5c9929db6bf06a60e6971f945813880ca0f",
        "resolver": "48c5b218a89d184e1b601d46433957f515fcefdb4464182b1348bce4f5a18f35",
        "transport": "1bf573266d271f856705a9984d25449c56a1d73c02a16af12033ceccfe555dbb",
        "transport-classes-epoll": "1c352508d70aca1ccc3068daac907ad1e9d8dc68b07148d57426730bf0d0c8b6",
        "transport-native-unix-common": "cf5efc4168597d7cd14695b469418cac2a1134533f9a0c82ef0538d796fd39e1",
    }
)
LOCK_OF_TLS = MappingProxyType(
    {**LOCK, **{f"netty-{name}-{_NETTY_VERSION}.Final.jar": digest for name, digest in _NETTY.items()}}
)
"""The same for a server with TLS."""


def zookeeper_jars(
    environment: Mapping[str, str], notify: Notify, *, with_tls: bool = False, tool: str | None = None
) -> Path:
    """Return the directory of the jars, filled on first use. Raises JarsNotFound.

    `tool` as for `fetch_jars`. `notify` gets one line if the jars have to be fetched.
    """
    lock = LOCK_OF_TLS if with_tls else LOCK
    target = cache_directory(environment) / (f"zookeeper-{VERSION}-tls" if with_tls else f"zookeeper-{VERSION}")
    if not _is_complete(target, lock):
        by = tool or default_tool(environment)
        size = "7 MB" if with_tls else "4 MB"
        notify(f"no ZooKeeper here: fetching ZooKeeper {VERSION} with {by} (about {size}, once) into {target}")
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
            fetched = Path(scratch) / "jars"
            fetched.mkdir()
            how = fetch_jars(ARTIFACTS, fetched, environment, tool=by)
            _keep_locked(fetched, how, lock)
            _move_into_place(fetched, target, lock)
    return target


def _is_complete(directory: Path, lock: Mapping[str, str]) -> bool:
    return all((directory / name).is_file() for name in lock)


def _keep_locked(directory: Path, how: str, lock: Mapping[str, str]) -> None:
    """Verify the jars of the lock and delete all others. Raises JarsNotFound."""
    for name, digest in lock.items():
        jar = directory / name
        if not jar.is_file():
            raise JarsNotFound(f"{how} brought no {name}, which ZooKeeper needs")
        found = hashlib.sha256(jar.read_bytes()).hexdigest()
        if found != digest:
            raise JarsNotFound(f"{how} brought a {name} with SHA-256 {found}. Expected {digest}: do not use it")
    for path in directory.iterdir():
        if path.name not in lock:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _move_into_place(fetched: Path, target: Path, lock: Mapping[str, str]) -> None:
    """Rename the fetched directory to its final path, where one with missing jars is replaced.

    Of two processes that fetched at once, the first stays.
    """
    if target.exists() and not _is_complete(target, lock):
        shutil.rmtree(target)
    try:
        fetched.rename(target)
    except OSError:
        if not _is_complete(target, lock):
            raise
