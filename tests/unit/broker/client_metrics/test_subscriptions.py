"""Selectors of subscriptions are matched in linear time, and a plain name without RE2."""

from __future__ import annotations

import sys

import pytest

from ottla.broker.client_metrics.subscriptions import parse_match, read_subscriptions
from ottla.metadata_store.cluster_view import EntityConfig


def test_a_plain_name_needs_no_re2_and_another_expression_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    (regex,) = parse_match(["client_software_name=apache-kafka-java"]).values()
    assert regex.fullmatch("apache-kafka-java") and not regex.fullmatch("apache-kafka-java2")
    with pytest.raises(ValueError, match="RE2"):
        parse_match(["client_id=a.*"])


def test_a_selector_cannot_keep_a_broker_busy() -> None:
    (regex,) = parse_match(["client_id=(a+)+b"]).values()
    assert regex.fullmatch("a" * 250) is None


def test_a_stored_subscription_that_cannot_be_read_matches_no_client(caplog: pytest.LogCaptureFixture) -> None:
    stored = {
        "bad": EntityConfig({"metrics": "*", "match": "client_id=("}, 0),
        "deleted": EntityConfig({}, 0),
        "good": EntityConfig({"metrics": "a"}, 0),
    }
    assert [each.metrics for each in read_subscriptions(stored)] == [("a",)]
    assert "bad is not used" in caplog.text
