"""Three real brokers, one of them on a small disk that is full for a while, under load by real clients."""

from __future__ import annotations

import json
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from ottla.cli.errors import ExitCode
from tests.processes.cli_runner import Cli
from tests.support.cluster_scenario import ClusterScenario
from tests.support.small_disks import CannotMount, fill, small_disk
from tests.support.up_process import UpProcess

FULL = 2
LAG_TIME_S = 30.0
"""`replica.lag.time.max.ms`: producers waited for as long as that, or for as long as the disk was full."""

pytestmark = [pytest.mark.slow, pytest.mark.external, pytest.mark.timeout(0), pytest.mark.xdist_group("cluster")]


def test_a_full_disk_of_one_broker_is_named_and_stops_neither_producers_nor_groups(tmp_path: Path) -> None:
    up = UpProcess(tmp_path / "cluster")
    place = up.directory / f"broker-{FULL}"
    with ExitStack() as stack:
        try:
            disk = stack.enter_context(small_disk(place, "96m"))
        except CannotMount as error:
            pytest.skip(f"no disk of one's own here: {error}")
        if disk != place:
            pytest.skip(f"no disk of one's own here: the broker would not see {place}")
        up.start()
        stack.callback(up.stop)
        scenario = ClusterScenario(up, rate=200)
        scenario.load.start()
        stack.callback(scenario.load.stop)
        scenario.load.until_acknowledged(500)
        fill(place)
        began = time.monotonic()
        scenario.until(lambda: FULL not in scenario.leaders().values(), LAG_TIME_S, "other brokers lead")
        scenario.load.until_acknowledged(1000)
        assert scenario.load.longest_pause_s(began) < LAG_TIME_S
        cli = Cli(up.bootstrap, tmp_path)
        shown = json.loads(cli.run("cluster", "health", "-f", "json", code=ExitCode.FAILED).stdout)
        assert f"{place} of broker {FULL} is full: writes are refused" in shown["problems"]
        cli.out("consume", scenario.topic, "-n", "10", "--group", "readers")
        (place / "filler").unlink()
        scenario.finish()
        assert up.log(FULL).count("is full: No space left on device") == 1
        assert up.log(FULL).count("has free space and accepts records again") == 1
