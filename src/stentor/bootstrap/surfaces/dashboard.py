"""Wires the dashboard service into the gateway's process: address and key now, the application at its first request.

The application itself is wired in `dashboard_parts`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from starlette.types import ASGIApp, Receive, Scope, Send

from stentor.auth.api_keys import reject_well_known_key
from stentor.bootstrap.kernel import Kernel
from stentor.bootstrap.surface_context import SurfaceContext
from stentor.core.errors import StartRefused
from stentor.core.settings import Settings
from stentor.core.timers import AsyncJob

LOOPBACK = "127.0.0.1"
NO_KEY_WARNING = (
    "The dashboard has no key, so it listens on 127.0.0.1 only. Set DASHBOARD_API_KEY to have it listen on {}."
)


@dataclass
class Dashboard:
    """`end_streams` lets a stopping server end; `close` comes after the last response."""

    app: ASGIApp
    end_streams: Callable[[], None]
    close: AsyncJob


class LazyDashboard:
    """An application that is built on a thread at the first request, so that a start need not wait for it."""

    def __init__(self, create: Callable[[], Dashboard]) -> None:
        self._create = create
        self._dashboard: asyncio.Future[Dashboard] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._dashboard is None:
            self._dashboard = asyncio.ensure_future(asyncio.to_thread(self._create))
        # Shielded: a client that hangs up must not cancel what the others wait for.
        dashboard = await asyncio.shield(self._dashboard)
        await dashboard.app(scope, receive, send)

    async def close(self) -> None:
        if self._dashboard is not None:
            await (await self._dashboard).close()


def dashboard_key(settings: Settings) -> str | None:
    """Return DASHBOARD_API_KEY, else MCP_API_KEY, else None. Raises StartRefused for an unusable key."""
    for variable, key in (("DASHBOARD_API_KEY", settings.dashboard.key), ("MCP_API_KEY", settings.auth.shared_key)):
        if key:
            reject_well_known_key(variable, key, settings)
            if not key.isascii() or not key.isprintable() or " " in key:
                raise StartRefused(f"{variable} has a character that a header cannot carry; use letters and digits.")
            return key
    return None


def key_check(settings: Settings) -> Callable[[Iterable[tuple[bytes, bytes]]], bool]:
    """Return a function that checks whether headers carry the key of the dashboard service."""
    # Here and below: templates and pages are only loaded where somebody opens the dashboard.
    from stentor.surfaces.dashboard import authentication

    return authentication.dashboard_key_check(dashboard_key(settings))


def dashboard_host(settings: Settings) -> tuple[str, str | None]:
    """Return where it listens in `stentor serve`, with a warning if that is not where the service does."""
    if settings.loopback or dashboard_key(settings) is not None:
        return settings.server.host, None
    return LOOPBACK, NO_KEY_WARNING.format(settings.server.host)


def open_beside(kernel: Kernel, settings: Settings, context: SurfaceContext) -> Dashboard:
    """Open it in the process of the gateway, whose operations the pages call. Raises StartRefused."""
    dashboard_key(settings)

    def create() -> Dashboard:
        from stentor.bootstrap.surfaces import dashboard_parts

        return dashboard_parts.open_beside(kernel, settings, context)

    app = LazyDashboard(create)
    return Dashboard(app, kernel.infra.hub.closing.set, app.close)
