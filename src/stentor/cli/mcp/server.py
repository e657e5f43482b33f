"""Runs the governed memory server of `stentor mcp`: for one client on standard input, or over HTTP.

On standard input, calls go to the service that runs on the data folder, with a receipt per request signed with the
folder's own key. If none runs, this process acquires the data folder lock and releases it when idle, so that a service
can start. The protocol itself is in `surfaces.memory_mcp`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import mcp_types as mcp

from stentor.auth.authority.context import AuthorityContext, is_pattern
from stentor.cli.output import CommandFailed, console, print_json, print_notice
from stentor.core.clock import SystemClock
from stentor.core.errors import AuthorityDenied, ServiceUnavailable, StartRefused
from stentor.core.filesystem import LockHolder, read_lock_holder
from stentor.core.lazy_import import lazy_module
from stentor.core.security import pinning
from stentor.core.security.redaction import Redactor
from stentor.core.settings import Settings
from stentor.surfaces.memory_mcp import server
from stentor.surfaces.memory_mcp.tools import LocalToolCaller, error_result
from stentor.web.server.http_server import create_runner

if TYPE_CHECKING:
    from stentor.auth.authority import keys, receipts
    from stentor.bootstrap.surfaces import memory_mcp
    from stentor.cli.service import local_service
    from stentor.cli.service import runner as service_runner
    from stentor.domains.memory.governed import authorization
    from stentor.surfaces.memory_mcp import streamable_http
else:
    # Not before the first call of a tool: `claude -p` waits five seconds for a server, also on a busy machine.
    keys = lazy_module("stentor.auth.authority.keys")
    receipts = lazy_module("stentor.auth.authority.receipts")
    authorization = lazy_module("stentor.domains.memory.governed.authorization")
    streamable_http = lazy_module("stentor.surfaces.memory_mcp.streamable_http")
    # Imports the whole service, which `stentor mcp` needs only if none is running.
    memory_mcp = lazy_module("stentor.bootstrap.surfaces.memory_mcp")
    local_service = lazy_module("stentor.cli.service.local_service")
    service_runner = lazy_module("stentor.cli.service.runner")

LAUNCH_ISSUER = "launch"
NO_AUTHORITY_MESSAGE = (
    "All calls will be denied, because SERVICE_MCP_PRINCIPAL or SERVICE_MCP_CAPABILITIES is not set. "
    "`stentor mcp install` prints a configuration that sets them."
)
IDLE_TIMEOUT_SECONDS = 10.0
OWNER_TIMEOUT_SECONDS = 10.0
"""Seconds to wait for a lock holder that is starting or shutting down."""
RECEIPT_LIFETIME_SECONDS = 60


def serve_stdio(settings: Settings, environ: Mapping[str, str], redactor: Redactor) -> None:
    """Serve one client until it closes standard input. Raises StartRefused."""
    if invalid := [name for name in settings.mcp.namespaces if not is_pattern(name)]:
        # Otherwise the client would notice at its first call, and the user not at all.
        raise StartRefused(
            f"SERVICE_MCP_NAMESPACES: {invalid[0][:80]!r} is not a valid namespace. Example: team/notes,vault."
        )
    if _launch_context(settings) is None:
        print_notice(NO_AUTHORITY_MESSAGE, "yellow")
    with create_runner() as loop:
        loop.run(_serve_stdio(settings, environ, redactor))


async def _serve_stdio(settings: Settings, environ: Mapping[str, str], redactor: Redactor) -> None:
    calls = FolderToolCaller(settings, environ, redactor)
    try:
        await server.serve_stdio(calls, _launch_context(settings))
    finally:
        await calls.close()


def _launch_context(settings: Settings) -> AuthorityContext | None:
    """Return who calls over standard input; None if the launch configuration does not say."""
    try:
        return AuthorityContext(
            settings.mcp.principal,
            settings.memory.tenant,
            settings.mcp.namespaces,
            frozenset(settings.mcp.capabilities),
            LAUNCH_ISSUER,
            "",
            None,
        )
    except AuthorityDenied:
        return None


def serve_http(settings: Settings, environ: Mapping[str, str], redactor: Redactor, *, as_json: bool) -> None:
    """Serve over HTTP until SIGINT, SIGTERM or SIGHUP, with the data folder lock held. Raises StartRefused."""

    def on_ready(report: service_runner.StartupReport) -> None:
        address = report.surfaces["mcp"]
        for warning in report.warnings:
            print_notice(f"warning: {warning}", "yellow")
        if as_json:
            print_json({"ready": True, "mcp": address, "admin_key_file": report.admin_key_file})
        else:
            console.print(
                f"The governed memory listens on [cyan]{address}{streamable_http.MCP_PATH}[/]", soft_wrap=True
            )

    service_runner.run_service(settings, environ, redactor, on_ready, only_surface="mcp")


class FolderToolCaller:
    """Calls the memory tools of the service on a data folder, or runs them here while no service is running."""

    def __init__(self, settings: Settings, environ: Mapping[str, str], redactor: Redactor) -> None:
        self._settings = settings
        self._environ = environ
        self._redactor = redactor
        self._opening = asyncio.Lock()
        self._local: LocalToolCaller | None = None
        self._stack = AsyncExitStack()
        self._running = 0
        self._last_call_at = 0.0
        self._idle: asyncio.Task[None] | None = None

    async def call(self, who: AuthorityContext | None, name: str, arguments: Mapping[str, Any]) -> mcp.CallToolResult:
        # Counted before the lock is awaited, so that the idle check sees a call that is about to begin.
        self._running += 1
        try:
            return await self._call(who, name, arguments)
        except (streamable_http.ServerUnreachable, CommandFailed, StartRefused) as error:
            return error_result(ServiceUnavailable.code, str(error))
        finally:
            self._running -= 1
            self._last_call_at = time.monotonic()

    async def close(self) -> None:
        """Release the data folder lock if this process holds it."""
        if self._idle is not None:
            self._idle.cancel()
            await asyncio.gather(self._idle, return_exceptions=True)
        await self._release()

    async def _call(self, who: AuthorityContext | None, name: str, arguments: Mapping[str, Any]) -> mcp.CallToolResult:
        deadline = time.monotonic() + OWNER_TIMEOUT_SECONDS
        while True:
            if self._local is not None:
                return await self._local.call(who, name, arguments)
            # Looked up for every call: a service may have started or stopped since the last one.
            if (owner := self._read_owner()) and owner.mcp:
                trust = pinning.trust_only(owner.certificate) if owner.certificate else pinning.trust_nothing()
                return await streamable_http.call_remote_tool(
                    owner.mcp, lambda: self._receipt(who), name, arguments, trust
                )
            try:
                await self._open()
            except StartRefused:  # another process acquired the lock first, or is shutting down
                if time.monotonic() > deadline:
                    raise
                await asyncio.sleep(0.1)

    def _read_owner(self) -> LockHolder | None:
        return read_lock_holder(self._settings.storage.data_dir) if self._settings.storage.data_dir.exists() else None

    async def _open(self) -> None:
        async with self._opening:
            if self._local is not None:  # another call opened it while this one waited
                return
            opened = local_service.own_data_folder(self._settings, self._environ, self._redactor)
            service = await self._stack.enter_async_context(opened)
            self._local = LocalToolCaller(memory_mcp.governed_memory(service.kernel))
            self._last_call_at = time.monotonic()
            self._idle = asyncio.create_task(self._release_when_idle())

    async def _release_when_idle(self) -> None:
        """Release the lock after a time without calls; the next call acquires it again."""
        while True:
            await asyncio.sleep(0.2)
            # Under the same lock as `_open`, so that no call starts on a service that is being closed.
            async with self._opening:
                if self._running == 0 and time.monotonic() - self._last_call_at >= IDLE_TIMEOUT_SECONDS:
                    return await self._release()

    async def _release(self) -> None:
        self._local = None
        await self._stack.aclose()

    def _receipt(self, who: AuthorityContext | None) -> str:
        """Issue a receipt for one request.

        Without authority it is for nobody, so that the service denies the call and records the denial in its run log.
        """
        settings, now = self._settings, SystemClock().now()
        names = {"sub": "nobody", "tenant": settings.memory.tenant, "aud": settings.auth.authority_audience}
        spaces: tuple[str, ...] = ("nowhere",)
        capabilities: tuple[str, ...] = (authorization.BLANK_CAPABILITY,)
        if who is not None:
            names |= {"sub": who.principal, "tenant": who.tenant}
            spaces, capabilities = who.namespaces or spaces, tuple(sorted(who.capabilities))
        claims = receipts.create_own_claims(names, spaces, capabilities, RECEIPT_LIFETIME_SECONDS, now=now)
        return receipts.issue_receipt(claims, keys.ensure_signing_key(settings.storage.data_dir))
