"""Splitting a buffer into batches."""

from __future__ import annotations

import pytest

from ottla.core.errors import CorruptMessage
from ottla.records.batch import split
from ottla.records.builder import NewRecord, build_batch

ONE = bytes(build_batch([NewRecord(None, b"x", 0, [])]))


def test_a_partial_batch_at_the_end_of_a_fetch_response_is_left_out() -> None:
    for cut in range(1, len(ONE)):
        assert [at for at, _ in split(ONE + ONE[:cut], partial_tail=True)] == [0]
    assert list(split(b"", partial_tail=True)) == []
    assert list(split(b"\0" * 100, partial_tail=True)) == []


@pytest.mark.parametrize("cut", [1, 12, 60, len(ONE) - 1])
def test_a_partial_batch_is_corrupt_where_none_is_expected(cut: int) -> None:
    with pytest.raises(CorruptMessage):
        list(split(ONE + ONE[:cut]))
