"""Checks that every corruption is detected. A few hundred cases here; `make corruption-tests` runs ten thousand."""

import pytest
from crc32c import crc32c

from ottla.records import batch_faults as batch_verifier
from ottla.storage.log.segment import Segment
from tests.corruption_tests.campaign import KINDS, campaign, case_of, run_case
from tests.corruption_tests.directories import NAMES
from tests.corruption_tests.outcomes import Outcome

SILENT = {Outcome.SILENT, Outcome.WRONG, Outcome.CRASHED}


@pytest.mark.slow
def test_no_corruption_is_silent() -> None:
    tally = campaign(200, seed=20)
    assert not tally.bad, [f"--seed 20 --replay {number}: {case} {verdict}" for number, case, verdict in tally.bad]
    assert tally.counts[Outcome.REFUSED] > 10
    assert tally.counts[Outcome.REPAIRED] > 60


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS[1:])
def test_no_larger_corruption_is_silent(kind: str) -> None:
    tally = campaign(25, seed=21, kind=kind)
    assert not tally.bad, [f"--seed 21 --kind {kind} --replay {number}: {verdict}" for number, _, verdict in tally.bad]


def test_a_case_is_the_same_each_time() -> None:
    assert [case_of(3, number) for number in range(20)] == [case_of(3, number) for number in range(20)]
    assert {case_of(3, number).scenario for number in range(60)} == set(NAMES)
    assert run_case(case_of(3, 7)) == run_case(case_of(3, 7))


@pytest.mark.plain_form("takes a check out of a compiled class")
def test_without_verification_before_the_first_send_wrong_bytes_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Segment, "verified_ranges_at", lambda self, position: None)
    assert any(verdict.outcome in SILENT for _, _, verdict in campaign(60, seed=22).bad)


@pytest.mark.plain_form("takes a check out of a compiled class")
def test_without_checksums_the_campaign_finds_wrong_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    class Agreeing(int):
        """A checksum that fits everything."""

        def __eq__(self, other: object) -> bool:
            return True

        def __ne__(self, other: object) -> bool:
            return False

        __hash__ = int.__hash__

    monkeypatch.setattr(batch_verifier, "crc32c", lambda data: Agreeing(crc32c(data)))
    assert any(verdict.outcome in SILENT for _, _, verdict in campaign(60, seed=22).bad)
