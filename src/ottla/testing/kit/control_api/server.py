"""Serves the control API by HTTP on the loopback interface: the only module that imports starlette and uvicorn.

Each request must have the token, and a Host header that names this listener: a page in a browser has neither, also if
its name is resolved to 127.0.0.1. The operations run in threads, since the kit's methods wait for the brokers.
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import inspect
import json
import logging
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ottla.core.errors import KafkaError
from ottla.testing.kit.assertions.lookups import NotFound
from ottla.testing.kit.control_api.openapi import document
from ottla.testing.kit.control_api.operations import OPERATIONS, Control, Operation
from ottla.testing.kit.control_api.values import WrongArgument, encode, read_arguments

log = logging.getLogger(__name__)

BODY_BYTES_MAX = 16 << 20
_CONNECTIONS_MAX = 100
_END_S = 1
_THREADS = 32
_BAD_REQUEST, _UNAUTHORIZED, _FORBIDDEN, _NOT_FOUND, _TOO_LARGE, _INTERNAL = 400, 401, 403, 404, 413, 500
_TITLES = {
    _BAD_REQUEST: "the request cannot be carried out",
    _UNAUTHORIZED: "the token is missing or wrong",
    _FORBIDDEN: "the request is for another host",
    _NOT_FOUND: "there is no such thing",
    405: "the path has another method",
    _TOO_LARGE: "the body is too large",
    _INTERNAL: "the operation failed",
}


async def serve(control: Control, listener: socket.socket, token: str, *, stop: asyncio.Event) -> None:
    """Serve requests at a listening socket until `stop` is set."""
    config = uvicorn.Config(
        application(control, token, port=listener.getsockname()[1]),
        log_config=None,
        access_log=False,
        lifespan="off",
        http="h11",
        ws="none",
        server_header=False,
        proxy_headers=False,
        limit_concurrency=_CONNECTIONS_MAX,
        timeout_graceful_shutdown=_END_S,
    )
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS))
    server = _Server(config)
    serving = asyncio.get_running_loop().create_task(server.serve(sockets=[listener]))
    stopping = asyncio.get_running_loop().create_task(stop.wait())
    await asyncio.wait((serving, stopping), return_when=asyncio.FIRST_COMPLETED)
    server.should_exit = True
    stopping.cancel()
    await serving


class _Server(uvicorn.Server):
    """A server that leaves the signals to the process."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Change no handler."""
        yield


def application(control: Control, token: str, *, port: int) -> ASGIApp:
    """Return the application that serves all operations to those who have the token."""
    routes = [Route(each.path, _endpoint(control, each), methods=[each.method]) for each in OPERATIONS]
    routes.append(Route("/openapi.json", _openapi, methods=["GET"]))
    app = Starlette(routes=routes, exception_handlers={HTTPException: _refuse})
    return _Guard(app, token, port)


class _Guard:
    """Lets requests pass that have the token and are for this host."""

    def __init__(self, app: ASGIApp, token: str, port: int) -> None:
        self._app, self._expected = app, f"Bearer {token}".encode()
        self._hosts = {f"{host}:{port}".encode() for host in ("127.0.0.1", "localhost")}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = dict(scope.get("headers", ()))
        if headers.get(b"host", b"").lower() not in self._hosts:
            await _problem(_FORBIDDEN, "the Host header names another host than 127.0.0.1 or localhost with this port")(
                scope, receive, send
            )
        elif not hmac.compare_digest(headers.get(b"authorization", b""), self._expected):
            response = _problem(_UNAUTHORIZED, "send the header Authorization: Bearer TOKEN")
            response.headers["WWW-Authenticate"] = "Bearer"
            await response(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def _endpoint(control: Control, operation: Operation) -> Callable[[Request], Any]:
    async def run(request: Request) -> Response:
        try:
            arguments = await _arguments(request, operation)
            if inspect.iscoroutinefunction(operation.run):
                result = await operation.run(control, **arguments)
            else:
                result = await asyncio.to_thread(operation.run, control, **arguments)
        except NotFound as error:
            return _problem(_NOT_FOUND, str(error))
        except KafkaError as error:
            return _problem(_BAD_REQUEST, f"{error.code.name}: {error.message}")
        except (ValueError, TypeError, RuntimeError, TimeoutError) as error:
            return _problem(_BAD_REQUEST, str(error) or type(error).__name__)
        except HTTPException:
            raise
        except Exception as error:
            log.exception("%s %s failed", operation.method, operation.path)
            return _problem(_INTERNAL, f"{type(error).__name__}; the log has more")
        return _json(encode(result))

    return run


async def _arguments(request: Request, operation: Operation) -> dict[str, Any]:
    """Read the arguments of an operation from the path, and the query or the body. Raises WrongArgument."""
    names = operation.path_names
    in_path = [field for field in operation.arguments if field.name in names]
    others = [field for field in operation.arguments if field.name not in names]
    arguments = read_arguments(in_path, request.path_params, is_text=True)
    if operation.method == "POST":
        arguments |= read_arguments(others, await _body(request))
    else:
        arguments |= read_arguments(others, dict(request.query_params), is_text=True)
    for name, kind in operation.flattened:
        arguments[name] = kind(**{field: arguments.pop(field) for field in kind.__dataclass_fields__})
    return arguments


async def _body(request: Request) -> object:
    """Read a body of JSON; none is an empty object. Raises WrongArgument, or HTTPException if it is too large."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > BODY_BYTES_MAX:
            raise HTTPException(_TOO_LARGE, f"the body is larger than {BODY_BYTES_MAX} bytes")
    if not body:
        return {}
    try:
        return json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise WrongArgument(f"the body is not JSON: {error}") from None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number of JSON")


async def _openapi(_: Request) -> Response:
    return _json(document())


async def _refuse(_: Request, error: Exception) -> Response:
    """Answer what the router refuses: an unknown path, or another method."""
    assert isinstance(error, HTTPException)
    return _problem(error.status_code, error.detail)


def _json(content: object, status: int = 200, media_type: str = "application/json") -> Response:
    return Response(json.dumps(content), status, media_type=media_type)


def _problem(status: int, detail: str) -> Response:
    content = {"title": _TITLES.get(status, "the request is refused"), "status": status, "detail": detail}
    return _json(content, status, "application/problem+json")
