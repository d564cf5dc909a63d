"""Which segments a cleaning makes one of."""

from __future__ import annotations

import pytest

from ottla.storage.cleaning.cleaner import SizedSource, group_sources
from ottla.storage.cleaning.cleaning_plan import SourceSegment


def measured(*sizes: int, step: int = 10, index: int = 8) -> list[SizedSource]:
    return [
        SizedSource(SourceSegment(at * step, at * step + step, size), index, index) for at, size in enumerate(sizes)
    ]


@pytest.mark.parametrize(
    ("segments", "lengths"),
    [
        (measured(50, 50, 1, 100, 99, 1), [2, 1, 1, 2]),
        (measured(500, 1, 1), [1, 2]),
        (measured(1, 1, 1, 1, index=40), [2, 2]),
        (measured(1, 1, 1, step=1 << 30), [2, 1]),
        (measured(1, 1, 1, step=(1 << 30) + 1), [1, 1, 1]),
        (measured(0, 0, 0), [3]),
    ],
)
def test_segments_become_one_only_where_size_indexes_and_offsets_fit(
    segments: list[SizedSource], lengths: list[int]
) -> None:
    groups = group_sources(segments, segment_bytes=100, index_bytes=80)
    assert [len(group) for group in groups] == lengths
    assert [source for group in groups for source in group] == [each.source for each in segments]
