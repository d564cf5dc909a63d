"""An HTTP proxy in front of a server of the S3 protocol that loses the answer of a chosen write, or answers with 500.

The server has done what the lost answer was about. Headers pass unchanged, the signed name of the host too.
"""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

WRITES = frozenset({"PUT", "POST", "DELETE"})


@dataclass
class LossyProxy:
    """The proxy, and what has passed it."""

    port: int
    """Of the server behind it."""
    writes: list[str] = field(default_factory=list)
    lose: int | None = None
    """The number of the write whose answer is lost."""
    refuse: int | None = None
    """The number of the write that is answered with 500 and not passed on."""
    own_port: int = 0

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.own_port}"


@contextlib.contextmanager
def lossy(port: int) -> Iterator[LossyProxy]:
    """Run the proxy in threads."""
    proxy = LossyProxy(port)
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            number = None
            if self.command in WRITES:
                with lock:
                    number = len(proxy.writes)
                    proxy.writes.append(f"{self.command} {self.path}")
            if number is not None and number == proxy.refuse:
                self._answer(500, [], b"")
                return
            server = http.client.HTTPConnection("127.0.0.1", proxy.port)
            server.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                server.putheader(name, value)
            server.endheaders(body)
            response = server.getresponse()
            answer = response.read()
            server.close()
            if number is not None and number == proxy.lose:
                self.close_connection = True
                return
            self._answer(response.status, response.getheaders(), answer)

        def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
            self.send_response_only(status)
            length = str(len(body))
            for name, value in headers:
                if name.lower() == "content-length":
                    length = value
                elif name.lower() not in {"transfer-encoding", "connection"}:
                    self.send_header(name, value)
            self.send_header("Content-Length", length)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Say nothing."""

    for method in (*WRITES, "GET", "HEAD"):
        setattr(Handler, f"do_{method}", Handler._pass_on)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    proxy.own_port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
