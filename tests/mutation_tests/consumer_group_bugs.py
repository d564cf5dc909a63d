"""Lists bugs of consumer groups of the new protocol (KIP-848), which their random schedules must find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ottla.core.errors import ErrorCode
from ottla.groups.consumer import reconciliation, validation
from ottla.groups.consumer.events import CommitAnswer
from ottla.groups.consumer.group import ConsumerGroup
from ottla.groups.consumer.machine import ConsumerMachine
from ottla.groups.consumer.records import ConsumerRecordType, encode
from ottla.groups.modern.machine import ModernMachine
from ottla.internal_topics.machine_events import Reply
from tests.mutation_tests.patching import Bug, Patch
from tests.support import consumer_group_sim

Original = Callable[..., Any]


def consumer_group_schedules(seed: int, within: int) -> tuple[int, str] | None:
    """Play schedules; returns how many it took and what was wrong."""
    for count in range(within):
        try:
            consumer_group_sim.play(seed + count)
        except Exception as error:  # noqa: BLE001 - whatever the bug led to
            return count + 1, f"{type(error).__name__}: {error}"
    return None


SUITE = "consumer group machine"
CONSUMER_GROUP_SUITES = {SUITE: consumer_group_schedules}


def _nothing(_: Original) -> Original:
    return lambda *args, **kwargs: None


def _never(_: Original) -> Original:
    return lambda *args, **kwargs: False


def _any_commit(_: Original) -> Original:
    def validate(group: ConsumerGroup, commit: Any) -> CommitAnswer:
        known = commit.member_id in group.members
        return CommitAnswer(ErrorCode.NONE if known else ErrorCode.UNKNOWN_MEMBER_ID)

    return validate


def _answers_at_once(_: Original) -> Original:
    def reply(machine: ModernMachine[Any], ticket: int, answer: Any) -> None:
        machine._out.append(Reply(ticket, answer))

    return reply


def _failed_write_is_forgotten(original: Original) -> Original:
    def not_stored(machine: ModernMachine[Any], write: int, error: ErrorCode) -> None:
        original(machine, write, error)
        machine._records.clear()

    return not_stored


def _applied_only(original: Original) -> Original:
    def apply(machine: ConsumerMachine, record: Any) -> None:
        if record[0].kind is ConsumerRecordType.CURRENT_MEMBER_ASSIGNMENT:
            machine.group.apply(record)
        else:
            original(machine, record)

    return apply


def _recorded_only(original: Original) -> Original:
    def apply(machine: ConsumerMachine, record: Any) -> None:
        if record[0].kind is ConsumerRecordType.TARGET_ASSIGNMENT_MEMBER:
            machine._records.append(encode(record))
        else:
            original(machine, record)

    return apply


def _bug(name: str, what: str, *patches: Patch, within: int = 60) -> Bug:
    return Bug(name, what, SUITE, patches, 1, within)


CONSUMER_GROUP_BUGS = (
    _bug("granted-before-release", "a member gets partitions that another one has not released",
         Patch(ConsumerGroup, "is_owned", _never)),
    _bug("release-not-awaited", "partitions are free before their member reported the release",
         Patch(reconciliation, "owns_any", _never)),
    _bug("stale-epoch-accepted", "a heartbeat of any epoch is accepted", Patch(validation, "validate_epoch", _nothing)),
    _bug("instance-id-not-fenced", "a static member joins while another one has its instance id",
         Patch(validation, "validate_released", _nothing), within=200),
    _bug("commit-of-any-epoch", "a commit of any epoch is accepted", Patch(consumer_group_sim, "validate_commit", _any_commit)),
    _bug("member-answered-before-durable", "a member gets its assignment before it is durable",
         Patch(ModernMachine, "_reply", _answers_at_once), within=200),
    _bug("failed-write-forgotten", "records of a failed write are not written again",
         Patch(ModernMachine, "_not_stored", _failed_write_is_forgotten)),
    _bug("session-without-end", "a member's session timer is not set after a reload", Patch(ConsumerMachine, "_loaded", _nothing)),
    _bug("change-without-record", "a member's assignment changes without a record",
         Patch(ConsumerMachine, "_apply", _applied_only)),
    _bug("record-without-change", "a record of a target assignment is written and not applied",
         Patch(ConsumerMachine, "_apply", _recorded_only)),
)  # fmt: skip
