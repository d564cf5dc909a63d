"""Regular expressions of clients."""

from __future__ import annotations

import sys

import pytest

from ottla.core.regexes import matching_topics, why_invalid


def test_an_expression_matches_whole_names_and_an_invalid_one_none() -> None:
    assert matching_topics(["ord.*", "(", "er"], ["orders", "users"]) == {
        "ord.*": {"orders"},
        "(": frozenset(),
        "er": frozenset(),
    }


def test_without_re2_every_expression_is_refused_with_the_extra_that_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    assert why_invalid("ord.*") == "this broker was installed without RE2 (the extra `standard`)"
    assert matching_topics(["ord.*"], ["orders"]) == {"ord.*": frozenset()}
