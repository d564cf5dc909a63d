"""Decides what the controller writes, as a function of the cluster snapshot and an event.

A decision never waits and never reads a clock or the store, so a test of a rule is one plain call. Random values come
with the event (a topic's id, the start of placement). Every write names the version it was decided on, and the
controller adds a check of its own epoch, so a decision made on an old snapshot, or by a controller that has been
replaced, changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, assert_never, cast

from ottla.controller.config_changes import AlterConfig, alter_config
from ottla.controller.election_events import (
    BrokersGone,
    BrokerShutsDown,
    BrokerStarted,
    ElectionEvent,
    ElectLeaders,
    ElectMissing,
    NoteBrokers,
    ReplicasReported,
    elect,
    elect_leaders,
    note_brokers,
)
from ottla.controller.isr import AlterPartition, AlterPartitionResult, alter_partitions
from ottla.controller.overlay import Overlay
from ottla.controller.reassignments import Reassign, reassign
from ottla.controller.security_changes import (
    CreateAcls,
    CreateToken,
    DeleteAcls,
    DeletedAcls,
    ExpireToken,
    RemoveToken,
    RenewToken,
    SecurityChange,
)
from ottla.controller.topics import (
    CreatePartitions,
    CreateTopic,
    DeleteTopic,
    FinishDeletion,
    create_partitions,
    create_topic,
    delete_topic,
    finish_deletion,
)
from ottla.core.errors import KafkaError
from ottla.metadata_store.cluster_view import TopicView

Event = (
    CreateTopic
    | CreatePartitions
    | DeleteTopic
    | FinishDeletion
    | AlterConfig
    | AlterPartition
    | ElectLeaders
    | Reassign
    | ElectionEvent
    | NoteBrokers
    | SecurityChange
)

Outcome = TopicView | list[AlterPartitionResult | KafkaError] | list[KafkaError | None] | list[DeletedAcls] | int | None
"""The topic of a creation, one outcome for each partition or ACL of a request, when a token expires, or None."""


def apply(overlay: Overlay, event: Event) -> Outcome:
    """Decide an event on the result of those before it. Raises the `KafkaError` for the client and changes nothing."""
    match event:
        case CreateTopic():
            return create_topic(overlay, event)
        case CreatePartitions():
            return create_partitions(overlay, event)
        case DeleteTopic():
            delete_topic(overlay, event)
            return None
        case FinishDeletion():
            finish_deletion(overlay, event)
            return None
        case AlterConfig():
            alter_config(overlay, event)
            return None
        case AlterPartition():
            return alter_partitions(overlay, event)
        case ElectLeaders():
            return elect_leaders(overlay, event)
        case Reassign():
            return reassign(overlay, event)
        case BrokersGone() | BrokerStarted() | BrokerShutsDown() | ReplicasReported() | ElectMissing():
            elect(overlay, event)
            return None
        case NoteBrokers():
            note_brokers(overlay, event)
            return None
        case CreateAcls() | DeleteAcls() | CreateToken() | RenewToken() | ExpireToken() | RemoveToken():
            return _change_security(overlay, event)
        case _:
            assert_never(event)


def _change_security(overlay: Overlay, change: SecurityChange) -> Outcome:
    """Decide a change of ACLs or tokens, of which most clusters have none."""
    if isinstance(change, CreateAcls | DeleteAcls):
        from ottla.controller.acl_changes import create_acls, delete_acls

        return create_acls(overlay, change) if isinstance(change, CreateAcls) else delete_acls(overlay, change)
    from ottla.controller.token_changes import change_token

    return change_token(overlay, change)


class DecidedEvent(NamedTuple):
    """Holds the outcome of an event and where its operations begin and end among all."""

    begin: int
    end: int
    outcome: Outcome | KafkaError


def errors_of(outcomes: Sequence[Outcome | KafkaError]) -> list[KafkaError | None]:
    """Return the error of each event, or None."""
    return [outcome if isinstance(outcome, KafkaError) else None for outcome in outcomes]


def outcomes_of(outcome: Outcome | KafkaError) -> list[KafkaError | None]:
    """Return the error of each partition of one event, or None; raise that of the whole event."""
    if isinstance(outcome, KafkaError):
        raise outcome
    assert isinstance(outcome, list), "one outcome for each partition"
    return cast("list[KafkaError | None]", outcome)  # not copied: there may be a million
