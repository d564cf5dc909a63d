"""Reads schemas from a schema registry (Confluent's REST API), each once per process.

Only what reading needs: a schema by its id, and the schemas it refers to by subject and version. That a schema is not
there is an answer; that the registry is not there is an error, for then nothing can be said about any record.
"""

from __future__ import annotations

import base64
import json
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, unquote, urlsplit

_TIMEOUT_S = 20.0
_ATTEMPTS = 3
_NO_SUCH = frozenset({40401, 40402, 40403})
"""The error codes for a subject, a version and a schema that are not there."""
_NOT_FOUND = 404
_REFERENCES_DEEP_MAX = 20


class RegistryFailed(Exception):
    """The registry cannot be asked, or answers what no registry would."""


class NoSuchSchema(Exception):
    """The registry is there and has no such schema, or not all that it refers to."""


@dataclass(frozen=True, slots=True)
class RegisteredSchema:
    """A schema as it was registered."""

    kind: str
    """AVRO, JSON or PROTOBUF."""
    text: str
    references: tuple[str, ...] = ()
    """The texts of the schemas it refers to, each before those that need it."""


_Reference = tuple[str, int]
"""A subject and its version."""


@dataclass(slots=True)
class SchemaRegistry:
    """Fetches schemas from a registry's URL, which may name a user and password, and caches them: not thread-safe."""

    url: str
    timeout_s: float = _TIMEOUT_S
    attempts: int = _ATTEMPTS
    _known: dict[int, RegisteredSchema | str] = field(default_factory=dict)
    """By id: the schema, or why there is none."""

    def schema(self, schema_id: int) -> RegisteredSchema:
        """Return a schema by its id. Raises NoSuchSchema or RegistryFailed."""
        if schema_id not in self._known:
            try:
                self._known[schema_id] = self._fetch(schema_id)
            except NoSuchSchema as error:
                self._known[schema_id] = str(error)
        found = self._known[schema_id]
        if isinstance(found, str):
            raise NoSuchSchema(found)
        return found

    def forget(self, schema_id: int) -> None:
        """Ask again for a schema at its next use."""
        self._known.pop(schema_id, None)

    def subjects(self, schema_id: int) -> list[tuple[str, int]]:
        """Return the subjects and versions that have a schema; none where the registry cannot say. Raises as above."""
        response = self._get(f"/schemas/ids/{schema_id}/versions")
        try:
            return [(str(entry["subject"]), int(entry["version"])) for entry in response or []]
        except (KeyError, TypeError, ValueError):
            return []

    def serialized_files(self, schema_id: int) -> dict[str, bytes]:
        """Return the descriptors of a Protobuf schema's files, each after those that it imports; its own has no name.

        Raises NoSuchSchema or RegistryFailed.
        """
        files: dict[str, bytes] = {}
        self._add_serialized("", schema_id, files, 0)
        return files

    def _add_serialized(self, name: str, schema_id: int, files: dict[str, bytes], deep: int) -> None:
        response = self._schema(f"/schemas/ids/{schema_id}?format=serialized")
        if response is None:
            raise NoSuchSchema(f"there is no schema {schema_id} in the registry")
        if deep > _REFERENCES_DEEP_MAX:
            raise NoSuchSchema(f"the schema imports others, more than {_REFERENCES_DEEP_MAX} deep")
        for reference in response.get("references") or []:
            imported, subject, version = (reference.get(key) for key in ("name", "subject", "version"))
            if imported in files:
                continue
            imported_schema = self._schema(f"/subjects/{quote(str(subject), safe='')}/versions/{version}")
            if imported_schema is None or not isinstance(imported_schema.get("id"), int):
                raise NoSuchSchema(f"the schema imports {imported}, which is not in the registry")
            self._add_serialized(str(imported), imported_schema["id"], files, deep + 1)
        try:
            files[name] = base64.b64decode(response["schema"], validate=True)
        except ValueError:
            raise NoSuchSchema("this registry has no descriptor of the schema (format=serialized)") from None

    def check(self) -> None:
        """Raise RegistryFailed unless the registry answers as one."""
        self._get("/schemas/types")

    def _fetch(self, schema_id: int) -> RegisteredSchema:
        response = self._schema(f"/schemas/ids/{schema_id}")
        if response is None:
            raise NoSuchSchema(f"there is no schema {schema_id} in the registry")
        texts: dict[_Reference, str] = {}
        self._follow(_references(response), texts, ())
        return RegisteredSchema(response.get("schemaType", "AVRO"), response["schema"], tuple(texts.values()))

    def _follow(self, wanted: list[_Reference], texts: dict[_Reference, str], above: tuple[_Reference, ...]) -> None:
        """Fetch what is referred to, each before those that refer to it; `above` are the schemas that it is for."""
        for reference in wanted:
            if reference in texts:
                continue
            subject, version = reference
            if reference in above or len(above) >= _REFERENCES_DEEP_MAX:
                why = "itself" if reference in above else f"others, more than {_REFERENCES_DEEP_MAX} deep"
                raise NoSuchSchema(f"the schema refers to {subject} {version}, which refers to {why}")
            response = self._schema(f"/subjects/{quote(subject, safe='')}/versions/{version}")
            if response is None:
                raise NoSuchSchema(f"the schema refers to {subject} {version}, which is not in the registry")
            self._follow(_references(response), texts, (*above, reference))
            texts[reference] = response["schema"]

    def _schema(self, path: str) -> dict[str, Any] | None:
        """Return a schema, or None where the registry says that there is none."""
        response = self._get(path)
        if response is not None and not (isinstance(response, dict) and isinstance(response.get("schema"), str)):
            raise RegistryFailed(f"the registry at {self.shown_url} answers {path} with no schema")
        return response

    def _get(self, path: str) -> Any:
        """Return the answer, or None where the registry says that there is no such schema."""
        for attempt in range(1, self.attempts + 1):
            try:
                return self._get_once(path)
            except urllib.error.HTTPError as error:
                code = _error_code(error)
                if error.code == _NOT_FOUND and code in _NO_SUCH:
                    return None
                if error.code < 500 or attempt == self.attempts:
                    raise RegistryFailed(f"the registry at {self.shown_url} answers {error.code} to {path}") from error
            except (OSError, ValueError) as error:
                if attempt == self.attempts:
                    raise RegistryFailed(f"the registry at {self.shown_url} cannot be asked: {error}") from error
        raise AssertionError("the last attempt returns or raises")

    def _get_once(self, path: str) -> Any:
        parts = urlsplit(self.url)
        url = parts._replace(netloc=parts.netloc.rpartition("@")[2])
        request = urllib.request.Request(url.geturl().rstrip("/") + path)  # noqa: S310 - checked by the job file
        if parts.username:
            who = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
            request.add_header("Authorization", "Basic " + base64.b64encode(who).decode())
        request.add_header("Accept", "application/vnd.schemaregistry.v1+json, application/json")
        secure = ssl.create_default_context() if parts.scheme == "https" else None
        with urllib.request.urlopen(request, timeout=self.timeout_s, context=secure) as answer:  # noqa: S310 - as above
            return json.load(answer)

    @property
    def shown_url(self) -> str:
        """The URL without its password."""
        parts = urlsplit(self.url)
        return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _references(response: dict[str, Any]) -> list[_Reference]:
    try:
        return [(str(found["subject"]), int(found["version"])) for found in response.get("references") or []]
    except (KeyError, TypeError, ValueError) as error:
        raise NoSuchSchema(f"the schema's references cannot be read: {error!r}") from None


def _error_code(error: urllib.error.HTTPError) -> int | None:
    try:
        response = json.load(error)
        return int(response["error_code"])
    except (ValueError, KeyError, TypeError, OSError):
        return None
