"""Runs the governed memory server: for one client on standard input, or over HTTP.

Calls of the governed memory for whoever owns the data folder: the running service, or this process.

The service is asked with a receipt for each request, signed with the folder's own key. Where none runs, this
process owns the folder while calls come, and lets it go when they cease: a service can start then.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import Any

import mcp_types as mcp

from stentor.auth.authority import keys, receipts
from stentor.auth.authority.context import AuthorityContext
from stentor.bootstrap.surfaces.memory_mcp import governed_memory, launch_context
from stentor.cli import local_service
from stentor.cli.output import CommandFailed, console, print_json, print_notice
from stentor.cli.server import service_runner
from stentor.cli.server.http_server import create_runner
from stentor.core.clock import SystemClock
from stentor.core.errors import ServiceUnavailable, StartRefused
from stentor.core.filesystem import read_lock_holder
from stentor.core.security.redaction import Redactor
from stentor.core.settings import Settings
from stentor.domains.memory.governed.authorization import BLANK_CAPABILITY
from stentor.surfaces.memory_mcp import server, streamable_http
from stentor.surfaces.memory_mcp.streamable_http import MCP_PATH
from stentor.surfaces.memory_mcp.tools import LocalToolCaller, error_result

NO_AUTHORITY_MESSAGE = (
    "Every call will be denied: SERVICE_MCP_PRINCIPAL and SERVICE_MCP_CAPABILITIES say who calls and what it may do "
    "(`stentor mcp install` prints a configuration that sets them)."
)


def serve_stdio(settings: Settings, environ: Mapping[str, str], redactor: Redactor) -> None:
    """Until the client closes its end."""
    who = launch_context(settings)
    if who is None:
        print_notice(NO_AUTHORITY_MESSAGE, "yellow")
    with create_runner() as loop:
        loop.run(_serve_stdio(settings, environ, redactor))


async def _serve_stdio(settings: Settings, environ: Mapping[str, str], redactor: Redactor) -> None:
    calls = FolderToolCaller(settings, environ, redactor)
    try:
        await server.serve_stdio(calls, launch_context(settings))
    finally:
        await calls.close()


def serve_http(settings: Settings, environ: Mapping[str, str], redactor: Redactor, *, as_json: bool) -> None:
    """Until SIGINT or SIGTERM; the folder is this process's meanwhile. Raises StartRefused."""

    def say(ready: service_runner.StartupReport) -> None:
        address = ready.surfaces["mcp"]
        for warning in ready.warnings:
            print_notice(f"warning: {warning}", "yellow")
        if as_json:
            print_json({"ready": True, "mcp": address, "admin_key_file": ready.admin_key_file})
        else:
            console.print(f"The governed memory answers on [cyan]{address}{MCP_PATH}[/]", soft_wrap=True)

    service_runner.run_service(settings, environ, redactor, say, only_surface="mcp")


IDLE_TIMEOUT_SECONDS = 10.0
OWNER_TIMEOUT_SECONDS = 10.0
"""Seconds to wait for an owner that does not answer yet, or leaves."""
RECEIPT_LIFETIME_SECONDS = 60


class FolderToolCaller:
    def __init__(self, settings: Settings, environ: Mapping[str, str], redactor: Redactor) -> None:
        self._settings = settings
        self._environ = environ
        self._redactor = redactor
        self._opening = asyncio.Lock()
        self._own: LocalToolCaller | None = None
        self._stack = AsyncExitStack()
        self._running = 0
        self._last = 0.0
        self._idle: asyncio.Task[None] | None = None

    async def call(self, who: AuthorityContext | None, name: str, arguments: Mapping[str, Any]) -> mcp.CallToolResult:
        self._running += 1
        try:
            return await self._call(who, name, arguments)
        except (streamable_http.ServerUnreachable, CommandFailed, StartRefused) as error:
            return error_result(ServiceUnavailable.code, str(error))
        finally:
            self._running -= 1
            self._last = time.monotonic()

    async def close(self) -> None:
        """Let the folder go, if this process owns it."""
        if self._idle is not None:
            self._idle.cancel()
            await asyncio.gather(self._idle, return_exceptions=True)
        await self._release()

    async def _call(self, who: AuthorityContext | None, name: str, arguments: Mapping[str, Any]) -> mcp.CallToolResult:
        until = time.monotonic() + OWNER_TIMEOUT_SECONDS
        while True:
            if self._own is not None:
                return await self._own.call(who, name, arguments)
            if address := self._owner_address():
                return await streamable_http.call_remote_tool(address, lambda: self._receipt(who), name, arguments)
            try:
                await self._open()
            except StartRefused:  # somebody else was faster, or is leaving
                if time.monotonic() > until:
                    raise
                await asyncio.sleep(0.1)

    def _owner_address(self) -> str | None:
        owner = read_lock_holder(self._settings.storage.data_dir) if self._settings.storage.data_dir.exists() else None
        return owner.mcp if owner else None

    async def _open(self) -> None:
        async with self._opening:
            if self._own is not None:
                return
            opened = local_service.own_data_folder(self._settings, self._environ, self._redactor)
            service = await self._stack.enter_async_context(opened)
            self._own = LocalToolCaller(governed_memory(service.kernel))
            self._last = time.monotonic()
            self._idle = asyncio.create_task(self._release_when_idle())

    async def _release_when_idle(self) -> None:
        """New calls open it again, after this has ended."""
        while True:
            await asyncio.sleep(0.2)
            async with self._opening:
                if self._running == 0 and time.monotonic() - self._last >= IDLE_TIMEOUT_SECONDS:
                    return await self._release()

    async def _release(self) -> None:
        self._own = None
        await self._stack.aclose()

    def _receipt(self, who: AuthorityContext | None) -> str:
        """Of nobody when the authority is blank, so that the owner's gate denies it and its run log says so."""
        settings, now = self._settings, SystemClock().now()
        names = {"sub": "nobody", "tenant": settings.memory.tenant, "aud": settings.auth.authority_audience}
        spaces: tuple[str, ...] = ("nowhere",)
        capabilities: tuple[str, ...] = (BLANK_CAPABILITY,)
        if who is not None:
            names |= {"sub": who.principal, "tenant": who.tenant}
            spaces, capabilities = who.namespaces or spaces, tuple(sorted(who.capabilities))
        claims = receipts.create_own_claims(names, spaces, capabilities, RECEIPT_LIFETIME_SECONDS, now=now)
        return receipts.issue_receipt(claims, keys.ensure_signing_key(settings.storage.data_dir))
