"""`python -m tests.consumer_kills`: six groups under kills of brokers, on Ottla and on three brokers of Apache Kafka."""

from __future__ import annotations

import argparse
import sys
import tempfile
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from tests.consumer_kills.campaign import Campaign, Result
from tests.consumer_kills.clusters import KafkaCluster, KillableCluster, OttlaCluster

CLUSTERS: dict[str, Callable[[Path], KillableCluster]] = {
    "Ottla": OttlaCluster,
    "Ottla, secured": partial(OttlaCluster, is_secured=True),
    "Kafka": KafkaCluster,
}


def run(name: str, directory: Path, seconds: float, seed: int) -> Result:
    """Run the campaign on one cluster."""
    cluster = CLUSTERS[name](directory)
    try:
        return Campaign(cluster, seed=seed).run(seconds=seconds, kills_min=3)
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        cluster.close()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.consumer_kills", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--clusters",
        default="Ottla+Kafka",
        help=f"of {', '.join(CLUSTERS)}; they run at once: the load of the machine is the same",
    )
    asked = parser.parse_args()
    names = asked.clusters.split("+")
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(len(names)) as pool:
        running = {name: pool.submit(run, name, Path(scratch) / name, asked.minutes * 60, asked.seed) for name in names}
        results = {name: future.result() for name, future in running.items()}
    rows = [result.rows() for result in results.values()]
    print(f"| | {' | '.join(results)} |\n| --- |{' ---: |' * len(results)}")
    for cells in zip(*rows, strict=True):
        print(f"| {cells[0][0]} | {' | '.join(text for _, text in cells)} |")
    for name, result in results.items():
        print(f"{name}: re-deliveries by group: {result.redelivered}; not given: {result.missing}")
        print(f"{name}: failed commits: {dict(result.failed_commits)}")
        for fault in result.faults[:20]:
            print(f"{name}: {fault}")
    is_good = not any(
        result.faults or any(result.missing.values()) for name, result in results.items() if name != "Kafka"
    )
    if {"Ottla", "Kafka"} <= results.keys():
        counts = [sum(results[name].redelivered.values()) for name in ("Ottla", "Kafka")]
        if counts[0] > counts[1]:
            print(f"Ottla delivered {counts[0]} records again, Kafka {counts[1]}")
            is_good = False
    sys.exit(not is_good)


if __name__ == "__main__":
    main()
