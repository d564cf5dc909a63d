"""Writes what Produce and Fetch responses share: strings, and the tagged fields of KIP-951 with the new leader."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, Protocol

from ottla.wire.primitives import STRING_BYTES_MAX, write_uvarint

_INT16: Final = struct.Struct(">h").pack
_INT32: Final = struct.Struct(">i").pack
_LEADER: Final = struct.Struct(">BBiiB").pack  # tag, size, leader id, leader epoch, no tags inside
_LEADER_BYTES: Final = 9


class Leader(Protocol):
    """The leader of a partition, in either API's shape."""

    leader_id: int
    leader_epoch: int


class LeaderEndpoint(Protocol):
    """The address of a leader, as the responses of Fetch and of Produce hold it."""

    node_id: int
    host: str
    port: int
    rack: str | None


def string_bytes(value: str | None, flexible: bool) -> bytes:
    """Encode a nullable string."""
    if value is None:
        return b"\x00" if flexible else b"\xff\xff"
    encoded = value.encode()
    length = len(encoded)
    if length > STRING_BYTES_MAX:
        raise ValueError(f"a string of {length} bytes cannot be encoded")
    if not flexible:
        return _INT16(length) + encoded
    if length < 0x7F:
        return bytes((length + 1,)) + encoded
    prefix = bytearray()
    write_uvarint(prefix, length + 1)
    return bytes(prefix) + encoded


def write_leader_tag(out: bytearray, tag: int, leader: Leader) -> None:
    """Write a partition's current leader as a tagged field."""
    out += _LEADER(tag, _LEADER_BYTES, leader.leader_id, leader.leader_epoch, 0)


def write_endpoints(out: bytearray, endpoints: Sequence[LeaderEndpoint]) -> None:
    """Write the tag section at the end of a response: the endpoints of the leaders it names, as tag 0, or nothing."""
    if not endpoints:
        out.append(0)
        return
    section = bytearray()
    write_uvarint(section, len(endpoints) + 1)
    for endpoint in endpoints:
        section += _INT32(endpoint.node_id)
        section += string_bytes(endpoint.host, flexible=True)
        section += _INT32(endpoint.port)
        section += string_bytes(endpoint.rack, flexible=True)
        section.append(0)
    out += b"\x01\x00"
    write_uvarint(out, len(section))
    out += section
