"""`python -m tests.group_members`: rolling restarts of groups of many real members; prints the times of rebalances."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from tests.group_members.campaign import Campaign, rolling_restarts
from tests.support.ottla_process import OttlaProcess


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.group_members", description=__doc__)
    parser.add_argument("--members", default="1,10,50,200", help="sizes of groups")
    parser.add_argument("--bootstrap", help="another broker, such as a real Kafka")
    parser.add_argument("--clients", default="librdkafka,ottla", help="librdkafka, ottla, or kip848 (KIP-848)")
    asked = parser.parse_args()
    server = None
    with tempfile.TemporaryDirectory() as scratch:
        if asked.bootstrap is None:
            server = OttlaProcess(Path(scratch) / "server").start()
        print("| Members | Step | Seconds until stable | Commits |\n| ---: | --- | ---: | ---: |")
        for members in map(int, asked.members.split(",")):
            bootstrap = asked.bootstrap or (server.bootstrap if server is not None else "")
            group = f"members-{members}-{time.monotonic_ns()}"
            campaign = Campaign(bootstrap, group, Path(scratch) / group, partitions=max(members, 3))
            processes = min(4, members)
            commits = rolling_restarts(campaign, tuple(asked.clients.split(",")), members, processes)
            for step in campaign.steps:
                print(f"| {step.members} | {step.what} | {step.seconds:.1f} | {commits} |", flush=True)
        if server is not None:
            server.stop()
            server.assert_log_is_clean()


if __name__ == "__main__":
    main()
