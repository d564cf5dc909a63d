"""Lists and changes quotas, as Kafka's Admin client does (KIP-546, KIP-612)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ottla.client.cluster import ANY_BROKER, Cluster
from ottla.client.errors import raise_for
from ottla.wire.apis import ApiKey

if TYPE_CHECKING:
    from ottla.wire.generated.alter_client_quotas import AlterClientQuotasResponse
    from ottla.wire.generated.describe_client_quotas import DescribeClientQuotasResponse

USER, CLIENT_ID, IP = "user", "client-id", "ip"
ENTITY_TYPES = (USER, CLIENT_ID, IP)
_EXACT, _DEFAULT = 0, 1  # match types of a filter
_CLIENT_QUOTAS = ("producer_byte_rate", "consumer_byte_rate", "request_percentage", "controller_mutation_rate")
_IP_QUOTAS = ("connection_creation_rate",)

Entity = Mapping[str, str | None]
"""The name by the type of the entity; None is the default entity of that type."""


@dataclass(frozen=True, slots=True)
class EntityQuotas:
    """The quotas of an entity."""

    entity: dict[str, str | None]
    values: dict[str, float]


def quotas_of(entity: Entity) -> tuple[str, ...]:
    """Return the names of the quotas that an entity may have."""
    return _IP_QUOTAS if IP in entity else _CLIENT_QUOTAS


def entity_text(entity: Entity) -> str:
    """Format an entity.

    >>> entity_text({"user": "alice", "client-id": None})
    'user=alice client-id=<default>'
    """
    ordered = sorted(entity.items(), key=lambda item: ENTITY_TYPES.index(item[0]) if item[0] in ENTITY_TYPES else 9)
    return " ".join(f"{kind}={'<default>' if name is None else name}" for kind, name in ordered)


async def list_quotas(cluster: Cluster, entity: Entity, *, strict: bool = False) -> list[EntityQuotas]:
    """List the entities with these names, with further ones unless `strict`. Raises the broker's `KafkaError`."""
    from ottla.wire.generated.describe_client_quotas import ComponentData, DescribeClientQuotasRequest

    components = [
        ComponentData(entity_type=kind, match_type=_DEFAULT if name is None else _EXACT, match=name)
        for kind, name in entity.items()
    ]
    ask = DescribeClientQuotasRequest(components=components, strict=strict)
    answer: DescribeClientQuotasResponse = await cluster.request(ANY_BROKER, ApiKey.DESCRIBE_CLIENT_QUOTAS, ask)
    raise_for(answer.error_code, answer.error_message)
    quotas = [
        EntityQuotas(
            {part.entity_type: part.entity_name for part in entry.entity},
            {value.key: value.value for value in sorted(entry.values, key=lambda value: value.key)},
        )
        for entry in answer.entries or []
    ]
    return sorted(quotas, key=lambda each: entity_text(each.entity))


async def alter_quotas(
    cluster: Cluster,
    entity: Entity,
    *,
    values: Mapping[str, float] | None = None,
    removed: Sequence[str] = (),
    validate_only: bool = False,
) -> None:
    """Set quotas of an entity and remove others. Raises the broker's `KafkaError`."""
    from ottla.wire.generated.alter_client_quotas import (
        AlterClientQuotasRequest,
        AlterClientQuotasRequestEntryData,
        EntityData,
        OpData,
    )

    operations = [OpData(key=key, value=value) for key, value in (values or {}).items()]
    operations += [OpData(key=key, remove=True) for key in removed]
    parts = [EntityData(entity_type=kind, entity_name=name) for kind, name in entity.items()]
    entry = AlterClientQuotasRequestEntryData(entity=parts, ops=operations)
    ask = AlterClientQuotasRequest(entries=[entry], validate_only=validate_only)
    answer: AlterClientQuotasResponse = await cluster.retrying(
        lambda: cluster.request(ANY_BROKER, ApiKey.ALTER_CLIENT_QUOTAS, ask)
    )
    result = answer.entries[0]
    raise_for(result.error_code, result.error_message, about=entity_text(entity))
