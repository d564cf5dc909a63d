"""`python -m tests.request_mixes --seconds 3600`: scripts of valid requests in odd orders, beside a real Apache Kafka."""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.request_mixes.campaign import errors_of, findings, seeds_for
from tests.request_mixes.settings import SETTINGS, ottla
from tests.support.kafka_jars import kafka_jars
from tests.support.real_kafka import RealKafka


def main() -> int:
    """Print each finding; the exit code is 1 if there is one."""
    parser = argparse.ArgumentParser(prog="python -m tests.request_mixes", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32), help="the first seed")
    parser.add_argument("--alone", action="store_true", help="without a Kafka: closed connections and unknown errors")
    chosen = parser.parse_args()
    print(f"first seed {chosen.seed}")
    with tempfile.TemporaryDirectory(prefix="ottla-mixes-") as name:
        subject = ottla(Path(name)).start()
        kafka = None if chosen.alone else RealKafka(kafka_jars(), Path(name, "kafka"), settings=SETTINGS).start()
        played: list[int] = []
        failed = 0

        def seeds() -> Iterator[int]:
            for seed in seeds_for(chosen.seconds, chosen.seed):
                played.append(seed)
                yield seed

        try:
            for finding in findings(subject.port, kafka.port if kafka else None, seeds()):
                failed += 1
                print(finding, flush=True)
        finally:
            subject.stop()
            if kafka:
                kafka.stop()
        for error, times in errors_of(subject.log).items():
            failed += 1
            print(f"{times} times in the log: {error}")
    print(f"{len(played)} scripts, {failed} with findings")
    return int(failed > 0)


if __name__ == "__main__":
    raise SystemExit(main())
