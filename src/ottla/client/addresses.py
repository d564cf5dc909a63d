"""Parses lists of broker addresses, `host:port`, as in Kafka's bootstrap.servers."""

from __future__ import annotations

from typing import NamedTuple

DEFAULT_PORT = 9092


class Address(NamedTuple):
    """The address that a broker listens on."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_addresses(text: str) -> tuple[Address, ...]:
    """Parse `a:9092,b,[::1]:9094`; the port is optional. Raises ValueError naming the invalid part.

    >>> [str(address) for address in parse_addresses("a:1, b,[::1]:3")]
    ['a:1', 'b:9092', '[::1]:3']
    """
    addresses = tuple(_parse(part.strip()) for part in text.split(",") if part.strip())
    if not addresses:
        raise ValueError("there is not a broker address; write host:port")
    return addresses


def _parse(text: str) -> Address:
    host, port = text, str(DEFAULT_PORT)
    if text.startswith("["):
        host, closed, rest = text[1:].partition("]")
        if not closed or (rest and not rest.startswith(":")):
            raise ValueError(f"{text!r} is not a broker address; write [::1]:9092")
        port = rest[1:] or port
    elif text.count(":") == 1:
        host, _, port = text.partition(":")
    elif ":" in text:
        raise ValueError(f"{text!r} is not a broker address; an IPv6 address goes in brackets: [::1]:9092")
    if not host or any(letter.isspace() or letter == "/" for letter in host):
        raise ValueError(f"{text!r} is not a broker address; write host:port")
    if not (port.isascii() and port.isdecimal()) or not 0 < int(port) < 65536:
        raise ValueError(f"{text!r} is not a broker address: the port is a number from 1 to 65535")
    return Address(host, int(port))
