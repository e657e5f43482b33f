"""A small HTTP server that answers what it is told, for what a real service does only when it breaks."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Answer:
    status: int = 200
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    raw: bytes | None = None
    """Sent as it is, and the connection is closed behind it."""


@dataclass
class Asked:
    method: str
    path: str
    headers: dict[str, str]


Respond = Callable[[Asked, int], Answer]
"""(request, how many came before) -> answer."""


@contextmanager
def serving(respond: Respond) -> Iterator[tuple[str, list[Asked]]]:
    """The address, and the requests so far."""
    asked: list[Asked] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            request = Asked(self.command, self.path, {k.lower(): v for k, v in self.headers.items()})
            answer = respond(request, len(asked))
            asked.append(request)
            content = answer.raw if answer.raw is not None else json.dumps(answer.body).encode()
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            if answer.raw is None:
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET  # noqa: N815

        def log_message(self, *args: Any) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
