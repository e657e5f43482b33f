"""Where the dashboard service listens and with which key; its parts are wired at its first use."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from stentor.auth.api_keys import reject_well_known_key
from stentor.bootstrap.kernel import Kernel
from stentor.bootstrap.surface_context import SurfaceContext
from stentor.core.errors import StartRefused
from stentor.core.settings import Settings

LOOPBACK = "127.0.0.1"
KEYLESS = (
    "The dashboard service has no key, so it answers on 127.0.0.1 alone. Set DASHBOARD_API_KEY to have it answer on {}."
)


@dataclass
class Dashboard:
    """`leave` ends its streams; `close` is for the end, after the last answer."""

    app: ASGIApp
    leave: Callable[[], None]
    close: Callable[[], Coroutine[Any, Any, None]]


class OnFirstUse:
    """An application that is made, on a thread, when somebody asks it for the first time: a start need not wait."""

    def __init__(self, make: Callable[[], Dashboard]) -> None:
        self._make = make
        self._made: asyncio.Future[Dashboard] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._made is None:
            self._made = asyncio.ensure_future(asyncio.to_thread(self._make))
        made = await asyncio.shield(self._made)
        await made.app(scope, receive, send)

    async def close(self) -> None:
        if self._made is not None:
            await (await self._made).close()


def key_of(settings: Settings) -> str | None:
    """DASHBOARD_API_KEY, else MCP_API_KEY, else None. Raises StartRefused for a key that must not be one."""
    for variable, key in (("DASHBOARD_API_KEY", settings.dashboard.key), ("MCP_API_KEY", settings.auth.shared_key)):
        if key:
            reject_well_known_key(variable, key, settings)
            if not key.isascii() or not key.isprintable() or " " in key:
                raise StartRefused(
                    f"{variable} has a character in it that no header can carry; use letters and digits."
                )
            return key
    return None


def knows_key(settings: Settings) -> Callable[[Iterable[tuple[bytes, bytes]]], bool]:
    """Whether headers carry the key of the dashboard service."""
    from stentor.surfaces.dashboard import authentication

    return authentication.dashboard_key_check(key_of(settings))


def host_beside(settings: Settings) -> tuple[str, str | None]:
    """Where it listens in `stentor serve`, and a warning when that is not where the service does."""
    if settings.loopback or key_of(settings) is not None:
        return settings.server.host, None
    return LOOPBACK, KEYLESS.format(settings.server.host)


def beside(kernel: Kernel, settings: Settings, context: SurfaceContext) -> Dashboard:
    """In the process of the gateway, whose operations the pages call. Raises StartRefused."""
    key_of(settings)

    def make() -> Dashboard:
        from stentor.bootstrap.surfaces import dashboard_parts

        return dashboard_parts.beside(kernel, settings, context)

    app = OnFirstUse(make)
    return Dashboard(app, kernel.infra.hub.closing.set, app.close)
