"""Fetches the jars of a real Apache Kafka (broker, tools, clients, dependencies), once, into the cache directory.

The name of the tool that fetched them is written to `how.txt` beside the jars.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from ottla.pipeline.jars import Artifact, JarsNotFound, fetch_jars
from tests.support.jvm import cache_directory

NEWEST, OLDEST = "4.4.0", "4.1.1"
VERSION = os.environ.get("OTTLA_KAFKA", NEWEST)
"""The Apache Kafka that tests and benchmarks compare with."""
CONNECT = "4.3.1"
"""The Kafka Connect and MirrorMaker 2 that tests run: of 4.4.0 not all jars could be had."""
CONFIG_COMMAND = "kafka.admin.ConfigCommand" if VERSION == OLDEST else "org.apache.kafka.tools.ConfigCommand"
"""The class of `kafka-configs.sh`, which moved in 4.4."""


def artifacts(version: str) -> list[Artifact]:
    """Return the jars to fetch; the logger that writes nothing keeps the tools' output parseable."""
    return [
        Artifact("org.apache.kafka", "kafka_2.13", version),
        Artifact("org.apache.kafka", "kafka-tools", version),
        Artifact("org.apache.kafka", "kafka-clients", version),
        Artifact("org.slf4j", "slf4j-nop", "1.7.36"),
    ]


def client_artifacts(version: str) -> list[Artifact]:
    """Return the jars of Kafka's client alone."""
    return [Artifact("org.apache.kafka", "kafka-clients", version), Artifact("org.slf4j", "slf4j-nop", "1.7.36")]


def streams_artifacts(version: str) -> list[Artifact]:
    """Return the jars of Kafka Streams."""
    return [Artifact("org.apache.kafka", "kafka-streams", version), Artifact("org.slf4j", "slf4j-simple", "1.7.36")]


def connect_artifacts(version: str) -> list[Artifact]:
    """Return the jars of a Connect worker, with the connector that reads files."""
    return [
        Artifact("org.apache.kafka", "connect-runtime", version),
        Artifact("org.apache.kafka", "connect-json", version),
        Artifact("org.apache.kafka", "connect-file", version),
        Artifact("org.slf4j", "slf4j-simple", "1.7.36"),
    ]


def mirror_artifacts(version: str) -> list[Artifact]:
    """Return the jars of MirrorMaker 2, which runs Connect workers in its own process."""
    return [
        Artifact("org.apache.kafka", "connect-mirror", version),
        Artifact("org.apache.kafka", "connect-json", version),
        Artifact("org.slf4j", "slf4j-simple", "1.7.36"),
    ]


def kafka_jars(version: str = VERSION) -> Path:
    """Return the directory of a version's jars, filled on first use. Raises `JarsNotFound`."""
    return _fetched(f"kafka-{version}", artifacts(version), needed="kafka-server")


def client_jars(version: str) -> Path:
    """The same for Kafka's client alone."""
    return _fetched(f"kafka-clients-{version}", client_artifacts(version), needed="kafka-clients")


def streams_jars(version: str = VERSION) -> Path:
    """The same for Kafka Streams."""
    return _fetched(f"kafka-streams-{version}", streams_artifacts(version), needed="kafka-streams")


def connect_jars(version: str = CONNECT) -> Path:
    """The same for a Connect worker."""
    return _fetched(f"kafka-connect-{version}", connect_artifacts(version), needed="connect-runtime")


def mirror_jars(version: str = CONNECT) -> Path:
    """The same for MirrorMaker 2."""
    return _fetched(f"kafka-mirror-{version}", mirror_artifacts(version), needed="connect-mirror")


def _fetched(name: str, wanted: list[Artifact], *, needed: str) -> Path:
    target = cache_directory() / name
    if (target / "how.txt").exists():
        return target
    part = target.with_name(f"{target.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    how = fetch_jars(wanted, part, os.environ)
    if not list(part.glob(f"{needed}-*.jar")):
        raise JarsNotFound(f"{how} brought no {needed} jar")
    (part / "how.txt").write_text(f"{how}\n")
    shutil.rmtree(target, ignore_errors=True)
    part.rename(target)
    return target
