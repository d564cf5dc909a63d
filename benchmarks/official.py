"""`python -m benchmarks.official BOOTSTRAP TOPIC OUT CORES`: a whole Spark job of the official connector.

As a person writes it: a topic is read and written as Parquet. PYSPARK_SUBMIT_ARGS names the connector's jars. The rows
that were written are counted on standard output.
"""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession


def main(bootstrap: str, topic: str, out: str, cores: str) -> None:
    """From nothing to files."""
    spark = SparkSession.builder.master(f"local[{cores}]").config("spark.ui.enabled", "false").getOrCreate()
    reader = spark.read.format("kafka").option("kafka.bootstrap.servers", bootstrap).option("subscribe", topic)
    reader.load().select("key", "value", "partition", "offset", "timestamp").write.parquet(out)
    sys.stdout.write(f"{spark.read.parquet(out).count()}\n")
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
