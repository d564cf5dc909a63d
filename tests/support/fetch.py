"""Fetches what tests need from elsewhere, so that no test waits for it: Java, jars, archives of classes, programs in Go.

    python -m tests.support.fetch [oldest-spark]

With the argument it fetches what the tests with the oldest Spark need besides, and runs in their environment. What
cannot be had is reported, and the tests that need it fail or skip with the reason.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

from ottla.pipeline.jars import JarsNotFound, connector_jars
from tests.support import kafka_jars, prometheus, s3_servers, spark_classes
from tests.support.jvm import JavaNotFound, java
from tests.support.real_kafka import make_class_archive
from tests.support.real_zookeeper import jars as zookeeper_jars
from tests.support.restarted_clients import NoGo, go_program

STEPS: dict[str, Callable[[], object]] = {
    "Java": java,
    "ZooKeeper": zookeeper_jars,
    "ZooKeeper with TLS": lambda: zookeeper_jars(with_tls=True),
    f"Kafka {kafka_jars.NEWEST}": lambda: kafka_jars.kafka_jars(kafka_jars.NEWEST),
    f"Kafka {kafka_jars.OLDEST}": lambda: kafka_jars.kafka_jars(kafka_jars.OLDEST),
    "Kafka Streams": kafka_jars.streams_jars,
    "Kafka Connect": kafka_jars.connect_jars,
    "MirrorMaker 2": kafka_jars.mirror_jars,
    "Prometheus": prometheus.fetch,
    "a client of Go": go_program,
    "S3Proxy": s3_servers.s3proxy_jar,
    "versitygw, an S3 server in Go": s3_servers.versitygw,
    "the archive of Kafka's classes": lambda: make_class_archive(kafka_jars.kafka_jars(kafka_jars.NEWEST)),
    "the archive of Spark's classes": spark_classes.archive,
}
OF_OLDEST_SPARK: dict[str, Callable[[], object]] = {"Spark's connector": lambda: connector_jars(os.environ, print)}


def main() -> None:
    for name, fetch in (OF_OLDEST_SPARK if sys.argv[1:] == ["oldest-spark"] else STEPS).items():
        try:
            fetch()
        except (JarsNotFound, JavaNotFound, NoGo, s3_servers.NoServer, OSError, subprocess.SubprocessError) as error:
            print(f"fetch: {name}: {error}", flush=True)


if __name__ == "__main__":
    main()
