"""The options that select offsets and partitions."""

from __future__ import annotations

import pytest

from ottla.cli.errors import CommandFailed
from ottla.cli.offset_options import check_range, read_offset, read_partitions

NOW_MS = 1_700_000_000_000


@pytest.mark.parametrize(
    ("text", "numbers"), [("0", (0,)), ("2,0,2", (0, 2)), ("5-7,0", (0, 5, 6, 7)), (" 1 , 3 ", (1, 3))]
)
def test_partition_numbers_are_sorted_and_without_duplicates(text: str, numbers: tuple[int, ...]) -> None:
    assert read_partitions("--partition", text) == numbers


@pytest.mark.parametrize("text", ["", "a", "1-", "-1", "3-1", "1,,2", "0-999999999", "1-2-3"])
def test_an_invalid_list_of_partitions_is_refused_with_the_name_of_the_option(text: str) -> None:
    with pytest.raises(CommandFailed, match="--partition: "):
        read_partitions("--partition", text)


@pytest.mark.parametrize(("first", "end"), [("10", "5"), ("@2015-05-18", "@2015-05-17"), ("-1h", "-2h"), ("-5", "-10")])
def test_a_range_that_is_empty_for_every_topic_is_refused(first: str, end: str) -> None:
    with pytest.raises(CommandFailed, match="--from is after --to"):
        check_range(read_offset("--from", first, now_ms=NOW_MS), read_offset("--to", end, now_ms=NOW_MS))


@pytest.mark.parametrize(("first", "end"), [("5", "10"), ("5", "5"), ("-10", "-5"), ("start", "end"), ("100", "-5")])
def test_a_range_that_may_contain_records_is_accepted(first: str, end: str) -> None:
    check_range(read_offset("--from", first, now_ms=NOW_MS), read_offset("--to", end, now_ms=NOW_MS))
