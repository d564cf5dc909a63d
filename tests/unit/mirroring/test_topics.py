"""Topics are selected by patterns, and their copies are named by a template."""

from __future__ import annotations

import pytest

from ottla.mirroring.topics import InvalidRename, TopicPolicy


def test_internal_topics_and_those_of_mirrors_are_never_selected() -> None:
    everything = TopicPolicy()
    assert everything.selects("orders")
    assert not everything.selects("__consumer_offsets")
    assert not everything.selects("__share_group_state")
    assert not everything.selects("ottla-mirror-eu")


def test_an_excluded_topic_is_not_selected() -> None:
    policy = TopicPolicy(("ord*", "clicks"), ("*.tmp",))
    assert [name for name in ("orders", "orders.tmp", "clicks", "views") if policy.selects(name)] == [
        "orders",
        "clicks",
    ]


@pytest.mark.parametrize("template", ["copy", "{source}", "{topic}/x", "{other}{topic}"])
def test_a_template_that_does_not_name_topics_is_refused(template: str) -> None:
    with pytest.raises(InvalidRename):
        TopicPolicy(rename=template)
