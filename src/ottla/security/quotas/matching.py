"""Finds the quota that counts for a client: that of the most specific entity that matches, in Kafka's order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from ottla.metadata_store import znodes
from ottla.metadata_store.cluster_view import ClusterView
from ottla.security.quotas.entities import (
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    CONTROLLER_MUTATION_RATE,
    DEFAULT,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    QuotaEntity,
    entity_of_node,
    quotas_in,
)

CLIENT_KEYS: Final = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE)


class Limit(NamedTuple):
    """The value of a quota, and who shares it: all clients with this user and client id, where empty means any."""

    value: float
    user: str
    client_id: str


class QuotaTable:
    """The quotas of the cluster, by key. They are few where there are many clients."""

    def __init__(self) -> None:
        self._quotas: dict[str, dict[QuotaEntity, float]] = {}

    def update(self, old: ClusterView, new: ClusterView) -> bool:
        """Apply what differs between two snapshots; return whether a quota does."""
        is_changed = False
        for kind in znodes.QUOTA_KINDS:
            before, after = old.configs.get(kind, {}), new.configs.get(kind, {})
            if before is after:
                continue
            for name, config in after.items():
                known = before.get(name)
                if known is not config:
                    is_changed |= self._set(kind, name, quotas_in(config.values))
            for name in before.keys() - after.keys():
                is_changed |= self._set(kind, name, {})
        return is_changed

    def _set(self, kind: str, name: str, quotas: Mapping[str, float]) -> bool:
        entity = entity_of_node(kind, name)
        if entity is None:
            return False
        is_changed = False
        for key in (*CLIENT_KEYS, CONNECTION_CREATION_RATE):
            of_key, value = self._quotas.setdefault(key, {}), quotas.get(key)
            if of_key.get(entity) == value:
                continue
            is_changed = True
            if value is None:
                del of_key[entity]
            else:
                of_key[entity] = value
        return is_changed

    @property
    def is_empty(self) -> bool:
        """Whether no client has any quota; addresses may have."""
        return not any(self._quotas.get(key) for key in CLIENT_KEYS)

    def limit(self, key: str, user: str, client_id: str) -> Limit | None:
        """Return the limit that counts for a client; None if there is none. An empty client id matches no quota of one.

        The order is that of Kafka's ClientQuotaManager. With a quota of a user all its clients share one rate; with one
        of a client id all users do; with one of both, even of defaults, each pair has a rate of its own.
        """
        quotas = self._quotas.get(key)
        if not quotas:
            return None
        for entity in _most_specific_first(user, client_id):
            value = quotas.get(entity)
            if value is not None:
                return Limit(value, "" if entity.user is None else user, "" if entity.client_id is None else client_id)
        return None

    def connection_rates(self) -> tuple[dict[str, float], float | None]:
        """Return the rates of new connections by address, and that of any other address; None for no limit."""
        rates = self._quotas.get(CONNECTION_CREATION_RATE, {})
        by_address = {entity.ip: value for entity, value in rates.items() if isinstance(entity.ip, str)}
        return by_address, rates.get(QuotaEntity(ip=DEFAULT))


def _most_specific_first(user: str, client_id: str) -> tuple[QuotaEntity, ...]:
    if not client_id:
        return QuotaEntity(user), QuotaEntity(DEFAULT)
    return (
        QuotaEntity(user, client_id),
        QuotaEntity(user, DEFAULT),
        QuotaEntity(user),
        QuotaEntity(DEFAULT, client_id),
        QuotaEntity(DEFAULT, DEFAULT),
        QuotaEntity(DEFAULT),
        QuotaEntity(None, client_id),
        QuotaEntity(None, DEFAULT),
    )
