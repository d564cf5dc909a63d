"""Commits by epoch (KIP-1251), fetches by epoch, requests that are malformed, and the records of a consumer group."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ottla.core.errors import ErrorCode
from ottla.core.ids import GroupType
from ottla.core.regexes import matching_topics, why_invalid
from ottla.groups.consumer import records
from ottla.groups.consumer.events import MemberHeartbeat
from ottla.groups.consumer.group import ConsumerGroup
from ottla.groups.consumer.member import ClassicProtocol, ConsumerMember, MemberState
from ottla.groups.consumer.records import (
    ConsumerCurrentAssignment,
    ConsumerRecordKey,
    ConsumerRecordType,
    ResolvedRegex,
)
from ottla.groups.consumer.validation import validate_commit
from ottla.groups.consumer.validation import why_invalid as why_malformed
from ottla.groups.group import OffsetExpiry
from ottla.groups.machine import Commit
from ottla.groups.modern.records import GroupMetadata, TargetMember, TargetMetadata
from ottla.groups.records import MalformedOffsetsRecord
from tests.support.consumer_group_driver import Driver, topic_id

WEB = topic_id("web")


def _group() -> ConsumerGroup:
    """A member in epoch 5, which has partition 0 since epoch 3 and 1 since 5, and must release 2, which it has since 4."""
    group = ConsumerGroup("team", epoch=5, target_epoch=5)
    member = ConsumerMember(
        member_id="m",
        epoch=5,
        assigned={WEB: {0: 3, 1: 5}},
        pending_revocation={WEB: {2: 4}},
        topics=frozenset({"web"}),
    )
    _put(group, member)
    return group


def _put(group: ConsumerGroup, member: ConsumerMember) -> None:
    name = member.member_id
    group.apply((ConsumerRecordKey(ConsumerRecordType.MEMBER_METADATA, "team", name), member))
    group.apply(
        (ConsumerRecordKey(ConsumerRecordType.CURRENT_MEMBER_ASSIGNMENT, "team", name), records.current_of(member))
    )


def _commit(epoch: int, **fields: object) -> Commit:
    return Commit(**{"member_id": "m", "generation": epoch, "api_version": 10} | fields)  # type: ignore[arg-type]


def test_a_member_commits_all_partitions_in_its_epoch() -> None:
    answer = validate_commit(_group(), _commit(5))
    assert (answer.error, answer.accepted) == (ErrorCode.NONE, None)


@pytest.mark.parametrize(("epoch", "accepted"), [(4, {0, 2}), (3, {0}), (2, set())])
def test_in_an_older_epoch_it_commits_the_partitions_that_it_has_had_since(epoch: int, accepted: set[int]) -> None:
    answer = validate_commit(_group(), _commit(epoch))
    assert answer.error is ErrorCode.NONE
    assert answer.accepted == frozenset((WEB, index) for index in accepted)
    assert answer.refusal is ErrorCode.STALE_MEMBER_EPOCH


def test_commits_with_other_epochs_and_members_are_refused() -> None:
    group = _group()
    assert validate_commit(group, _commit(6)).error is ErrorCode.STALE_MEMBER_EPOCH
    assert validate_commit(group, _commit(5, member_id="x")).error is ErrorCode.UNKNOWN_MEMBER_ID
    assert validate_commit(group, _commit(5, api_version=8)).error is ErrorCode.UNSUPPORTED_VERSION
    assert validate_commit(group, _commit(-1, member_id="")).error is ErrorCode.UNKNOWN_MEMBER_ID
    _put(group, replace(group.members["m"], classic=ClassicProtocol(1, (("range", b""),))))
    assert validate_commit(group, _commit(6)).error is ErrorCode.ILLEGAL_GENERATION


def test_commits_without_a_member_are_for_empty_groups_and_transactions() -> None:
    assert validate_commit(ConsumerGroup("team"), _commit(-1, member_id="")).error is ErrorCode.NONE
    transactional = _commit(-1, member_id="", is_transactional=True)
    assert validate_commit(_group(), transactional).error is ErrorCode.NONE


def test_a_member_fetches_offsets_in_its_epoch() -> None:
    group = _group()
    assert group.validate_offset_fetch(None, -1) is ErrorCode.NONE
    assert group.validate_offset_fetch("m", 5) is ErrorCode.NONE
    assert group.validate_offset_fetch("m", 4) is ErrorCode.STALE_MEMBER_EPOCH
    assert group.validate_offset_fetch("x", 5) is ErrorCode.UNKNOWN_MEMBER_ID


def test_offsets_of_subscribed_topics_do_not_expire() -> None:
    group = _group()
    assert group.is_subscribed_to("web")
    assert not group.is_subscribed_to("app")
    assert group.offset_expiry() == OffsetExpiry()
    assert (group.summary.type, group.summary.protocol_type, group.summary.state) == (
        GroupType.CONSUMER,
        "consumer",
        "Reconciling" if group.members["m"].state is not MemberState.STABLE else "Stable",
    )


# ---- Malformed requests


def _joining(**fields: object) -> MemberHeartbeat:
    defaults: dict[str, object] = {
        "member_id": "m",
        "member_epoch": 0,
        "rebalance_timeout_ms": 1,
        "owned": {},
        "topics": frozenset({"web"}),
    }
    return MemberHeartbeat(**defaults | fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("beat", "version", "reason"),
    [
        (_joining(), 1, None),
        (_joining(member_id=""), 0, None),
        (_joining(member_id=""), 1, "MemberId can't be empty."),
        (_joining(member_id=" \t"), 1, "MemberId can't be empty."),
        (_joining(instance_id=""), 1, "InstanceId can't be empty."),
        (_joining(rack_id=" "), 1, "RackId can't be empty."),
        (_joining(rebalance_timeout_ms=-1), 1, "RebalanceTimeoutMs must be provided in first request."),
        (_joining(owned=None), 1, "TopicPartitions must be empty when (re-)joining."),
        (_joining(owned={WEB: frozenset({1})}), 1, "TopicPartitions must be empty when (re-)joining."),
        (
            _joining(topics=None),
            1,
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
        ),
        (_joining(topics=None, regex="x"), 1, None),
        (MemberHeartbeat(member_id="m", member_epoch=-2), 1, "InstanceId can't be null."),
        (MemberHeartbeat(member_id="m", member_epoch=-3), 1, "MemberEpoch is invalid."),
        (MemberHeartbeat(member_id="", member_epoch=3), 0, "MemberId can't be empty."),
        (MemberHeartbeat(member_id="m", member_epoch=-1), 1, None),
    ],
)
def test_malformed_heartbeats_are_explained(beat: MemberHeartbeat, version: int, reason: str | None) -> None:
    assert why_malformed("team", beat, version) == reason


def test_a_group_needs_an_id() -> None:
    assert why_malformed("", _joining(), 1) == "GroupId can't be empty."


# ---- Regular expressions


def test_expressions_match_whole_names_in_linear_time() -> None:
    assert matching_topics(["we.", "(a+)+$", "["], ["web", "web2", "a" * 200 + "b"]) == {
        "we.": {"web"},
        "(a+)+$": frozenset(),
        "[": frozenset(),
    }
    assert why_invalid("we.*") is None
    assert why_invalid("(?<=a)b") is not None, "RE2 has no look-around"


# ---- Records


@pytest.mark.parametrize("regex", ["", "we.*"])
def test_records_are_read_as_they_were_written(regex: str) -> None:
    member = ConsumerMember(
        member_id="m",
        instance_id="i",
        rack_id=None,
        client_id="c",
        client_host="/h",
        rebalance_timeout_ms=7,
        topics=frozenset({"web", "app"}),
        regex=regex,
        assignor="range",
        classic=ClassicProtocol(9, (("range", b"\1\2"), ("sticky", b""))),
    )
    key, value = records.decode(*records.member_metadata("team", member))
    assert (key, value) == (ConsumerRecordKey(ConsumerRecordType.MEMBER_METADATA, "team", "m"), member)
    with_state = replace(
        member,
        epoch=4,
        previous_epoch=3,
        state=MemberState.UNREVOKED_PARTITIONS,
        assigned={WEB: {0: 3, 5: 4}},
        pending_revocation={WEB: {2: 1}},
    )
    assert records.decode(*records.current_assignment("team", "m", records.current_of(with_state))) == (
        ConsumerRecordKey(ConsumerRecordType.CURRENT_MEMBER_ASSIGNMENT, "team", "m"),
        ConsumerCurrentAssignment(4, 3, MemberState.UNREVOKED_PARTITIONS, {WEB: {0: 3, 5: 4}}, {WEB: {2: 1}}),
    )
    for written, kind, expected in (
        (records.group_metadata("team", GroupMetadata(3, -9)), ConsumerRecordType.GROUP_METADATA, GroupMetadata(3, -9)),
        (records.group_metadata("team", GroupMetadata(3)), ConsumerRecordType.GROUP_METADATA, GroupMetadata(3)),
        (
            records.target_metadata("team", TargetMetadata(3, 12)),
            ConsumerRecordType.TARGET_ASSIGNMENT_METADATA,
            TargetMetadata(3, 12),
        ),
    ):
        assert records.decode(*written) == (ConsumerRecordKey(kind, "team"), expected)
    target = {WEB: frozenset({0, 1})}
    assert records.decode(*records.target_member("team", "m", target))[1] == TargetMember(target)
    resolved = ResolvedRegex(frozenset({"web"}), 4, 5)
    assert records.decode(*records.regular_expression("team", "we.*", resolved)) == (
        ConsumerRecordKey(ConsumerRecordType.REGULAR_EXPRESSION, "team", "we.*"),
        resolved,
    )


KAFKAS = {
    # Written by Apache Kafka 4.0, which has no hash, no epochs of partitions and no time of the target.
    "000300047465616d": ("00000000000300", GroupMetadata(3)),
    "000600047465616d": ("00000000000300", TargetMetadata(3)),
    "000800047465616d00016d": (
        "000000000003000000020002" + WEB.hex + "030000000000000001000100",
        ConsumerCurrentAssignment(3, 2, MemberState.STABLE, {WEB: {0: 3, 1: 3}}, {}),
    ),
}


@pytest.mark.parametrize("key", KAFKAS)
def test_records_of_older_versions_of_kafka_are_read(key: str) -> None:
    value, expected = KAFKAS[key]
    assert records.decode(bytes.fromhex(key), bytes.fromhex(value))[1] == expected


def test_malformed_records_are_reported() -> None:
    key, value = records.target_member("team", "m", {WEB: frozenset({0, 1})})
    assert value is not None
    for cut in range(1, len(value)):
        with pytest.raises(MalformedOffsetsRecord):
            records.decode(key, value[:cut])
    with pytest.raises(MalformedOffsetsRecord):
        records.decode(key, b"\0\1" + value[2:])


def test_of_two_owners_in_a_log_with_missing_records_the_first_stays() -> None:
    driver = Driver()
    driver.given(ConsumerRecordType.GROUP_METADATA, GroupMetadata(3))
    for name in ("m1", "m2"):
        member = ConsumerMember(member_id=name, epoch=5, assigned={WEB: {0: 3}})
        driver.given(ConsumerRecordType.MEMBER_METADATA, member, name)
        driver.given(ConsumerRecordType.CURRENT_MEMBER_ASSIGNMENT, records.current_of(member), name)
    driver.given(ConsumerRecordType.TARGET_ASSIGNMENT_METADATA, TargetMetadata(4, 7))
    driver.given(ConsumerRecordType.TARGET_ASSIGNMENT_MEMBER, TargetMember({WEB: frozenset({0})}), "gone")
    driver.given(ConsumerRecordType.REGULAR_EXPRESSION, ResolvedRegex(frozenset({"web"}), 1, 2), "we.*")
    driver.reload()
    group = driver.group
    assert group.members["m1"].assigned == {WEB: {0: 3}}
    assert group.members["m2"].assigned == {}
    assert {member.epoch for member in group.members.values()} == {3}, "no epoch is newer than that of the group"
    assert (group.target_epoch, group.target_wall_ms, group.target, group.regexes) == (3, 7, {}, {})
    driver.leave("m1")
    assert not group.is_owned(WEB, 0)


def test_what_a_member_has_may_come_before_the_member_in_a_compacted_log() -> None:
    member = ConsumerMember(member_id="m", epoch=3, previous_epoch=2, assigned={WEB: {0: 3}})
    group = ConsumerGroup("team")
    current = ConsumerRecordKey(ConsumerRecordType.CURRENT_MEMBER_ASSIGNMENT, "team", "m"), records.current_of(member)
    group.apply(current)
    assert not group.members
    group.apply((ConsumerRecordKey(ConsumerRecordType.MEMBER_METADATA, "team", "m"), member))
    assert group.members == {"m": member}
    assert group.is_owned(WEB, 0)


def test_a_group_without_its_epoch_is_deleted() -> None:
    group = ConsumerGroup("team")
    epoch = ConsumerRecordKey(ConsumerRecordType.GROUP_METADATA, "team")
    group.apply((epoch, GroupMetadata(3)))
    assert group.is_in_log
    group.apply((epoch, None))
    assert group == ConsumerGroup("team")


def test_the_metadata_of_topics_that_kafka_wrote_is_deleted_with_the_next_epoch() -> None:
    driver = Driver()
    driver.join("m")
    driver.log.append((records.key(ConsumerRecordType.PARTITION_METADATA, "team"), b"\0\0\1\0"))
    driver.reload()
    assert driver.group.has_partition_metadata
    driver.set_topics({"web": 5})
    driver.beat("m", 1)
    assert dict(driver.log)[records.key(ConsumerRecordType.PARTITION_METADATA, "team")] is None


def test_a_member_in_an_unknown_state_must_join_again() -> None:
    driver = Driver()
    driver.join("m")
    unknown = records.current_of(driver.member("m"))._replace(state=MemberState.UNKNOWN)
    driver.given(ConsumerRecordType.CURRENT_MEMBER_ASSIGNMENT, unknown, "m")
    assert driver.beat("m", 1).error is ErrorCode.FENCED_MEMBER_EPOCH
    assert driver.join("m").error is ErrorCode.NONE
