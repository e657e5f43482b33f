"""A small HTTP server in this process that answers what it is told: endpoints, receivers, services that misbehave."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Answer:
    status: int = 200
    body: Any = None
    """As JSON; bytes as they are."""
    headers: dict[str, str] = field(default_factory=dict)
    raw: bytes | None = None
    """Sent without a length, and the connection is closed behind it."""


@dataclass
class Asked:
    """A request as it came; header names in lower case, the path still encoded."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


Respond = Callable[[Asked, int], Answer]
"""(request, how many came before) -> answer. Called in a thread of the request's own."""


@contextmanager
def serving(
    respond: Respond, *, port: int = 0, context: ssl.SSLContext | None = None, keep_alive: bool = False
) -> Iterator[tuple[str, list[Asked]]]:
    """The address, and the requests so far."""
    asked: list[Asked] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1" if keep_alive else "HTTP/1.0"

        def do_GET(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            request = Asked(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, content)
            asked.append(request)
            self._send(respond(request, len(asked) - 1))

        do_POST = do_PUT = do_PATCH = do_DELETE = do_GET  # noqa: N815 - http.server's names

        def _send(self, answer: Answer) -> None:
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            content = answer.raw
            if content is None:
                content = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            with suppress(ConnectionError):  # who asks may leave in the middle of it
                self.wfile.write(content)
            self.close_connection = self.close_connection or answer.raw is not None

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http{'s' if context else ''}://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
