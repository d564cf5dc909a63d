"""Reads the argument that names a resource with settings, for commands and for completion."""

from __future__ import annotations

from ottla.cli.errors import usage_error
from ottla.core.settings import ConfigResourceType


def parse_resource(text: str) -> tuple[ConfigResourceType, str]:
    """Parse `topic/NAME`, `broker/ID`, `broker`. Raises `CommandFailed`.

    >>> parse_resource("topic/a")
    (<ConfigResourceType.TOPIC: 2>, 'a')
    """
    kind, _, name = text.partition("/")
    match kind:
        case "topic" if name:
            return ConfigResourceType.TOPIC, name
        case "group" if name:
            return ConfigResourceType.GROUP, name
        case "broker" if not name or name.isdecimal():
            return ConfigResourceType.BROKER, name
    raise usage_error(f"{text!r} is not a resource: write topic/NAME, broker/ID or broker")
