"""Start the memory MCP server on its first request: importing the MCP library takes half a second and 25 MB."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

if TYPE_CHECKING:
    from stentor.surfaces.memory_mcp.streamable_http import MemoryServer

log = logging.getLogger(__name__)


class LazyMemoryServer:
    """An ASGI application that serves while `run` runs. The first request waits for `make`, called once in a thread."""

    def __init__(self, make: Callable[[], MemoryServer]) -> None:
        self._make = make
        self._requested, self._settled = asyncio.Event(), asyncio.Event()
        self._server: MemoryServer | None = None
        self.is_running = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._requested.set()
        # Also set when the server has ended, so that no request waits forever.
        await self._settled.wait()
        if self._server is None:
            message = "The memory server could not be started. The service's log has the reason."
            await JSONResponse({"error": message}, 503)(scope, receive, send)
            return
        await self._server.app(scope, receive, send)

    async def run(self) -> None:
        """Wait for the first request, then serve until cancelled."""
        self.is_running = True
        try:
            await self._requested.wait()
            server = await asyncio.to_thread(self._make)
            await server.run(lambda: self._on_started(server))
        except Exception:
            log.exception("mcp: start failed")
        finally:
            self.is_running, self._server = False, None
            # Whatever happened, waiting requests must get their 503.
            self._settled.set()

    def _on_started(self, server: MemoryServer) -> None:
        self._server = server
        self._settled.set()
