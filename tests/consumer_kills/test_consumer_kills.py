"""Six groups of three members under kills of brokers: no offset is below an acknowledged commit, no record is missed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.consumer_kills.campaign import Campaign
from tests.consumer_kills.clusters import NODES, OttlaCluster
from tests.consumer_kills.members import Event, Kind, Seen
from tests.support.changing_rights import ChangingRights

BEFORE, AFTER = 10, 20


@pytest.mark.slow
@pytest.mark.external
@pytest.mark.timeout(0)
@pytest.mark.xdist_group("cluster")
@pytest.mark.parametrize("is_secured", [False, True], ids=["plain", "secured"])
def test_groups_are_given_nothing_from_before_their_acknowledged_commits(tmp_path: Path, *, is_secured: bool) -> None:
    cluster = OttlaCluster(tmp_path / "cluster", is_secured=is_secured)
    rights = ChangingRights(cluster.up).start() if is_secured else None
    try:
        result = Campaign(cluster, rate=100).run(seconds=0, kills_min=2)
        if rights is not None:
            rights.finish()
            assert rights.changes > 10
        print("\n".join(f"{name}: {figure}" for name, figure in result.rows()))
        assert result.faults == []
        assert not any(result.missing.values()), result.missing
        assert result.kills == 2
        assert result.commits > 100
        assert result.start_positions > 6 * 6
        for node in NODES:
            assert "Traceback" not in cluster.log(node), cluster.log(node)[-6000:]
    finally:
        cluster.close()


@pytest.mark.parametrize("kind", [Kind.ASSIGNED, Kind.STARTED, Kind.OBSERVED])
def test_an_offset_below_a_commit_that_was_acknowledged_before_is_found(kind: Kind) -> None:
    seen = Seen(events=[Event(AFTER, kind, 0, 4)], acknowledged=[Event(BEFORE, Kind.ACKNOWLEDGED, 0, 5)])
    assert len(seen.offsets_below_an_acknowledged_commit()) == 1


def test_what_was_asked_before_the_acknowledgement_or_is_of_another_partition_may_be_below() -> None:
    seen = Seen(
        acknowledged=[Event(AFTER, Kind.ACKNOWLEDGED, 0, 5)],
        events=[
            Event(BEFORE, Kind.OBSERVED, 0, 4),
            Event(AFTER + 1, Kind.OBSERVED, 1, 4),
            Event(AFTER + 1, Kind.OBSERVED, 0, 5),
        ],
    )
    assert seen.offsets_below_an_acknowledged_commit() == []


def test_a_record_that_is_delivered_twice_counts_once_as_delivered_again() -> None:
    assert Seen(delivered=[(0, 1), (0, 2), (0, 1), (1, 1)]).redelivered == 1
