"""The generated classes: defaults of their own, equality by values, and what they print."""

from __future__ import annotations

import pytest

from ottla.wire.generated.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse


def test_structs_are_compared_by_their_values_and_types() -> None:
    assert MetadataRequestTopic(name="a") == MetadataRequestTopic(name="a") != MetadataRequestTopic(name="b")
    assert MetadataRequest() != MetadataResponse()


def test_each_struct_has_lists_of_its_own() -> None:
    first, second = MetadataRequest(), MetadataRequest()
    first.topics = [*(first.topics or []), MetadataRequestTopic()]
    assert second.topics == []
    assert MetadataRequest(topics=None).topics is None
    assert MetadataResponse().topics is not MetadataResponse().topics


def test_a_struct_prints_its_fields() -> None:
    assert repr(MetadataRequestTopic(name="a")).endswith("name='a')")


def test_a_struct_has_only_the_fields_of_its_schema() -> None:
    with pytest.raises(TypeError):
        MetadataRequestTopic(partition=1)  # type: ignore[call-arg]
    with pytest.raises(AttributeError):
        MetadataRequestTopic().partition = 1  # type: ignore[attr-defined]
