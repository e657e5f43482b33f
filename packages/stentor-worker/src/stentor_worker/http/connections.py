"""The part of HTTP/1.1 that the SDK needs, over persistent connections.

A durable step is one request, and urllib3 took a third of all processor time of a step.
"""

from __future__ import annotations

import os
import re
import select
import socket
import ssl
import weakref
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import quote, urlsplit

CONNECT_SECONDS, READ_SECONDS = 30.0, 90.0
"""How long connecting may take, and each wait for a part of a response."""
MAX_IDLE = 256
"""Connections that stay open without a request."""
MAX_LINE, MAX_HEADERS = 65_536, 1_000
MAX_PART = 1_048_576
"""Bytes that are read of a response at once."""


class MalformedResponse(OSError):
    """What arrived is not a response of HTTP/1.1, or ended before its end."""


class HttpResponse(NamedTuple):
    """A response. The names in `headers` are in lower case."""

    status: int
    headers: dict[str, str]
    content: bytes


class ConnectionPool:
    """Sends requests to one service; thread-safe. `headers` are those of each request, `url` may have a path.

    Raises ValueError for a `url` without a host or with a wrong port.
    """

    def __init__(self, url: str, headers: dict[str, str], tls_context: ssl.SSLContext | None) -> None:
        parts = urlsplit(url)
        if parts.hostname is None:
            raise ValueError(f"The address of the service has no host: {url!r}.")
        self._tls_context = tls_context
        self._host = parts.hostname.encode("idna").decode()
        self._port = parts.port or (443 if tls_context else 80)
        name = f"[{self._host}]" if ":" in self._host else self._host
        host = {"Host": name if parts.port is None else f"{name}:{parts.port}"}
        self._headers = _to_lines(host | headers)
        self._path = quote(parts.path.rstrip("/"), safe="/%:@!$&'()*+,;=")
        self._idle: list[_Connection] = []
        self._process = os.getpid()
        """The process whose connections are idle."""
        weakref.finalize(self, _close_all, self._idle)

    def request(
        self, method: str, path: str, body: bytes | None, headers: dict[str, str], timeout_s: float | None = None
    ) -> HttpResponse:
        """Send a request to `path`, relative to the URL, and return the response. Does not follow redirects.

        `timeout_s` replaces CONNECT_SECONDS and READ_SECONDS. Raises OSError without a complete response.
        """
        # Sent together, so that head and body wake the service once.
        length = "" if body is None and method == "GET" else f"Content-Length: {len(body or b'')}\r\n"
        head = f"{method} {self._path}{path} HTTP/1.1\r\n{self._headers}{_to_lines(headers)}{length}\r\n".encode(
            "ascii"
        )
        connection = self._take() or self._connect(timeout_s or CONNECT_SECONDS)
        try:
            connection.socket.settimeout(timeout_s or READ_SECONDS)
            connection.send(head if body is None else head + body)
            response = connection.read_response()
        except BaseException:
            # Also for an exception raised by a signal handler: the rest would be read as the response to the next
            # request.
            connection.close()
            raise
        if connection.may_stay and len(self._idle) < MAX_IDLE:
            self._idle.append(connection)
        else:
            connection.close()
        return response

    def close(self) -> None:
        """Close the connections that are idle. A later request opens a new one."""
        _close_all(self._idle)

    def _take(self) -> _Connection | None:
        """Return an idle connection, the last one that was used: the others may time out."""
        if self._process != os.getpid():
            # After a fork: over a connection of both processes, one would get the responses to the other.
            # In this order, or another thread would take one meanwhile.
            self.close()
            self._process = os.getpid()
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            if connection.is_usable():
                return connection
            connection.close()

    def _connect(self, timeout_s: float) -> _Connection:
        plain = socket.create_connection((self._host, self._port), timeout_s)
        try:
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            tls = self._tls_context
            return _Connection(plain if tls is None else tls.wrap_socket(plain, server_hostname=self._host))
        except BaseException:
            plain.close()
            raise


class _Connection:
    def __init__(self, connected: socket.socket) -> None:
        self.socket, self._file = connected, connected.makefile("rb")
        self.may_stay = True
        """Whether another request may be sent."""

    def send(self, request: bytes) -> None:
        try:
            self.socket.sendall(request)
        except (BrokenPipeError, ConnectionResetError):
            # The server may have said why it does not read the rest, for example of a body that is too long.
            self.may_stay = False

    def read_response(self) -> HttpResponse:
        version, status, headers = self._read_head()
        while status < 200:  # it only says that the response will come
            version, status, headers = self._read_head()
        if version != b"HTTP/1.1" or "close" in headers.get("connection", "").lower():
            self.may_stay = False
        return HttpResponse(status, headers, self._read_content(status, headers))

    def is_usable(self) -> bool:
        """Return whether an idle connection is open: one that was closed has its end to read.

        Nor may there be anything else to read, which would be taken for the response to the next request.
        """
        if self._has_received():
            return False
        self.socket.settimeout(0)
        try:
            return not self._file.peek(1)
        except ssl.SSLWantReadError:
            return True
        except OSError:
            return False

    def _has_received(self) -> bool:
        if hasattr(select, "poll"):
            poll = select.poll()
            poll.register(self.socket, select.POLLIN)
            return bool(poll.poll(0))
        return bool(select.select([self.socket], [], [], 0)[0])

    def close(self) -> None:
        with suppress(OSError):
            self._file.close()
        with suppress(OSError):
            self.socket.close()

    def _read_head(self) -> tuple[bytes, int, dict[str, str]]:
        version, _, rest = self._read_line().partition(b" ")
        if not version.startswith(b"HTTP/1.") or not rest[:3].isdigit():
            raise MalformedResponse("The response does not begin with a status line of HTTP/1.1.")
        return version, int(rest[:3]), self._read_headers()

    def _read_headers(self) -> dict[str, str]:
        headers: dict[str, str] = {}
        for _ in range(MAX_HEADERS):
            line = self._read_line()
            if not line:
                return headers
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.strip().lower()] = value.strip()
        raise MalformedResponse("The response has too many headers.")

    def _read_content(self, status: int, headers: dict[str, str]) -> bytes:
        if status in (204, 304):
            return b""
        if "transfer-encoding" in headers:
            return self._read_chunks()
        length = headers.get("content-length")
        if length is None:
            self.may_stay = False
            return self._file.read()
        return self._read(_to_size(length, 10))

    def _read_chunks(self) -> bytes:
        chunks: list[bytes] = []
        while True:
            size = _to_size(self._read_line().partition(b";")[0].strip().decode("latin-1"), 16)
            if size == 0:
                self._read_headers()
                return b"".join(chunks)
            chunks.append(self._read(size))
            self._read_line()

    def _read(self, size: int) -> bytes:
        # In parts, because `read` allocates memory for the announced length, however little arrives.
        parts: list[bytes] = []
        while size > 0:
            part = self._file.read(min(size, MAX_PART))
            if not part:
                raise MalformedResponse("The connection was closed before the end of the response.")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _read_line(self) -> bytes:
        line = self._file.readline(MAX_LINE)
        if not line.endswith(b"\n"):
            raise MalformedResponse("The response is incomplete, or has a line that is too long.")
        return line.rstrip(b"\r\n")


def _to_size(text: str, base: int) -> int:
    """Return a number of bytes. Raises MalformedResponse for anything but a few digits."""
    # `int` takes signs, underscores and other scripts, and raises an error for thousands of digits.
    if not re.fullmatch("[0-9]{1,18}" if base == 10 else "[0-9a-fA-F]{1,15}", text):
        raise MalformedResponse("The Content-Length of the response is not a number, or too large.")
    return int(text, base)


def _to_lines(headers: dict[str, str]) -> str:
    return "".join(f"{name}: {value}\r\n" for name, value in headers.items())


def _close_all(connections: list[_Connection]) -> None:
    while connections:
        connections.pop().close()
