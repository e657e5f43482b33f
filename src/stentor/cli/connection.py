"""How a command reaches the service.

First the address that was given (`--url`, SERVICE_URL); else the process that holds the data folder;
else, when nobody does, the command does the work itself, in its own process (`local`).
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from ipaddress import ip_address
from typing import TypeVar

import httpx

from stentor.auth.api_keys import admin_key_file
from stentor.cli.api import Api
from stentor.cli.options import Access, Target
from stentor.cli.output import FAILED, UNREACHABLE, USAGE, CommandFailed
from stentor.core import settings as settings_module
from stentor.core.errors import StartRefused
from stentor.core.filesystem import LockHolder, read_lock_holder
from stentor.core.settings import Settings

T = TypeVar("T")
PATIENCE = 10.0
"""Seconds to wait for a holder of the folder that does not answer anywhere yet, or leaves again."""
LOCK_TRIES = 3
"""Refused starts in a row with no holder to be seen: somebody only looked at the lock, or it is something else."""


def run(target: Target, work: Callable[[Api], Awaitable[T]], *, access: Access) -> T:
    """Connect, work, leave. Raises CommandFailed and StentorError."""
    options = {"data_dir": target.data_dir, "client_url": target.url, "client_key": target.key}
    settings = settings_module.load(os.environ, options)

    async def connected() -> T:
        async with connect(settings, access=access) as api:
            return await work(api)

    return asyncio.run(connected())


@asynccontextmanager
async def connect(settings: Settings, *, access: Access) -> AsyncIterator[Api]:
    """The service that the settings mean. `access` counts only when the command does the work itself."""
    async with AsyncExitStack() as stack:
        if settings.client_url:
            yield await stack.enter_async_context(_over_network(settings, settings.client_url))
        else:
            yield await _here(settings, access, stack)


async def _here(settings: Settings, access: Access, stack: AsyncExitStack) -> Api:
    """The holder of the folder, or this process. Another command may take the folder first: then ask again."""
    until = time.monotonic() + PATIENCE
    for attempt in itertools.count():
        if address := await _owners_address(settings):
            return await stack.enter_async_context(_over_network(settings, address))
        try:
            return await stack.enter_async_context(_in_process(settings, access))
        except StartRefused:
            held = _owner(settings) is not None
            if time.monotonic() > until or (attempt >= LOCK_TRIES and not held):
                raise
        await asyncio.sleep(0.05)
    raise AssertionError


@asynccontextmanager
async def _in_process(settings: Settings, access: Access) -> AsyncIterator[Api]:
    # The whole kernel; not for a command that only asks a running service.
    from stentor.cli import local

    async with local.opened(settings, os.environ, access=access) as service:
        transport = httpx.ASGITransport(service.app)
        headers = {"X-API-Key": service.key}
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as http:
            yield Api(http, "this process", service.key_source, in_process=True)


@asynccontextmanager
async def _over_network(settings: Settings, address: str) -> AsyncIterator[Api]:
    url = checked_url(address)
    key, source = find_key(settings, url)
    headers = {"X-API-Key": key} if key else {}
    # A proxy of the environment stands between us and others, never between us and ourselves.
    async with httpx.AsyncClient(
        base_url=url, headers=headers, timeout=httpx.Timeout(30, connect=5), trust_env=not is_loopback(url)
    ) as http:
        yield Api(http, str(url.copy_with(userinfo=b"")), source)


def checked_url(address: str) -> httpx.URL:
    """Raises CommandFailed."""
    try:
        url = httpx.URL(address.rstrip("/"))
    except httpx.InvalidURL:
        url = httpx.URL("")
    if url.scheme not in ("http", "https") or not url.host or "%" in url.host:
        raise CommandFailed("The service's address must look like http://127.0.0.1:8080.", USAGE)
    return url


def is_loopback(url: httpx.URL) -> bool:
    try:
        return ip_address(url.host).is_loopback
    except ValueError:
        return url.host == "localhost"


def find_key(settings: Settings, url: httpx.URL) -> tuple[str, str]:
    """The key to send and where it came from: given, in the data folder, or MCP_API_KEY; both empty if none.

    The key of the folder stays on this machine: it is not sent to a service elsewhere.
    """
    path = admin_key_file(settings.data_dir)
    if settings.client_key:
        source = "--key" if settings.sources["client_key"] == "option" else "SERVICE_CLIENT_KEY"
        key = settings.client_key
    elif is_loopback(url) and path.exists():
        key, source = _read(path), str(path)
    else:
        key, source = settings.shared_key, "MCP_API_KEY" if settings.shared_key else ""
    if not (key.isascii() and key.isprintable()):
        raise CommandFailed(f"The key from {source} has characters that no header can carry.", USAGE)
    return key, source


def _read(path: os.PathLike[str]) -> str:
    try:
        with open(path, encoding="utf-8") as file:  # noqa: PTH123 - any path-like
            return file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandFailed(f"The key file {path} cannot be read ({type(error).__name__}).", FAILED) from None


async def _owners_address(settings: Settings) -> str | None:
    """Where the holder of the folder answers; None when nobody holds it. Raises CommandFailed."""
    until = time.monotonic() + PATIENCE
    while (owner := _owner(settings)) is not None and owner.gateway is None:
        if time.monotonic() > until:
            raise CommandFailed(
                f"Process {owner.pid} holds the data folder {settings.data_dir} and answers nowhere yet.", UNREACHABLE
            )
        await asyncio.sleep(0.05)
    return owner.gateway if owner else None


def _owner(settings: Settings) -> LockHolder | None:
    try:
        return read_lock_holder(settings.data_dir)
    except OSError as error:
        raise StartRefused(f"The data folder {settings.data_dir} cannot be read: {error.strerror}.") from None
