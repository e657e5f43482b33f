"""The server, made when somebody asks it for the first time: its protocol's library takes half a second and 25 MB."""

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
    """An application that answers while `run` runs. The first request waits for `make`, called once on a thread."""

    def __init__(self, make: Callable[[], MemoryServer]) -> None:
        self._make = make
        self._wanted, self._decided = asyncio.Event(), asyncio.Event()
        self._server: MemoryServer | None = None
        self.is_running = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._wanted.set()
        await self._decided.wait()
        if self._server is None:
            await JSONResponse({"error": "The memory server could not be started."}, 503)(scope, receive, send)
            return
        await self._server.app(scope, receive, send)

    async def run(self) -> None:
        """Until it is cancelled."""
        self.is_running = True
        try:
            await self._wanted.wait()
            server = await asyncio.to_thread(self._make)
            await server.run(lambda: self._begun(server))
        except Exception:
            log.exception("the memory server could not be started")
        finally:
            self.is_running, self._server = False, None
            self._decided.set()

    def _begun(self, server: MemoryServer) -> None:
        self._server = server
        self._decided.set()
