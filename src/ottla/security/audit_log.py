"""Records who signed in, what was refused and what was administered, for the outputs of the security audit log.

The audit log is that of security; `ottla pipeline audit` and its topic `__audit` count records and are something else.
Fields: docs/audit-log.md. Design: docs/design/security.md#audit-log.

A call makes an entry and puts it into the queue of each output; it does not wait and does not raise. A queue is
bounded: entries that are equal but for their time become one with a count, and what still does not fit is dropped and
counted by an entry `dropped`. No entry has a password, a token's HMAC or the value of a setting that is secret or
unknown.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Final, NamedTuple, Protocol

from ottla.core.acls import AclOperation, ResourceType
from ottla.core.clock import Clock
from ottla.core.entry_queue import EntryQueue
from ottla.net.identity import ConnectionIdentity
from ottla.wire.apis import ApiKey
from ottla.wire.headers import RequestHeader

TEXT_CHARS_MAX: Final = 1_024
"""A longer text of a client is cut: the queues are bounded in entries."""

_CUT: Final = "..."


class AuditEventType(StrEnum):
    """The events that the audit log has."""

    SIGNED_IN = "signed-in"
    SIGN_IN_FAILED = "sign-in-failed"
    DENIED = "denied"
    ALLOWED = "allowed"
    CHANGED = "changed"
    DROPPED = "dropped"


class AuditedRequest(Protocol):
    """The part of a request that an entry has. Of a forwarded one it is the client's."""

    header: RequestHeader
    identity: ConnectionIdentity
    client_host: str
    client_id: str | None
    listener: str


class AuditEntry(NamedTuple):
    """One entry; a field that is empty is left out. Entries that are equal but for their time are counted as one."""

    event: AuditEventType
    principal: str = ""  # TYPE:NAME
    host: str = ""
    listener: str = ""
    client_id: str = ""
    api: str = ""
    operation: str = ""
    resource_type: str = ""
    resource: str = ""
    mechanism: str = ""
    reason: str = ""
    error: str = ""  # of a change that failed
    details: tuple[tuple[str, str], ...] = ()


class AuditQueue(EntryQueue[AuditEntry]):
    """The entries that wait for one output."""

    def __init__(self, *, entries_max: int) -> None:
        super().__init__(encode, AuditEntry(AuditEventType.DROPPED), entries_max=entries_max)


class AuditOutput(Protocol):
    """Port: a place to which entries are written."""

    def put(self, entry: AuditEntry, now_ms: int) -> None:
        """Have the entry written soon; does not wait and does not raise."""
        ...

    async def close(self) -> None:
        """Write what waits, and end."""
        ...


class AuditLog:
    """Makes the entries. Called on the event loop."""

    def __init__(self, outputs: Sequence[AuditOutput], *, clock: Clock, logs_allowed: bool = False) -> None:
        self._outputs, self._clock = tuple(outputs), clock
        self.logs_allowed = logs_allowed  # whether `allowed` makes entries: callers need not call it otherwise

    def signed_in(self, *, principal: str, host: str, listener: str, mechanism: str) -> None:
        """Record that a client has signed in, also again on the same connection (KIP-368)."""
        self._put(
            AuditEntry(
                AuditEventType.SIGNED_IN, _cut(principal), host=host, listener=listener, mechanism=_cut(mechanism)
            )
        )

    def sign_in_failed(self, *, principal: str, host: str, listener: str, mechanism: str, reason: str) -> None:
        """Record a failed sign-in; `principal` is whom the client claimed to be, empty if it did not come to that.

        `reason` must have no part of what the client sent as a password or token.
        """
        self._put(
            AuditEntry(
                AuditEventType.SIGN_IN_FAILED,
                _cut(principal),
                host=host,
                listener=listener,
                mechanism=_cut(mechanism),
                reason=_cut(reason),
            )
        )

    def denied(self, request: AuditedRequest, operation: AclOperation, resource: ResourceType, name: str) -> None:
        """Record that a client was denied an operation on a resource that it named."""
        self._put(_of_request(AuditEventType.DENIED, request, operation.name, resource.name, name))

    def allowed(self, request: AuditedRequest, operation: AclOperation, resource: ResourceType, name: str) -> None:
        """Record that a client was allowed an operation, if the settings say so."""
        if self.logs_allowed:
            self._put(_of_request(AuditEventType.ALLOWED, request, operation.name, resource.name, name))

    def changed(
        self,
        request: AuditedRequest,
        resource_type: str,
        name: str,
        *,
        error: str = "",
        details: Sequence[tuple[str, str]] = (),
    ) -> None:
        """Record an administrative change of a resource, or with `error` that it failed. No detail may be secret."""
        entry = _of_request(AuditEventType.CHANGED, request, "", resource_type, name)
        self._put(entry._replace(error=error, details=tuple((key, _cut(text)) for key, text in details)))

    def _put(self, entry: AuditEntry) -> None:
        now_ms = self._clock.wall_ms()
        for output in self._outputs:
            output.put(entry, now_ms)

    async def close(self) -> None:
        """Write what waits, and end all outputs."""
        for output in self._outputs:
            await output.close()


def _of_request(
    event: AuditEventType, request: AuditedRequest, operation: str, resource_type: str, name: str
) -> AuditEntry:
    identity = request.identity
    return AuditEntry(
        event,
        _cut(f"{identity.principal_type}:{identity.principal_name}"),
        request.client_host,
        request.listener,
        _cut(request.client_id or ""),
        api_name(request.header[0]),
        operation,
        resource_type,
        _cut(name),
    )


def api_name(key: int) -> str:
    """Return Kafka's name of an API.

    >>> api_name(ApiKey.CREATE_TOPICS), api_name(999)
    ('CreateTopics', '999')
    """
    try:
        return ApiKey(key).name.title().replace("_", "")
    except ValueError:
        return str(key)


def encode(entry: AuditEntry, first_ms: int, count: int, node_id: int) -> bytes:
    """Encode an entry as one line of JSON without its end: ASCII, so that no text of a client can end the line."""
    time = datetime.fromtimestamp(first_ms / 1000, UTC).isoformat(timespec="milliseconds")
    fields: dict[str, object] = {"time": time.replace("+00:00", "Z"), "broker": node_id}
    for name, value in zip(entry._fields, entry, strict=True):
        if value:
            fields[name] = dict(entry.details) if name == "details" else value
    if count > 1 or entry.event is AuditEventType.DROPPED:
        fields["count"] = count
    return json.dumps(fields, separators=(",", ":")).encode()


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_CHARS_MAX else text[: TEXT_CHARS_MAX - len(_CUT)] + _CUT
