"""DescribeClientQuotas (key 48), versions 0 to 1.

What it does
  Lists the quotas of the entities that a filter matches, or says what is wrong with the filter, as Kafka does.

What it does not do
  Find an address by the name of a host: an address is an address.

Versions
  v1   flexible encoding
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

from ottla.broker.handler_parts.admin_requests import error_fields
from ottla.broker.requests.authorization import on_cluster
from ottla.broker.requests.elements import Each, InParts
from ottla.broker.requests.handler import ElementWise
from ottla.broker.requests.request import Request
from ottla.core.acls import AclOperation
from ottla.core.errors import InvalidRequest, KafkaError, UnsupportedVersion
from ottla.metadata_store import znodes
from ottla.metadata_store.cluster_view import ClusterView, EntityConfig
from ottla.security.quotas.entities import CLIENT_ID, IP, USER, entity_of_node, quotas_in
from ottla.wire.generated.describe_client_quotas import (
    MESSAGES,
    ComponentData,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
    EntityData,
    EntryData,
    ValueData,
)

EXACT, DEFAULT, SPECIFIED = 0, 1, 2
"""The ways in which a component of a filter matches a name: the given one, the default's, any."""


class _Filter(NamedTuple):
    """Matches entities by type and name."""

    names: dict[str, str | None]  # by type; None: of the default
    types: set[str]  # of any name
    is_strict: bool  # no other types

    def matches(self, parts: dict[str, str | None]) -> bool:
        """Return whether an entity with these parts is asked for."""
        if self.is_strict and len(parts) != len(self.names) + len(self.types):
            return False
        return self.types <= parts.keys() and all(
            kind in parts and parts[kind] == name for kind, name in self.names.items()
        )


def answer(
    _request: Request, body: DescribeClientQuotasRequest, view: ClusterView
) -> DescribeClientQuotasResponse | InParts[DescribeClientQuotasResponse]:
    """Return the quotas that the filter matches, or what is wrong with it."""
    try:
        quota_filter = _filter(body.components, is_strict=body.strict)
    except KafkaError as error:
        code, message = error_fields(error)
        return DescribeClientQuotasResponse(error_code=code, error_message=message, entries=None)
    response = DescribeClientQuotasResponse()
    assert response.entries is not None
    nodes = ((kind, *node) for kind in znodes.QUOTA_KINDS for node in view.configs.get(kind, {}).items())
    return InParts(response, Each(nodes, partial(_described, quota_filter), into=response.entries))


def _described(
    quota_filter: _Filter, _request: Request, node: tuple[str, str, EntityConfig], _view: ClusterView
) -> EntryData | None:
    kind, name, config = node
    entity, quotas = entity_of_node(kind, name), quotas_in(config.values)
    if entity is None or not quotas or not quota_filter.matches(parts := dict(entity.parts())):
        return None
    return EntryData(
        entity=[EntityData(entity_type=part, entity_name=of) for part, of in parts.items()],
        values=[ValueData(key=key, value=value) for key, value in quotas.items()],
    )


def _filter(components: list[ComponentData], *, is_strict: bool) -> _Filter:
    """Return the filter. Raises InvalidRequest or UnsupportedVersion for a wrong one.

    Ends after four components at most: there are three types.
    """
    names: dict[str, str | None] = {}
    types: set[str] = set()
    for component in components:
        name = component.entity_type
        if not name:
            raise InvalidRequest("Invalid empty entity type.")
        if name in types or name in names:
            raise InvalidRequest(f"Entity type {name} cannot appear more than once in the filter.")
        if name not in {USER, CLIENT_ID, IP}:
            raise UnsupportedVersion(f"Unsupported entity type {name}")
        match component.match_type, component.match:
            case (0, None):
                raise InvalidRequest("Request specified MATCH_TYPE_EXACT, but set match string to null.")
            case (1, str()):
                raise InvalidRequest("Request specified MATCH_TYPE_DEFAULT, but also specified a match string.")
            case (2, str()):
                raise InvalidRequest("Request specified MATCH_TYPE_SPECIFIED, but also specified a match string.")
            case (0 | 1, match):
                names[name] = match
            case (2, _):
                types.add(name)
            case (unknown, _):
                raise InvalidRequest(f"Unknown match type {unknown}")
    asked = types | names.keys()
    if IP in asked and len(asked) > 1:
        raise InvalidRequest(
            "Invalid entity filter component combination. IP filter component should not be used with "
            "user or clientId filter component."
        )
    return _Filter(names, types, is_strict)


HANDLER = ElementWise(MESSAGES, answer, access=(on_cluster(AclOperation.DESCRIBE_CONFIGS),))
