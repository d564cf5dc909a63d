"""One Spark session per file of tests, with the format found as a user's session finds it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from ottla.pipeline.session import SparkOptions, start_session


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Two cores; a task may fail three times, as on a cluster."""
    options = SparkOptions(tmp_path_factory.mktemp("spark"), master="local[2,4]", short_run=True)
    session = start_session(options, print)
    yield session
    session.stop()
