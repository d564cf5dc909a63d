"""Checks that no acknowledged or fetched record is lost, wherever the disk stops and whichever fsync fails."""

from __future__ import annotations

from ottla.testing.sim_disk import SimDisk
from tests.crash_tests.acks import ROUNDS, broken_after, failed_syncs, produce, stops


def test_without_trouble_everything_is_acknowledged_and_seen() -> None:
    disk = SimDisk()
    context = produce(disk)
    assert len(context.acknowledged) == len(context.seen) == sum(ROUNDS) and not context.refused
    assert broken_after(disk, context) is None


def test_acknowledged_and_seen_records_survive_a_power_cut_at_every_change_of_the_disk() -> None:
    acknowledged = set()
    for what, disk, context in stops():
        assert broken_after(disk, context) is None, what
        acknowledged.add(len(context.acknowledged))
    assert acknowledged == {0, 1, 2, 5, 6, 10, 12, 13}, "the stops did not reach every round"


def test_after_a_failed_fsync_no_write_is_acknowledged_and_no_acknowledged_one_is_lost() -> None:
    refused = 0
    for what, disk, context in failed_syncs():
        assert broken_after(disk, context) is None, what
        assert context.refused, f"{what}, and no write failed"
        refused += context.refused
    assert refused > 20
