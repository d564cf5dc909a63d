"""Decides which HTTP requests pass: by their token, and by the host that they name."""

from __future__ import annotations

import hmac
import ipaddress
import socket
from collections.abc import Collection, Mapping
from typing import NamedTuple

from ottla.http.problems import FORBIDDEN, UNAUTHORIZED

_READING = {"GET", "HEAD", "OPTIONS"}


class Guard(NamedTuple):
    """Says what a request needs.

    `hosts` are the values of the Host header that pass besides addresses of the family IP; None: any. A page in a
    browser whose name is resolved to 127.0.0.1 sends its own name there, and no token.
    """

    token: str = ""
    reading_needs_token: bool = True  # otherwise only what may change something does
    hosts: Collection[str] | None = None
    allows_addresses: bool = True

    def refusal(self, method: str, headers: Mapping[bytes, bytes]) -> tuple[int, str] | None:
        """Return the status and the reason of a refusal; None if a request passes.

        What may change something needs the token always. The names of the headers are in small letters.
        """
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if self.hosts is not None and host not in self.hosts and not (self.allows_addresses and is_address(host)):
            return FORBIDDEN, "the Host header names another host than this listener"
        if not self.reading_needs_token and method in _READING:
            return None
        if not self.token:
            return FORBIDDEN, "nothing can be changed here without a token: set ottla.http.token"
        if not hmac.compare_digest(headers.get(b"authorization", b""), f"Bearer {self.token}".encode()):
            return UNAUTHORIZED, "send the header Authorization: Bearer TOKEN"
        return None


def is_address(host: str) -> bool:
    """Return whether a Host header has an address, not a name, with a port or without.

    >>> is_address("127.0.0.1:9644"), is_address("[::1]"), is_address("evil.example:9644")
    (True, True, False)
    """
    name = host.partition("]")[0].strip("[") if host.startswith("[") else host.partition(":")[0]
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def own_hosts(port: int) -> set[str]:
    """Return the values of the Host header by which this machine is meant, besides addresses."""
    names = {"localhost", socket.gethostname().lower()}
    return names | {f"{name}:{port}" for name in names}
