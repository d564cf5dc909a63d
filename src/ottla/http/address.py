"""Parses where HTTP is served, and refuses an address that anybody on the network could read without TLS."""

from __future__ import annotations

import re
from typing import NamedTuple

from ottla.core.settings import InvalidSettings, SettingProblem

KEY = "ottla.http.listener"
_ADDRESS = re.compile(r"(?:(?P<scheme>https?)://)?(?P<host>\[[0-9A-Fa-f:.]*\]|[^:/\[\]]*):(?P<port>\d{1,5})/?")
_PORT_MAX = 65535


class HttpAddress(NamedTuple):
    """Says where HTTP is served."""

    host: str
    port: int
    is_secure: bool = False

    @property
    def url(self) -> str:
        """Return the URL of the listener's root."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.is_secure else 'http'}://{host}:{self.port}"


def parse_address(text: str) -> HttpAddress:
    """Parse the setting. Raises InvalidSettings.

    >>> parse_address("127.0.0.1:9644"), parse_address("https://[::]:9644").url
    (HttpAddress(host='127.0.0.1', port=9644, is_secure=False), 'https://[::]:9644')
    """
    parts = _ADDRESS.fullmatch(text.strip())
    if parts is None or int(parts["port"]) > _PORT_MAX:
        problem = "must be host:port or https://host:port, for instance 127.0.0.1:9644"
        raise InvalidSettings([SettingProblem(KEY, text, problem)])
    return HttpAddress(parts["host"].strip("[]"), int(parts["port"]), parts["scheme"] == "https")
