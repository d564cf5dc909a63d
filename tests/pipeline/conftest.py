"""Provides one Spark session for the whole run, and one JVM for the drivers that tests start as processes."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from ottla.pipeline.jars import JarsNotFound, connector_jars
from ottla.pipeline.java import JavaNotFound
from ottla.pipeline.session import SparkOptions, start_session
from tests.conftest import one_process_at_a_time
from tests.support.spark_java import SparkJava


@pytest.fixture(scope="session")
def spark_options(tmp_path_factory: pytest.TempPathFactory) -> SparkOptions:
    """Two cores of this machine; a task may fail three times, as on a cluster."""
    return SparkOptions(tmp_path_factory.mktemp("spark"), cores=2, short_run=True)


@pytest.fixture(scope="session")
def spark(request: pytest.FixtureRequest, spark_options: SparkOptions, spark_classes: None) -> Iterator[SparkSession]:
    """One session, with the jars of Spark's own Kafka connector where tests want them. Skips without a Java."""
    with pytest.MonkeyPatch.context() as patched:
        if any(item.get_closest_marker("official_connector") for item in request.session.items):
            try:
                with one_process_at_a_time("connector-jars"):
                    jars = connector_jars(os.environ, print).spark_option
                patched.setenv("PYSPARK_SUBMIT_ARGS", f"--jars {jars} pyspark-shell")
            except JarsNotFound as error:
                print(f"Spark starts without its own Kafka connector: {error}")
        try:
            session = start_session(spark_options, print)
        except JavaNotFound as error:
            pytest.skip(f"no Java for Spark: {error}")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def _started_java(tmp_path_factory: pytest.TempPathFactory, spark_classes: None) -> Iterator[SparkJava]:
    try:
        found = SparkJava(tmp_path_factory.mktemp("java") / "log")
    except JavaNotFound as error:
        pytest.skip(f"no Java for Spark: {error}")
    yield found
    found.stop()


@pytest.fixture
def spark_java(_started_java: SparkJava, monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkJava]:
    """Let the drivers that a test starts, one at a time, use a JVM that is up; files of such tests have a group."""
    for name, value in _started_java.variables().items():
        monkeypatch.setenv(name, value)
    yield _started_java
    _started_java.end_context()
