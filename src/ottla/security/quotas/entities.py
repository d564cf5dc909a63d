"""Names what quotas are set for: a user, a client id, a client id of a user, an address, or the default of each.

The rules and the messages are those of Kafka 4.4 (ClientQuotaControlManager); the nodes of the metadata store are those
of Kafka 3.x: `/config/users/USER`, `/config/users/USER/clients/CLIENT`, `/config/clients/CLIENT` and `/config/ips/IP`,
where `<default>` stands for all that have none of their own.
"""

from __future__ import annotations

import ipaddress
import math
from collections.abc import Iterator, Mapping
from decimal import Decimal
from enum import Enum
from types import MappingProxyType
from typing import Final, NamedTuple

from ottla.core.errors import InvalidRequest
from ottla.core.settings import INT_MAX, LONG_MAX
from ottla.metadata_store import znodes

USER, CLIENT_ID, IP = "user", "client-id", "ip"
"""The types of entities on the wire."""

PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE = "producer_byte_rate", "consumer_byte_rate"
REQUEST_PERCENTAGE, CONTROLLER_MUTATION_RATE = "request_percentage", "controller_mutation_rate"
CONNECTION_CREATION_RATE = "connection_creation_rate"


class Default(Enum):
    """Stands for all users, client ids or addresses without a quota of their own."""

    DEFAULT = znodes.DEFAULT_ENTITY


DEFAULT: Final = Default.DEFAULT
Name = str | Default


class QuotaEntity(NamedTuple):
    """Name what a quota is set for. None: of any user, client id or address; it is no part of the entity."""

    user: Name | None = None
    client_id: Name | None = None
    ip: Name | None = None

    def parts(self) -> Iterator[tuple[str, str | None]]:
        """Yield type and name of each part as the wire has them, where None is the default, in Kafka's order."""
        for kind, name in ((IP, self.ip), (USER, self.user), (CLIENT_ID, self.client_id)):
            if name is not None:
                yield kind, None if name is DEFAULT else name


class _Number(Enum):
    """The types of values: an upper bound, and how an error names it."""

    DOUBLE = (math.inf, "")
    INT = (INT_MAX, "an INT")
    LONG = (LONG_MAX, "a LONG")


_USER_AND_CLIENT_KEYS: Mapping[str, _Number] = MappingProxyType(
    {
        PRODUCER_BYTE_RATE: _Number.LONG,
        CONSUMER_BYTE_RATE: _Number.LONG,
        REQUEST_PERCENTAGE: _Number.DOUBLE,
        CONTROLLER_MUTATION_RATE: _Number.DOUBLE,
    }
)
_IP_KEYS: Mapping[str, _Number] = MappingProxyType({CONNECTION_CREATION_RATE: _Number.INT})


def entity_of(parts: Mapping[str, str | None]) -> QuotaEntity:
    """Return the entity with these parts, by type. Raises InvalidRequest as Kafka does."""
    if not parts:
        raise InvalidRequest("Invalid empty client quota entity")
    for kind, name in parts.items():
        if kind not in {USER, CLIENT_ID, IP}:
            raise InvalidRequest(f"Unhandled client quota entity type: {kind}")
        if name is not None and not name:
            raise InvalidRequest(f"Empty {kind} not supported")
    named = {kind: DEFAULT if name is None else name for kind, name in parts.items()}
    entity = QuotaEntity(named.get(USER), named.get(CLIENT_ID), named.get(IP))
    if entity.ip is not None:
        if len(parts) > 1:
            raise InvalidRequest(
                "Invalid quota entity combination, IP entity should" + "not be combined with User or ClientId"
            )
        if isinstance(entity.ip, str) and not _is_address(entity.ip):
            raise InvalidRequest(f"{entity.ip} is not a valid IP or resolvable host.")
    return entity


def _is_address(text: str) -> bool:
    """Return whether it is an address. Names of hosts, which Kafka resolves, are refused."""
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def check_value(entity: QuotaEntity, key: str, value: float) -> None:
    """Raise InvalidRequest as Kafka does if an entity cannot have this quota."""
    number = (_USER_AND_CLIENT_KEYS if entity.ip is None else _IP_KEYS).get(key)
    if number is None:
        raise InvalidRequest(f"Invalid configuration key {key}")
    if not value > 0:  # NaN, too, which Kafka takes
        raise InvalidRequest(f"Quota {key} must be greater than 0")
    if number is _Number.DOUBLE:
        return
    at_most, name = number.value
    if value > at_most:
        raise InvalidRequest(f"Proposed value for {key} is too large for {name}.")
    if value % 1 > 1e-6:
        raise InvalidRequest(f"{key} cannot be a fractional value.")


def value_text(key: str, value: float) -> str:
    """Return a quota as Kafka writes it in a node.

    >>> value_text("producer_byte_rate", 1024.0), value_text("request_percentage", 12.5)
    ('1024', '12.5')
    """
    if {**_USER_AND_CLIENT_KEYS, **_IP_KEYS}[key] is _Number.DOUBLE:
        return _java_double(value)
    return str(min(int(value + 1e-6), LONG_MAX))


def _java_double(value: float) -> str:
    """Return a positive number as Java's Double.toString does: from 10^7 on, and below 10^-3, with an exponent.

    >>> _java_double(200.0), _java_double(12345678.0), _java_double(0.00012)
    ('200.0', '1.2345678E7', '1.2E-4')
    """
    if math.isinf(value):
        return "Infinity"
    if 1e-3 <= value < 1e7:
        return repr(value)
    _, digits, exponent = Decimal(repr(value)).normalize().as_tuple()
    assert isinstance(exponent, int), "it is finite"
    whole, *fraction = map(str, digits)
    return f"{whole}.{''.join(fraction) or '0'}E{exponent + len(fraction)}"


# ---- In the metadata store


def node_of(entity: QuotaEntity) -> tuple[str, str]:
    """Return the kind and the name below /config of the node that holds an entity's quotas.

    >>> node_of(QuotaEntity(user="a b", client_id=DEFAULT))
    ('users', 'a%20b/clients/<default>')
    """
    if entity.ip is not None:
        return znodes.IPS_KIND, _node_name(entity.ip)
    if entity.user is None:
        assert entity.client_id is not None, "an entity has a part"
        return znodes.CLIENTS_KIND, _node_name(entity.client_id)
    if entity.client_id is None:
        return znodes.USERS_KIND, _node_name(entity.user)
    return znodes.USERS_KIND, f"{_node_name(entity.user)}/clients/{_node_name(entity.client_id)}"


def entity_of_node(kind: str, name: str) -> QuotaEntity | None:
    """Return the entity whose quotas a node holds; None for the parent of others."""
    match kind, name.split("/"):
        case znodes.IPS_KIND, [ip]:
            return QuotaEntity(ip=_named(ip))
        case znodes.CLIENTS_KIND, [client]:
            return QuotaEntity(client_id=_named(client))
        case znodes.USERS_KIND, [user]:
            return QuotaEntity(user=_named(user))
        case znodes.USERS_KIND, [user, _, client]:
            return QuotaEntity(user=_named(user), client_id=_named(client))
    return None


def _node_name(name: Name) -> str:
    return name.value if isinstance(name, Default) else znodes.sanitized(name)


def _named(node_name: str) -> Name:
    return DEFAULT if node_name == znodes.DEFAULT_ENTITY else znodes.desanitized(node_name)


def quotas_in(values: Mapping[str, str]) -> dict[str, float]:
    """Select the quotas among the settings of a node, which may hold a user's credentials, too."""
    quotas: dict[str, float] = {}
    for key in _USER_AND_CLIENT_KEYS.keys() | _IP_KEYS.keys():
        if (text := values.get(key)) is not None:
            try:
                value = float(text)
            except ValueError:
                continue  # another program wrote it
            if value > 0:  # not NaN
                quotas[key] = value
    return quotas
