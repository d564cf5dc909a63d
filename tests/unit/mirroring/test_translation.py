"""A reader that moves to the copy with a translated offset misses no record and reads none twice."""

from __future__ import annotations

from bisect import bisect_left

from hypothesis import given
from hypothesis import strategies as st

from ottla.mirroring import translation
from ottla.mirroring.translation import OffsetRun, OffsetTranslation, runs_of

GAPS = st.lists(st.integers(0, 3), min_size=1, max_size=60)


@given(gaps=GAPS, sizes=st.lists(st.integers(1, 9), min_size=1), first=st.integers(0, 5), data=st.data())
def test_a_reader_continues_with_the_same_record(
    gaps: list[int], sizes: list[int], first: int, data: st.DataObject
) -> None:
    """Source offsets have gaps (markers, compaction); the copy has a marker after each transaction."""
    source: list[int] = []
    at = first
    for gap in gaps:
        at += gap
        source.append(at)
        at += 1
    copy: dict[int, int] = {}  # offset in the copy -> offset in the source
    found = OffsetTranslation()
    end, index, number = 0, 0, 0
    while index < len(source):
        taken = source[index : index + sizes[number % len(sizes)]]
        for run in runs_of(taken, end):
            found.add(run)
        copy |= {end + place: offset for place, offset in enumerate(taken)}
        end += len(taken) + 1  # the marker
        index, number = index + len(taken), number + 1
    wanted = data.draw(st.integers(0, source[-1] + 3))
    translated = found.to_target(wanted)
    left = source[bisect_left(source, wanted) :]
    if translated is None:
        assert wanted < source[0]
        translated = 0
        left = source
    assert [offset for place, offset in sorted(copy.items()) if place >= translated] == left


def test_contiguous_runs_are_one() -> None:
    found = OffsetTranslation()
    found.add(OffsetRun(0, 0, 5))
    found.add(OffsetRun(5, 5, 5))
    assert len(found) == 1
    assert found.to_target(9) == 9


def test_runs_of_a_topic_that_was_created_again_replace_the_old_ones() -> None:
    found = OffsetTranslation()
    found.add(OffsetRun(100, 0, 5))
    found.add(OffsetRun(0, 6, 2))
    assert found.to_target(1) == 7
    assert found.to_target(100) == 8, "after the last record"


def test_the_oldest_runs_are_forgotten_and_their_offsets_are_unknown() -> None:
    found = OffsetTranslation()
    for number in range(translation.RUNS_MAX + 1):
        found.add(OffsetRun(2 * number, 3 * number, 1))
    assert len(found) <= translation.RUNS_MAX
    assert found.to_target(0) is None, "a reader of these begins at the start of the copy"
    assert found.to_target(2 * translation.RUNS_MAX) == 3 * translation.RUNS_MAX
