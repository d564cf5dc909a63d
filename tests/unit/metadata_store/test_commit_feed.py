"""Entries of the commit feed: what a reader learns of a commit."""

from __future__ import annotations

import json

import pytest

from ottla.metadata_store.commit_feed import (
    ENTRY_MAX,
    VALUE_MAX,
    EffectKind,
    MalformedEntry,
    NodeEffect,
    decode_entry,
    effects_of,
    encode_entry,
    entry_path,
)
from ottla.metadata_store.store import Check, Create, Delete, Op, Put


@pytest.mark.parametrize(
    ("ops", "effects"),
    [
        ([Check("/a", 3)], []),
        ([Create("/a", b"1")], [NodeEffect(EffectKind.CREATED, "/a", 0, b"1")]),
        ([Create("/a", b"1"), Put("/a", b"2"), Put("/a", b"3", 1)], [NodeEffect(EffectKind.CREATED, "/a", 2, b"3")]),
        ([Create("/a", b"1", ephemeral=True)], [NodeEffect(EffectKind.CREATED_EPHEMERAL, "/a", 0, b"1")]),
        ([Put("/a", b"1", 7), Put("/a", b"2")], [NodeEffect(EffectKind.WRITTEN, "/a", 2, b"2")]),
        ([Put("/a", b"1"), Delete("/a")], [NodeEffect(EffectKind.DELETED, "/a")]),
        ([Delete("/a"), Create("/a", b"1")], [NodeEffect(EffectKind.CREATED, "/a", 0, b"1")]),
        ([Create("/c/n_", b"x", sequential=True)], [NodeEffect(EffectKind.CHILD_CREATED, "/c")]),
    ],
)
def test_an_entry_has_one_effect_for_each_node(ops: list[Op], effects: list[NodeEffect]) -> None:
    assert list(effects_of(ops)) == effects
    assert decode_entry(encode_entry("1-2", effects)) == ("1-2", tuple(effects))


def test_values_that_are_large_or_no_text_must_be_read() -> None:
    large, binary = b"x" * (VALUE_MAX + 1), b"\xff"
    entry = decode_entry(encode_entry("id", effects_of([Create("/large", large), Put("/binary", binary)])))
    assert entry.effects == (NodeEffect(EffectKind.UNKNOWN, "/large"), NodeEffect(EffectKind.UNKNOWN, "/binary"))


def test_an_entry_stays_far_below_the_limit_of_a_request() -> None:
    encoded = encode_entry("id", effects_of([Create(f"/{number}", b"x" * VALUE_MAX) for number in range(500)]))
    assert len(encoded) < ENTRY_MAX + 50_000
    effects = decode_entry(encoded).effects
    assert len(effects) == 500
    assert effects[0].kind is EffectKind.CREATED
    assert effects[-1].kind is EffectKind.UNKNOWN


@pytest.mark.parametrize(
    "value", [b"", b"{}", b"[]", b'{"id":"1","changes":[["z","/a"]]}', b'{"id":"1","changes":[["c","/a",1]]}']
)
def test_other_content_is_refused(value: bytes) -> None:
    with pytest.raises(MalformedEntry):
        decode_entry(value)


def test_entries_are_plain_json_that_people_can_read() -> None:
    encoded = encode_entry("7-1", effects_of([Put("/brokers/topics/t/partitions/0/state", b'{"leader":1}')]))
    assert json.loads(encoded) == {
        "version": 1,
        "id": "7-1",
        "changes": [["w", "/brokers/topics/t/partitions/0/state", 1, '{"leader":1}']],
    }
    assert entry_path(12) == "/ottla_changes/c_0000000012"
