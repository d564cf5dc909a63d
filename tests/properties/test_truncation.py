"""A follower truncates to the end of what its log has in common with its leader's, whatever both have been through.

KIP-279's cases A to G are instances: epochs that only one of both knows, without and with records, in any order.
"""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.replicas import Node, Trio, view
from tests.support.storage import NOW_MS, batch

Epochs = list[tuple[int, int]]
"""Terms with the number of their records; 0: the leader of the term did not write."""

terms = st.lists(st.integers(0, 3), max_size=4)


def write(node: Node, epochs: Epochs) -> None:
    """Append batches of one record each, as if the terms' leaders had sent them."""
    for epoch, count in epochs:
        node.log.begin_epoch(epoch)
        for _ in range(count):
            record = batch(b"%d" % epoch, base_offset=node.log.end_offset, leader_epoch=epoch)
            node.log.append_as_follower(record, now_ms=NOW_MS)
    node.log.flush()


def converge(common: Epochs, leaders: Epochs, followers: Epochs) -> tuple[int, int]:
    """Return the lowest end of the follower's log on its way to the leader's, and the end of the common part."""
    lowest, newest = 0, max([-1, *(epoch for epoch, _ in (*common, *leaders, *followers))]) + 1

    async def main() -> None:
        nonlocal lowest
        trio = Trio(count=2)
        for node, own in ((trio[1], leaders), (trio[2], followers)):
            node.log.epochs.clear()
            node.partition.leader_epoch = -1
            write(node, [*common, *own])
        trio.apply(view(1, newest, isr=(1, 2), replicas=(1, 2), partition_epoch=newest + 1))
        lowest = trio[2].log.end_offset
        for _ in range(30):
            trio[2].fetch(trio[1], max_bytes=1)
            lowest = min(lowest, trio[2].log.end_offset)
            trio[2].flush()
        assert trio[2].values() == trio[1].values()
        end = trio[1].log.end_offset
        held, expected = trio[2].log.epochs.entries, trio[1].log.epochs.entries
        assert [each for each in held if each.start_offset < end] == [
            each
            for at, each in enumerate(expected)
            if each.start_offset < min([end, *(later.start_offset for later in expected[at + 1 :])])
        ]

    asyncio.run(main())
    return lowest, sum(count for _, count in common)


@given(terms, st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 3)), max_size=6))
@settings(max_examples=150, deadline=None)
def test_a_follower_converges_and_keeps_what_both_have(common: list[int], later: list[tuple[str, int]]) -> None:
    shared = list(enumerate(common))
    own = [(owner, len(common) + at, count) for at, (owner, count) in enumerate(later)]
    leaders = [(epoch, count) for owner, epoch, count in own if owner == "a"]
    followers = [(epoch, count) for owner, epoch, count in own if owner == "b"]
    lowest, kept = converge(shared, leaders, followers)
    assert lowest == kept


CASES = {
    "A: the follower has more of the leader's last epoch": ([(0, 2)], [], [(1, 3)]),
    "B: an epoch that only the follower knows, above one that both know": ([(0, 2), (1, 1)], [(3, 2)], [(2, 2)]),
    "C: epochs of both above the common one, the follower's between the leader's": (
        [(0, 5)],
        [(1, 2), (3, 1)],
        [(2, 3)],
    ),
    "D: epochs of both above the common one, the leader's between the follower's": (
        [(0, 5)],
        [(2, 3)],
        [(1, 2), (3, 1)],
    ),
    "E: the follower has an epoch without records": ([(0, 2)], [(2, 1)], [(1, 0)]),
    "F: nothing in common": ([], [(1, 2)], [(0, 3)]),
    "G: the follower is empty": ([], [(0, 2), (1, 2)], []),
}


@pytest.mark.parametrize("case", CASES)
def test_divergence_cases_of_kip_279(case: str) -> None:
    lowest, kept = converge(*CASES[case])
    assert lowest == kept
