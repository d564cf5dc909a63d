"""AlterClientQuotas (key 49), versions 0 to 1.

What it does
  Sets and removes quotas of users, client ids, client ids of users, addresses, and of their defaults, with Kafka's
  checks. All changes of one entity happen or none of them; an error of one entity does not affect the others. Of an
  entity that a request names twice the first entry counts, and the answer says so, as in Kafka.

What it does not do
  Resolve the name of a host: an address is an address.

Versions
  v1   flexible encoding
"""

from __future__ import annotations

from functools import partial
from typing import Any

from ottla.broker.handler_parts.admin_requests import error_fields
from ottla.broker.requests.authorization import on_cluster
from ottla.broker.requests.elements import Each, InParts, collect
from ottla.broker.requests.handler import ElementWiseAfter
from ottla.broker.requests.request import Request
from ottla.controller.config_changes import AlterConfig, ConfigChange
from ottla.core.acls import AclOperation
from ottla.core.errors import InvalidRequest, KafkaError
from ottla.core.settings import AlterConfigOpType
from ottla.metadata_store.cluster_view import ClusterView
from ottla.security.quotas.entities import check_value, entity_of, node_of, value_text
from ottla.wire.generated.alter_client_quotas import (
    MESSAGES,
    AlterClientQuotasRequest,
    AlterClientQuotasRequestEntryData,
    AlterClientQuotasResponse,
    AlterClientQuotasResponseEntryData,
    EntityData,
    OpData,
)

ENTITY_WORK = 20
"""The share of a slice of work of one entity, before that of its changes."""


class _Entry:
    """The quotas of one entity that a request changes, and the outcome."""

    __slots__ = ("error", "event", "ops", "parts")

    def __init__(self) -> None:
        self.parts: dict[str, str | None] = {}  # of the entity, by type; the last of a type counts
        self.ops: dict[str, OpData | None] = {}  # by key; None: it occurs twice
        self.event: AlterConfig | None = None
        self.error: KafkaError | None = None


_Entries = dict[frozenset[tuple[str, str | None]], _Entry]


async def alter(request: Request, body: AlterClientQuotasRequest) -> _Entries:
    """Alter the quotas of each entity; return the entities with their errors."""
    entries: _Entries = {}
    await collect(request, Each[Any, None](body.entries, partial(_entry, entries), work=ENTITY_WORK))
    changed = [entry for entry in entries.values() if entry.event is not None]
    events = [entry.event for entry in changed if entry.event is not None]
    try:
        outcomes = await request.services.controller.alter_configs(events, validate_only=body.validate_only)
    except KafkaError as error:
        outcomes = [error for _ in events]
    for entry, outcome in zip(changed, outcomes, strict=True):
        entry.error = entry.error or outcome
    return entries


def _entry(
    entries: _Entries, _request: Request, data: AlterClientQuotasRequestEntryData, _view: ClusterView
) -> InParts[None]:
    entry = _Entry()
    return InParts(
        None,
        Each(data.entity, partial(_part, entry)),
        Each(data.ops, partial(_op, entry)),
        Each([entry], partial(_decide, entries)),
    )


def _part(entry: _Entry, _request: Request, part: EntityData, _view: ClusterView) -> None:
    entry.parts[part.entity_type] = part.entity_name


def _op(entry: _Entry, _request: Request, op: OpData, _view: ClusterView) -> None:
    entry.ops[op.key] = None if op.key in entry.ops else op


def _decide(entries: _Entries, _request: Request, entry: _Entry, _view: ClusterView) -> None:
    """Check an entity and its changes, or note that it occurs twice."""
    first = entries.setdefault(frozenset(entry.parts.items()), entry)
    if first is not entry or None in entry.ops.values():
        first.error = InvalidRequest(f"Ignoring duplicate entity {_described(entry)}")
        return
    try:
        entity = entity_of(entry.parts)
        changes = []
        for key, op in entry.ops.items():
            assert op is not None
            if op.remove:
                changes.append(ConfigChange(AlterConfigOpType.DELETE, key))
            else:
                check_value(entity, key, op.value)
                changes.append(ConfigChange(AlterConfigOpType.SET, key, value_text(key, op.value)))
    except InvalidRequest as error:
        entry.error = error
    else:
        entry.event = AlterConfig(*node_of(entity), changes, {}, _accept)


def _described(entry: _Entry) -> str:
    """Describe an entity as Kafka does in a message."""
    parts = sorted(entry.parts.items())
    listed = ", ".join(f"{kind}={'null' if name is None else name}" for kind, name in parts)
    return f"ClientQuotaEntity(entries={{{listed}}})"


def _accept(_values: object) -> None:
    """Accept all values: they are checked already."""


def answer(
    _request: Request, _body: AlterClientQuotasRequest, entries: _Entries, _view: ClusterView
) -> InParts[AlterClientQuotasResponse]:
    """Return the outcome of each entity."""
    response = AlterClientQuotasResponse()
    return InParts(response, Each(entries.values(), _outcome, into=response.entries))


def _outcome(_request: Request, entry: _Entry, _view: ClusterView) -> AlterClientQuotasResponseEntryData:
    code, message = error_fields(entry.error)
    parts = [EntityData(entity_type=kind, entity_name=name) for kind, name in entry.parts.items()]
    return AlterClientQuotasResponseEntryData(error_code=code, error_message=message, entity=parts)


def refused(_request: Request, body: AlterClientQuotasRequest, error: KafkaError) -> InParts[AlterClientQuotasResponse]:
    """Answer a client that may not alter quotas."""
    response = AlterClientQuotasResponse()
    return InParts(response, Each(body.entries, partial(_refused, error), into=response.entries))


def _refused(
    error: KafkaError, _request: Request, entry: AlterClientQuotasRequestEntryData, _view: ClusterView
) -> AlterClientQuotasResponseEntryData:
    code, message = error_fields(error)
    return AlterClientQuotasResponseEntryData(error_code=code, error_message=message, entity=entry.entity)


HANDLER = ElementWiseAfter(
    MESSAGES, first=alter, answer=answer, access=(on_cluster(AclOperation.ALTER_CONFIGS),), refuse=refused
)
