"""Compares the address of a client with the host of an ACL: every host, an address, or a range (KIP-1276).

A range is `address/prefix length`, and holds its first and its last address too. Addresses are compared as such, so
that each way of writing an IPv6 address is the same. What is neither an address nor a range matches a client with
exactly that text only; there are no names of hosts and no expressions.
"""

from __future__ import annotations

import re
from functools import lru_cache
from ipaddress import AddressValueError, IPv4Address, IPv6Address
from typing import Final, NamedTuple

from ottla.core.acls import WILDCARD

_V4_RANGE: Final = re.compile(r"([0-9]{1,3})\.([0-9]{1,3})\.([0-9]{1,3})\.([0-9]{1,3})/([0-9]{1,2})")
_NUMBER: Final = re.compile(r"[+-]?\d{1,20}")
_INT_MAX: Final = (1 << 31) - 1


class _Range(NamedTuple):
    family: int  # the number of bits of its addresses
    first: int
    last: int


def host_matches(pattern: str, host: str) -> bool:
    """Return whether a client at `host` is meant by the host of an ACL.

    >>> host_matches("10.1.0.0/16", "10.1.2.3"), host_matches("10.1.0.0/16", "10.2.2.3"), host_matches("::1", "0:0::1")
    (True, False, True)
    """
    if pattern in {WILDCARD, host}:
        return True
    meant, address = _range(pattern), _address(host)
    return (
        meant is not None
        and address is not None
        and meant.family == address.family
        and meant.first <= address.first <= meant.last
    )


def range_problem(pattern: str) -> str:
    """Return what is wrong with a range, in the words of Kafka; empty if nothing is.

    >>> range_problem("10.1.0.0/33"), range_problem("10.1.0.0/16")
    ('Value [33] not in range [0,32]', '')
    """
    try:
        _parse_range(pattern)
    except ValueError as error:
        return str(error)
    return ""


@lru_cache(maxsize=4096)
def _range(pattern: str) -> _Range | None:
    if "/" not in pattern:
        return _address(pattern)
    try:
        return _parse_range(pattern)
    except ValueError:
        return None


@lru_cache(maxsize=4096)
def _address(text: str) -> _Range | None:
    try:
        if ":" not in text:
            value = int(IPv4Address(text))
            return _Range(32, value, value)
        address = IPv6Address(text.partition("%")[0])  # the zone says by which interface, not who
        mapped = address.ipv4_mapped
        value = int(address) if mapped is None else int(mapped)
        return _Range(128 if mapped is None else 32, value, value)
    except AddressValueError:
        return None


def _parse_range(pattern: str) -> _Range:
    """Parse a range. Raises ValueError with Kafka's message."""
    if ":" in pattern:
        family, (address, length) = 128, _parse_v6(pattern)
    else:
        family, (address, length) = 32, _parse_v4(pattern)
    hosts = (1 << (family - length)) - 1
    return _Range(family, address & ~hosts, address | hosts)


def _parse_v4(pattern: str) -> tuple[int, int]:
    parts = _V4_RANGE.fullmatch(pattern)
    if parts is None:
        raise ValueError(f"Could not parse [{pattern}]")
    *octets, length = map(int, parts.groups())
    value = 0
    for octet in octets:
        value = value << 8 | _within(octet, 255)
    return value, _within(length, 32)


def _within(value: int, at_most: int) -> int:
    if value > at_most:
        raise ValueError(f"Value [{value}] not in range [0,{at_most}]")
    return value


def _parse_v6(pattern: str) -> tuple[int, int]:
    text, _, length_text = pattern.partition("/")
    length = int(length_text) if _NUMBER.fullmatch(length_text) else _INT_MAX + 1
    if not -_INT_MAX <= length <= _INT_MAX:
        raise ValueError(f"Could not parse [{pattern}] - invalid prefix length")
    if not 0 <= length <= 128:
        raise ValueError(f"Could not parse [{pattern}] - prefix length must be between 0 and 128")
    inner = text[1:-1] if text.startswith("[") and text.endswith("]") else text
    try:
        address = IPv6Address(inner.partition("%")[0])
    except AddressValueError:
        raise ValueError(f"Could not parse [{text}]") from None
    if address.ipv4_mapped is not None:
        raise ValueError(f"Could not parse [{text}] - not an IPv6 address")
    return int(address), length
