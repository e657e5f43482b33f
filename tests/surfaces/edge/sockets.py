"""A client that sends what no HTTP library would, and reads whatever comes until the end."""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Iterable
from pathlib import Path
from urllib.parse import urlsplit

from tests.patience import PATIENCE_SECONDS

LIVE = b"GET /api/v1/health/live HTTP/1.1\r\nHost: 127.0.0.1\r\n"


def connected(address: str, source: str = "127.0.0.1") -> socket.socket:
    parts = urlsplit(address)
    assert parts.hostname
    assert parts.port
    made = socket.create_connection((parts.hostname, parts.port), PATIENCE_SECONDS, (source, 0))
    if parts.scheme == "https":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return context.wrap_socket(made)
    return made


def talk(client: socket.socket, pieces: Iterable[bytes]) -> bytes:
    """Send the pieces until the other side answers or ends, then read all of the answer, to the end."""
    with client:
        try:
            for piece in pieces:
                # Over TLS a session ticket makes a socket readable before there is an answer.
                if not isinstance(client, ssl.SSLSocket) and select.select([client], [], [], 0)[0]:
                    # It answered before the end of the request, and would now wait for the rest of it.
                    client.shutdown(socket.SHUT_WR)
                    break
                client.sendall(piece)
        except OSError:
            pass  # it has ended, and perhaps answered before
        return until_end(client)


def until_end(client: socket.socket) -> bytes:
    """What comes until the other side ends the connection, however it does."""
    answer = b""
    try:
        while data := client.recv(65_536):
            answer += data
    except (ConnectionError, ssl.SSLError):
        pass
    return answer


def is_alive(address: str, source: str = "127.0.0.1") -> bool:
    with connected(address, source) as client:
        client.sendall(LIVE + b"Connection: close\r\n\r\n")
        return until_end(client).startswith(b"HTTP/1.1 200")


def peak_mb(pid: int) -> float:
    """Memory of a process at its peak."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024
