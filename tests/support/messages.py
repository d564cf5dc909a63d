"""Lists the APIs whose messages are generated: those that the codec can read and write."""

from __future__ import annotations

from importlib.util import find_spec

from ottla.wire.apis import API_INFO

MESSAGE_APIS = {
    key: info for key, info in API_INFO.items() if find_spec(f"ottla.wire.generated.{info.name}") is not None
}
