"""Traffic: requests, errors, bytes and distinct clients per window of event time, status class and path prefix.

DataFrame to DataFrame, no reading or writing here: the batch run, a stream and the test use the same code. The steps'
names say what is true of the rows afterwards. Input: the columns of `access_log.FIELDS`.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

WINDOW = "5 minutes"
FIRST_ERROR_STATUS = 400
KEY = ("window_start", "status_class", "path_prefix")
"""What makes a row of traffic the same row again."""

TRAFFIC = StructType(
    [
        StructField("window_start", TimestampType()),
        StructField("status_class", StringType()),
        StructField("path_prefix", StringType()),
        StructField("requests", LongType()),
        StructField("errors", LongType()),
        StructField("bytes", LongType()),
        StructField("clients", LongType()),
    ]
)


def traffic(requests: DataFrame) -> DataFrame:
    """The whole feed."""
    return requests.transform(with_status_class).transform(with_path_prefix).transform(per_window)


def with_status_class(requests: DataFrame) -> DataFrame:
    """`status_class`: 200 to 299 is "2xx"."""
    return requests.withColumn(
        "status_class", F.concat((F.col("status") / 100).cast("int").cast("string"), F.lit("xx"))
    )


def with_path_prefix(requests: DataFrame) -> DataFrame:
    """`path_prefix`: the first segment of the path; "(none)" for a request that named no path."""
    first = F.regexp_extract("path", "^(/[^/]*)", 1)
    prefix = F.when(F.col("path").isNull() | (first == ""), F.lit("(none)")).otherwise(first)
    return requests.withColumn("path_prefix", prefix)


def per_window(requests: DataFrame) -> DataFrame:
    """One row per window, status class and path prefix, whatever order the requests come in."""
    window = F.window("event_time", WINDOW).getField("start").alias("window_start")
    counted = requests.groupBy(window, "status_class", "path_prefix").agg(
        F.count("*").alias("requests"),
        F.count_if(F.col("status") >= FIRST_ERROR_STATUS).alias("errors"),
        F.sum("bytes").alias("bytes"),
        F.count_distinct("client").alias("clients"),
    )
    return counted.select(*TRAFFIC.fieldNames())


def top(requests: DataFrame, column: str, limit: int) -> DataFrame:
    """The values of a column with the most requests: value, requests, bytes; ties in alphabetical order."""
    counted = requests.groupBy(F.col(column).alias("value")).agg(
        F.count("*").alias("requests"), F.sum("bytes").alias("bytes")
    )
    return counted.where("value is not null").orderBy(F.desc("requests"), "value").limit(limit)
