"""A small schema registry over HTTP, in this process: the calls that readers make, and ways to be out of order."""

from __future__ import annotations

import base64
import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote


@dataclass
class FakeRegistry:
    """What is registered, and what was asked."""

    url: str = ""
    schemas: dict[int, dict[str, Any]] = field(default_factory=dict)
    """By id: the answer's body."""
    subjects: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)
    broken: int = 0
    """So many requests are answered with an error first."""
    password: str | None = None
    """user:password that a request must bring."""

    serialized: dict[int, bytes] = field(default_factory=dict)
    """The descriptors of Protobuf schemas."""

    def register(self, schema_id: int, schema: Any, **more: Any) -> None:
        self.schemas[schema_id] = {"schema": json.dumps(schema), **more}

    def register_protobuf(self, schema_id: int, subject: str, file: bytes, text: str, **more: Any) -> None:
        self.schemas[schema_id] = {"schema": text, "schemaType": "PROTOBUF", **more}
        self.serialized[schema_id] = file
        self.subjects[subject, 1] = {**self.schemas[schema_id], "subject": subject, "version": 1, "id": schema_id}

    def _versions_of(self, schema_id: int) -> list[dict[str, Any]]:
        held = [(name, answer) for name, answer in self.subjects.items() if answer.get("id") == schema_id]
        return [{"subject": subject, "version": version} for (subject, version), _ in held]

    def _schema(self, schema_id: int, query: str) -> dict[str, Any]:
        answer = self.schemas[schema_id]
        if query == "format=serialized" and schema_id in self.serialized:
            return {**answer, "schema": base64.b64encode(self.serialized[schema_id]).decode()}
        return answer

    def answer(self, path: str, authorization: str | None) -> tuple[int, Any]:
        self.asked[path] += 1
        if self.broken:
            self.broken -= 1
            return 500, {"error_code": 50001, "message": "out of order"}
        if self.password is not None:
            wanted = "Basic " + base64.b64encode(self.password.encode()).decode()
            if authorization != wanted:
                return 401, {"error_code": 401, "message": "who are you?"}
        path, _, query = path.partition("?")
        parts = path.strip("/").split("/")
        if parts == ["schemas", "types"]:
            return 200, ["AVRO"]
        if parts[:2] == ["schemas", "ids"] and int(parts[2]) in self.schemas:
            schema_id = int(parts[2])
            return 200, self._versions_of(schema_id) if parts[3:] == ["versions"] else self._schema(schema_id, query)
        if parts[0] == "subjects" and (unquote(parts[1]), int(parts[3])) in self.subjects:
            return 200, self.subjects[unquote(parts[1]), int(parts[3])]
        return 404, {"error_code": 40403, "message": "Schema not found"}


@contextmanager
def fake_registry() -> Iterator[FakeRegistry]:
    """One that answers at its `url` until the end."""
    registry = FakeRegistry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            code, body = registry.answer(self.path, self.headers.get("Authorization"))
            data = json.dumps(body).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            """Discard the line."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    registry.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield registry
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
