"""Decodes keys and values of records by a schema registry, for the message browser.

The registry is asked off the loop, once for each schema, and only where the console's own options say. What it does
not know, and that it does not answer, is a problem of the record that is shown, never of the page.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import urlsplit

from ottla.client.search.last_records import Prepare
from ottla.core.clock import Clock, SystemClock
from ottla.pipeline.formats.registered_json import RegisteredJson, SchemaName, schema_id_of
from ottla.pipeline.formats.registry import RegistryFailed
from ottla.records.record_reader import Record

_TIMEOUT_S: Final = 2.0
_NEW_MAX: Final = 20
"""Schemas that one page asks for: ids are chosen by the producers of records."""
_KNOWN_MAX: Final = 2000
_RETRY_S: Final = 10.0
"""The time for which an answer without a schema, or no answer, is kept."""


@dataclass(frozen=True, slots=True)
class RegisteredText:
    """A value by its schema, as JSON; or the reason why it cannot be decoded."""

    schema: str
    kind: str
    text: str = ""
    problem: str = ""


@dataclass(slots=True)
class _Unknown:
    """The reason why a schema cannot be used, and until when that is taken for true."""

    problem: str
    until: float


@dataclass(slots=True)
class RegistryValues:
    """The schemas that were met, and what decodes by them."""

    url: str
    clock: Clock = field(default_factory=SystemClock)
    _registered: RegisteredJson = field(init=False)
    _known: dict[int, SchemaName | _Unknown] = field(default_factory=dict)
    _down: _Unknown | None = None
    _one_at_a_time: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        """Check the URL. Raises ValueError."""
        parts = urlsplit(self.url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise ValueError("write a URL like http://registry:8081")
        self._registered = RegisteredJson(self.url, timeout_s=_TIMEOUT_S, attempts=1)

    @property
    def shown_url(self) -> str:
        """The URL without its password."""
        parts = urlsplit(self.url)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()

    def preparing(self) -> Prepare:
        """Return what fetches the schemas of keys and values that are not known yet, for one page: a few in all."""
        left = _NEW_MAX

        async def prepare(records: Iterable[Record]) -> None:
            nonlocal left
            now = self.clock.monotonic()
            if left <= 0 or (self._down is not None and now < self._down.until):
                return
            ids = {schema_id_of(value) for record in records for value in (record.key, record.value)}
            new = sorted(number for number in ids if number is not None and self._is_new(number, now))[:left]
            if new:
                left -= len(new)
                await asyncio.to_thread(self._load, new)

        return prepare

    def _is_new(self, schema_id: int, now: float) -> bool:
        known = self._known.get(schema_id)
        return known is None or (isinstance(known, _Unknown) and now >= known.until)

    def _load(self, schema_ids: list[int]) -> None:
        with self._one_at_a_time:
            for schema_id in schema_ids:
                until = self.clock.monotonic() + _RETRY_S
                try:
                    schema: SchemaName | _Unknown = self._registered.load(schema_id)
                except ValueError as error:
                    schema = _Unknown(str(error), until)
                except RegistryFailed as error:
                    self._down = _Unknown(str(error), until)
                    return
                self._down = None
                if len(self._known) >= _KNOWN_MAX:
                    self._known.pop(next(iter(self._known)))
                self._known[schema_id] = schema

    def decode(self, value: bytes | None, *, is_pretty: bool = True) -> RegisteredText | None:
        """Return a value by its schema; None for one that begins with no schema's id."""
        schema_id = schema_id_of(value)
        if schema_id is None or value is None:
            return None
        known = self._known.get(schema_id)
        if not isinstance(known, SchemaName):
            why = self._down if known is None else known
            problem = "its schema was not asked for" if why is None else why.problem
            return RegisteredText(f"schema {schema_id}", "", problem=problem)
        named = _name_of(known)
        try:
            decoded = self._registered.decode(value)
            text = json.dumps(decoded, ensure_ascii=False, indent=2 if is_pretty else None)
        except (ValueError, RegistryFailed) as error:
            return RegisteredText(named, known.kind.lower(), problem=str(error))
        return RegisteredText(named, known.kind.lower(), text)

    def decoded(self, record: Record) -> Record:
        """Return a record with key and value as JSON where they have a schema: what a search compares."""
        return record._replace(key=self._as_json(record.key), value=self._as_json(record.value))

    def _as_json(self, value: bytes | None) -> bytes | None:
        decoded = self.decode(value, is_pretty=False)
        return value if decoded is None or decoded.problem else decoded.text.encode("utf-8", "surrogatepass")


def _name_of(schema: SchemaName) -> str:
    """Name a schema for people.

    >>> _name_of(SchemaName(7, "AVRO", (("orders-value", 3),)))
    'schema 7, orders-value version 3'
    """
    named = [f"{subject} version {version}" for subject, version in schema.subjects]
    more = f" and {len(named) - 1} more" if len(named) > 1 else ""
    return f"schema {schema.schema_id}" + (f", {named[0]}{more}" if named else "")
