"""Serves the control API by HTTP on the loopback interface.

Each request must have the token, and a Host header that names this listener: a page in a browser has neither, also if
its name is resolved to 127.0.0.1. The operations run in threads, since the kit's methods wait for the brokers.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, unquote

from ottla.core.errors import KafkaError
from ottla.http.guard import Guard
from ottla.http.problems import (
    BAD_REQUEST,
    INTERNAL,
    METHOD_NOT_ALLOWED,
    NOT_FOUND,
    PROBLEM_TYPE,
    UNAUTHORIZED,
    problem_content,
)
from ottla.testing.kit.assertions.lookups import NotFound
from ottla.testing.kit.control_api.connections import Answer, Asked, Service, serve
from ottla.testing.kit.control_api.openapi import document
from ottla.testing.kit.control_api.operations import OPERATIONS, Control, Operation
from ottla.testing.kit.control_api.values import WrongArgument, encode, read_arguments

log = logging.getLogger(__name__)

BODY_BYTES_MAX = 16 << 20
_DESCRIPTION = "/openapi.json"
_THREADS = 32


async def serve_control_api(control: Control, listener: socket.socket, token: str, *, stop: asyncio.Event) -> None:
    """Serve requests at a listening socket until `stop` is set."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS))
    api = _Api(control, token, port=listener.getsockname()[1])
    await serve(Service(api.admit, api.answer, _refuse, BODY_BYTES_MAX), listener, stop=stop)


class _Route(NamedTuple):
    path: re.Pattern[str]  # as it is encoded: a group id may have a slash
    operation: Operation


class _Api:
    """All operations, for those who have the token."""

    def __init__(self, control: Control, token: str, *, port: int) -> None:
        self._control = control
        hosts = {f"{host}:{port}" for host in ("127.0.0.1", "localhost")}
        self._guard = Guard(token, hosts=hosts, allows_addresses=False)
        self._routes = [_Route(_pattern(operation.path), operation) for operation in OPERATIONS]

    def admit(self, asked: Asked) -> Answer | None:
        """Refuse a request without the token, or for another host; None if it passes."""
        refusal = self._guard.refusal(asked.method, asked.headers)
        return None if refusal is None else _refuse(*refusal)

    async def answer(self, asked: Asked, body: bytes) -> Answer:
        """Run an operation."""
        path, _, query = asked.target.decode("latin-1").partition("?")
        if path == _DESCRIPTION and asked.method == "GET":
            return _json(document())
        matches = [(route.operation, match) for route in self._routes if (match := route.path.fullmatch(path))]
        if not matches:
            return _refuse(NOT_FOUND, "Not Found")
        for operation, match in matches:
            if operation.method == asked.method:
                in_path = {name: unquote(text) for name, text in match.groupdict().items()}
                return await self._run(operation, in_path, query, body)
        allowed = ", ".join(sorted(operation.method for operation, _ in matches))
        return _refuse(METHOD_NOT_ALLOWED, "Method Not Allowed")._replace(headers=(("allow", allowed),))

    async def _run(self, operation: Operation, in_path: dict[str, str], query: str, body: bytes) -> Answer:
        try:
            arguments = _arguments(operation, in_path, query, body)
            if inspect.iscoroutinefunction(operation.run):
                result = await operation.run(self._control, **arguments)
            else:
                result = await asyncio.to_thread(operation.run, self._control, **arguments)
        except NotFound as error:
            return _refuse(NOT_FOUND, str(error))
        except KafkaError as error:
            return _refuse(BAD_REQUEST, f"{error.code.name}: {error.message}")
        except (ValueError, TypeError, RuntimeError, TimeoutError) as error:
            return _refuse(BAD_REQUEST, str(error) or type(error).__name__)
        except Exception as error:
            log.exception("%s %s failed", operation.method, operation.path)
            return _refuse(INTERNAL, f"{type(error).__name__}; the log has more")
        return _json(encode(result))


def _pattern(path: str) -> re.Pattern[str]:
    """Return the paths of an operation: `/topics/{topic}` is `/topics/([^/]+)`."""
    return re.compile(re.sub(r"{(\w+)}", r"(?P<\1>[^/]+)", path))


def _arguments(operation: Operation, path: dict[str, str], query: str, body: bytes) -> dict[str, Any]:
    """Read the arguments of an operation from the path, and the query or the body. Raises WrongArgument."""
    names = operation.path_names
    in_path = [field for field in operation.signature.arguments if field.name in names]
    others = [field for field in operation.signature.arguments if field.name not in names]
    arguments = read_arguments(in_path, path, is_text=True)
    if operation.method == "POST":
        arguments |= read_arguments(others, _object(body))
    else:
        arguments |= read_arguments(others, dict(parse_qsl(query, keep_blank_values=True)), is_text=True)
    for name, kind in operation.signature.flattened:
        arguments[name] = kind(**{field: arguments.pop(field) for field in kind.__dataclass_fields__})
    return arguments


def _object(body: bytes) -> object:
    """Read a body of JSON; none is an empty object. Raises WrongArgument."""
    if not body:
        return {}
    try:
        return json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise WrongArgument(f"the body is not JSON: {error}") from None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number of JSON")


def _json(content: object) -> Answer:
    return Answer(200, "application/json", json.dumps(content).encode())


def _refuse(status: int, detail: str) -> Answer:
    headers = (("www-authenticate", "Bearer"),) if status == UNAUTHORIZED else ()
    return Answer(status, PROBLEM_TYPE, json.dumps(problem_content(status, detail)).encode(), headers)
