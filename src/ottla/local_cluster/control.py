"""Sends commands to a running `ottla up` through a socket in its directory: one JSON line there, one back."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from ottla.core.unix_sockets import socket_address

SOCKET = "up.sock"
_ANSWER_TIMEOUT_S = 120.0

Handle = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]


class NotRunning(Exception):
    """Reports that no `ottla up` runs in a directory."""


class ControlServer:
    """Answers commands until it is closed."""

    def __init__(self, directory: Path, handle: Handle) -> None:
        self._directory, self._handle = directory, handle
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Create the socket, in place of one that a killed command left."""
        (self._directory / SOCKET).unlink(missing_ok=True)
        with socket_address(self._directory / SOCKET) as path:
            self._server = await asyncio.start_unix_server(self._serve, path)
        (self._directory / SOCKET).chmod(0o600)

    async def close(self) -> None:
        """Remove the socket."""
        if self._server is not None:
            self._server.close()
            (self._directory / SOCKET).unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            request = json.loads(await reader.readline() or b"{}")
            writer.write(json.dumps(await self._handle(request)).encode() + b"\n")
            await writer.drain()
            writer.close()


def send_command(directory: Path, command: dict[str, Any]) -> dict[str, Any]:
    """Send a command to the `ottla up` that runs in a directory and return its answer. Raises NotRunning."""
    try:
        with socket_address(directory / SOCKET) as path, socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_ANSWER_TIMEOUT_S)
            connection.connect(path)
            connection.sendall(json.dumps(command).encode() + b"\n")
            with connection.makefile("rb") as answers:
                answer = answers.readline()
    except (FileNotFoundError, ConnectionError, NotADirectoryError) as error:
        raise NotRunning(f"no cluster runs in {directory}") from error
    if not answer:
        raise NotRunning(f"the cluster in {directory} is stopping")
    found: dict[str, Any] = json.loads(answer)
    return found
