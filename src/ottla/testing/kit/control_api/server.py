"""Serves the control API by HTTP on the loopback interface.

Each request must have the token, and a Host header that names this listener: a page in a browser has neither, also if
its name is resolved to 127.0.0.1. The operations run in threads, since the kit's methods wait for the brokers.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ottla.core.errors import KafkaError
from ottla.http.guard import Guard, GuardedApp
from ottla.http.server import serve
from ottla.http.web import (
    BAD_REQUEST,
    INTERNAL,
    NOT_FOUND,
    TOO_LARGE,
    ASGIApp,
    HTTPException,
    Request,
    Response,
    Route,
    Starlette,
    json_response,
    problem,
    refuse,
)
from ottla.testing.kit.assertions.lookups import NotFound
from ottla.testing.kit.control_api.openapi import document
from ottla.testing.kit.control_api.operations import OPERATIONS, Control, Operation
from ottla.testing.kit.control_api.values import WrongArgument, encode, read_arguments

log = logging.getLogger(__name__)

BODY_BYTES_MAX = 16 << 20
_THREADS = 32


async def serve_control_api(control: Control, listener: socket.socket, token: str, *, stop: asyncio.Event) -> None:
    """Serve requests at a listening socket until `stop` is set."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS))
    await serve(application(control, token, port=listener.getsockname()[1]), listener, stop=stop)


def application(control: Control, token: str, *, port: int) -> ASGIApp:
    """Return the application that serves all operations to those who have the token."""
    routes = [Route(each.path, _endpoint(control, each), methods=[each.method]) for each in OPERATIONS]
    routes.append(Route("/openapi.json", _openapi, methods=["GET"]))
    hosts = {f"{host}:{port}" for host in ("127.0.0.1", "localhost")}
    return GuardedApp(
        Starlette(routes=routes, exception_handlers={HTTPException: refuse}),
        Guard(token, hosts=hosts, allows_addresses=False),
    )


def _endpoint(control: Control, operation: Operation) -> Callable[[Request], Any]:
    async def run(request: Request) -> Response:
        try:
            arguments = await _arguments(request, operation)
            if inspect.iscoroutinefunction(operation.run):
                result = await operation.run(control, **arguments)
            else:
                result = await asyncio.to_thread(operation.run, control, **arguments)
        except NotFound as error:
            return problem(NOT_FOUND, str(error))
        except KafkaError as error:
            return problem(BAD_REQUEST, f"{error.code.name}: {error.message}")
        except (ValueError, TypeError, RuntimeError, TimeoutError) as error:
            return problem(BAD_REQUEST, str(error) or type(error).__name__)
        except HTTPException:
            raise
        except Exception as error:
            log.exception("%s %s failed", operation.method, operation.path)
            return problem(INTERNAL, f"{type(error).__name__}; the log has more")
        return json_response(encode(result))

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
            raise HTTPException(TOO_LARGE, f"the body is larger than {BODY_BYTES_MAX} bytes")
    if not body:
        return {}
    try:
        return json.loads(body, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise WrongArgument(f"the body is not JSON: {error}") from None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a number of JSON")


async def _openapi(_: Request) -> Response:
    return json_response(document())
