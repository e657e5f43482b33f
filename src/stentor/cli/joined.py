"""Writes to a connection that belong together leave together: the head of an answer with its body.

Each send wakes whoever reads, which costs both sides more than to put two pieces together.
"""

from __future__ import annotations

import asyncio
from typing import Any


class Joining:
    """A transport that keeps a piece back until the next one comes, at most until the event loop's next round."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._kept = b""

    def write(self, data: bytes) -> None:
        if self._kept:
            data, self._kept = self._kept + data, b""
            self._transport.write(data)
        elif data:
            self._kept = data
            self._loop.call_soon(self._flush)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def write_eof(self) -> None:
        self._flush()
        self._transport.write_eof()

    def _flush(self) -> None:
        if self._kept:
            data, self._kept = self._kept, b""
            if not self._transport.is_closing():
                self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
