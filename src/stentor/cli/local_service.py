"""The service inside a command, for when nobody holds the data folder.

A command that writes is the folder's owner while it runs: it takes the lock, brings the schema up to
date, takes up what waits, and lets what runs here end before it leaves. A command that only reads
takes no lock and opens the database read-only; it makes no folder, no schema and no agents.

The answers come through ASGI without a socket; workers therefore cannot reach this service, and an
event stream is handed over as a whole at its end.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from starlette.types import ASGIApp

from stentor import bootstrap
from stentor.auth import api_keys as key_files
from stentor.auth.principal import PERMISSIONS
from stentor.bootstrap.surface_context import open_surface_context
from stentor.cli.command import Access
from stentor.cli.output import EXIT_FAILED, EXIT_UNREACHABLE, CommandFailed, print_notice
from stentor.core import migrations
from stentor.core.clock import SystemClock
from stentor.core.db import Database
from stentor.core.db.driver import DbConnection, Driver
from stentor.core.security import redaction
from stentor.core.security.redaction import Redactor
from stentor.core.settings import Settings

COMMAND_KEY_VARIABLE = f"{key_files.KEY_VARIABLE_PREFIX}COMMAND_LINE"
DRAIN_SECONDS = 10.0
"""How long a command waits for work that it started itself."""


@dataclass(frozen=True)
class LocalService:
    """An ASGI application and a key that it takes."""

    app: ASGIApp
    key: str
    key_source: str


class ReaderOnlyDriver:
    """A driver all of whose connections only read; a write fails like an outage of the store."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.name = driver.name
        self.shared = driver.shared

    def writer(self) -> DbConnection:
        return self._driver.reader()

    def reader(self) -> DbConnection:
        return self._driver.reader()


@asynccontextmanager
async def open_local_service(
    settings: Settings, environ: Mapping[str, str], *, access: Access
) -> AsyncIterator[LocalService]:
    """Raises CommandFailed and StartRefused.

    Without a key of its own the command gets one for as long as it lives: who may open the folder
    is its operator already.
    """
    if access != "create":
        require_database(settings)
    redactor = Redactor()
    redaction.configure_logging("warning", redactor)
    settings = replace(
        settings,
        server=replace(settings.server, rate_limit=0),
        memory=replace(settings.memory, enabled=access == "memory"),
    )
    key, source = settings.client.key, "--key or SERVICE_CLIENT_KEY"
    if not key:
        key, source = secrets.token_urlsafe(24), "this command"
        environ = {**environ, COMMAND_KEY_VARIABLE: f"{key}:admin:{','.join(PERMISSIONS)}"}
    if access == "read":
        async with _reading(settings, environ, redactor) as app:
            yield LocalService(app, key, source)
        return
    async with own_data_folder(settings, environ, redactor) as service:
        yield LocalService(service.app, key, source)


@asynccontextmanager
async def own_data_folder(
    settings: Settings, environ: Mapping[str, str], redactor: Redactor
) -> AsyncIterator[bootstrap.Service]:
    """The folder's owner for as long as it is open. Raises CommandFailed and StartRefused."""
    if settings.storage.database_url:
        raise CommandFailed(
            "The state is in PostgreSQL, where a command cannot see whether a service runs: "
            "start `stentor serve` and give its address in SERVICE_URL or with --url.",
            EXIT_UNREACHABLE,
        )
    service = bootstrap.open_service(settings, environ, redactor)
    try:
        await service.start()
        yield service
        await _drain(service.kernel)
    finally:
        await service.stop()


@asynccontextmanager
async def _reading(settings: Settings, environ: Mapping[str, str], redactor: Redactor) -> AsyncIterator[ASGIApp]:
    redactor.add_secret(settings.storage.database_url)
    # No service runs here, so no worker can be online, and none gets the benefit of the doubt.
    settings = replace(settings, routing=replace(settings.routing, worker_offline_seconds=0.0))
    driver = ReaderOnlyDriver(bootstrap.open_driver(settings))
    require_current_schema(driver)
    loaded = key_files.load_keys(settings, environ, redactor)
    kernel = bootstrap.build(settings, Database(driver), SystemClock())
    try:
        await kernel.refresh(0)
        yield bootstrap.application(kernel, open_surface_context(kernel, loaded.key_ring))
    finally:
        await kernel.stop()


def require_database(settings: Settings) -> None:
    if not settings.storage.database_url and not (settings.storage.data_dir / "stentor.db").exists():
        raise CommandFailed(
            f"No service runs, and there is no database in {settings.storage.data_dir}: start `stentor serve`, "
            "or name another folder with --data-dir or a service with --url.",
            EXIT_UNREACHABLE,
        )


def require_current_schema(driver: Driver) -> None:
    current = migrations.current_version(driver)
    migrations.require_supported(current)
    if current != migrations.HEAD:
        raise CommandFailed(
            f"The database has schema {current or 'none'}, this program reads {migrations.HEAD}: "
            f"{migrations.UPGRADE_COMMAND}, or a start of `stentor serve`, brings it up to date.",
            EXIT_FAILED,
        )


async def _drain(kernel: bootstrap.Kernel) -> None:
    """Let what runs in this process end: it would otherwise have to be begun anew."""
    until = asyncio.get_running_loop().time() + DRAIN_SECONDS
    while kernel.tasks.dispatcher.count_running():
        if asyncio.get_running_loop().time() > until:
            left = kernel.tasks.dispatcher.count_running()
            print_notice(f"Tasks still running here: {left}. The next start of the service takes them up.", "yellow")
            return
        await asyncio.sleep(0.02)
