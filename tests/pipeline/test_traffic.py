"""The traffic feed over ten literal rows."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.testing import assertDataFrameEqual

from ottla.pipeline.session import SparkFailedError, SparkOptions, spark_step, start_session
from ottla.pipeline.traffic import TRAFFIC, top, traffic

pytestmark = [pytest.mark.spark, pytest.mark.slow]

REQUESTS = "event_time timestamp, client string, path string, status int, bytes bigint"


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> SparkOptions:
    return SparkOptions(tmp_path_factory.mktemp("spark"), cores=2)


@pytest.fixture(scope="module")
def spark(options: SparkOptions) -> Iterator[SparkSession]:
    session = start_session(options, print)
    yield session
    session.stop()


def at(minute: int, second: int = 0) -> datetime:
    return datetime(2015, 5, 17, 10, minute, second, tzinfo=UTC)


@pytest.fixture(scope="module")
def ten_requests(spark: SparkSession) -> DataFrame:
    rows = [
        (at(0), "a", "/blog/x", 200, 10),
        (at(4, 59), "a", "/blog/y", 200, 20),
        (at(4, 59), "b", "/blog", 206, 5),
        (at(5), "a", "/blog/x", 200, 40),  # the next window begins here
        (at(1), "a", "/blog/gone", 404, 7),
        (at(1), "b", "/", 200, 1),
        (at(1), "b", None, 400, 0),  # a request that was no HTTP
        (at(2), "c", "*", 200, 0),  # OPTIONS *
        (at(2), "c", "/api/v1", 500, 3),
        (at(3), "c", "/api/v2", 503, 4),
    ]
    return spark.createDataFrame(rows, REQUESTS)


def test_requests_are_counted_per_window_class_and_prefix(spark: SparkSession, ten_requests: DataFrame) -> None:
    rows = [
        (at(0), "2xx", "/blog", 3, 0, 35, 2),
        (at(5), "2xx", "/blog", 1, 0, 40, 1),
        (at(0), "4xx", "/blog", 1, 1, 7, 1),
        (at(0), "2xx", "/", 1, 0, 1, 1),
        (at(0), "4xx", "(none)", 1, 1, 0, 1),
        (at(0), "2xx", "(none)", 1, 0, 0, 1),
        (at(0), "5xx", "/api", 2, 2, 7, 1),
    ]
    assertDataFrameEqual(traffic(ten_requests), spark.createDataFrame(rows, TRAFFIC))


def test_the_order_of_the_requests_does_not_matter(ten_requests: DataFrame) -> None:
    assertDataFrameEqual(traffic(ten_requests.orderBy("bytes")), traffic(ten_requests.orderBy("client")))


def test_the_top_values_come_by_number_of_requests_and_then_by_name(
    spark: SparkSession, ten_requests: DataFrame
) -> None:
    rows = [("a", 4, 77), ("b", 3, 6)]
    assertDataFrameEqual(
        top(ten_requests, "client", 2),
        spark.createDataFrame(rows, "value string, requests bigint, bytes bigint"),
        checkRowOrder=True,
    )


def test_a_failing_step_says_what_failed_and_where_the_rest_is(spark: SparkSession, options: SparkOptions) -> None:
    def fail(_: object) -> object:
        raise ValueError("the third piece is broken")

    match = "landing failed: ValueError: the third piece is broken"
    with pytest.raises(SparkFailedError, match=match) as failure, spark_step("landing", options.log):
        spark.range(1).mapInArrow(fail, "id long").collect()  # type: ignore[arg-type]
    assert str(options.log) in str(failure.value)
    assert "Traceback" in options.log.read_text()
