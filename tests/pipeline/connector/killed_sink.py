"""A stream from one topic into another, as a program of its own that a test may kill at any moment.

    python killed_sink.py BOOTSTRAP SOURCE SINK DIRECTORY

It ends by itself when everything that was there has been written; the micro-batches are small, so that there are many
moments to die in, and a shuffle lies between, so that a repeated task brings its rows in another order.
"""

from __future__ import annotations

import sys
from pathlib import Path

from ottla.pipeline.session import SparkOptions, start_session

PER_TRIGGER = 500


def main() -> None:
    bootstrap, source, sink, directory = sys.argv[1:]
    work = Path(directory)
    spark = start_session(SparkOptions(work / "spark", master="local[2,4]", short_run=True), print)
    reader = spark.readStream.format("ottla").option("kafka.bootstrap.servers", bootstrap).option("subscribe", source)
    reader = reader.option("brokerWait", "2m")  # on a busy machine a killed broker is back after more than 8 s
    frame = reader.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", PER_TRIGGER).load()
    shuffled = frame.selectExpr("key", "value").repartition(2)
    writer = shuffled.writeStream.format("ottla").option("kafka.bootstrap.servers", bootstrap).option("topic", sink)
    writer = writer.option("brokerWait", "2m")
    writer = writer.option("kafka.batch.size", 1000).option("checkpointLocation", str(work / "checkpoint"))
    query = writer.start()
    print("running", flush=True)
    query.processAllAvailable()
    query.stop()
    print("finished", flush=True)


if __name__ == "__main__":
    main()
