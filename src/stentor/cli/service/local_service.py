"""The service inside a command, used when no process holds the data folder lock.

A command that writes acquires the lock, upgrades the schema, resumes queued tasks, and waits for running ones before
it exits. A command that only reads takes no lock, opens the database read-only and creates nothing. Requests go through
ASGI without a socket: workers cannot connect, and an event stream arrives as a whole when it has ended.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from starlette.types import ASGIApp

from stentor.auth import api_keys as key_files
from stentor.auth.principal import PERMISSIONS
from stentor.bootstrap.kernel import Kernel, build
from stentor.bootstrap.service import Service, application, open_service
from stentor.bootstrap.storage import open_driver
from stentor.bootstrap.surface_context import open_surface_context
from stentor.cli.command import Access
from stentor.cli.output import EXIT_UNREACHABLE, CommandFailed, print_notice
from stentor.cli.service.offline import has_database, require_current_schema, require_database
from stentor.core.clock import SystemClock
from stentor.core.db import Database
from stentor.core.db.driver import Driver, ReadOnlyDriver
from stentor.core.security import redaction
from stentor.core.security.redaction import Redactor
from stentor.core.settings import Settings

COMMAND_KEY_VARIABLE = f"{key_files.KEY_VARIABLE_PREFIX}COMMAND_LINE"
DRAIN_SECONDS = 10.0
"""How long a command waits at its end for tasks that run in its process."""


@dataclass(frozen=True)
class LocalService:
    """An ASGI application and an API key that it accepts."""

    app: ASGIApp
    key: str
    key_source: str


class LocalReadOnlyDriver(ReadOnlyDriver):
    """A read-only driver of a database that no service uses, so that SQLite counts as not shared."""

    def __init__(self, driver: Driver) -> None:
        super().__init__(driver)
        self.shared = driver.shared


@asynccontextmanager
async def open_local_service(
    settings: Settings, environ: Mapping[str, str], *, access: Access
) -> AsyncIterator[LocalService]:
    """Open the service in this process, with the rights that `access` needs. Raises CommandFailed and StartRefused.

    Without a configured client key the command gets a temporary admin key: whoever can open the data folder could read
    its admin key as well.
    """
    if access != "create":
        require_database(settings)
    is_new = not has_database(settings)
    redactor = Redactor()
    redaction.configure_logging("warning", redactor)
    # Only commands on the memory open the vault and its index.
    settings = replace(
        settings,
        # One command makes all requests here, so there is nobody to protect the others from.
        server=replace(settings.server, rate_limit=0),
        memory=replace(settings.memory, enabled=access == "memory"),
    )
    key, source = settings.client.key, "--key or SERVICE_CLIENT_KEY"
    if not key:
        key, source = secrets.token_urlsafe(24), "this command"
        environ = {**environ, COMMAND_KEY_VARIABLE: f"{key}:admin:{','.join(PERMISSIONS)}"}
    if access == "read":
        if sys.stderr.isatty():
            print_notice("No service is running: this is the state in the database.")
        async with _open_read_only(settings, environ, redactor) as app:
            yield LocalService(app, key, source)
        return
    async with own_data_folder(settings, environ, redactor) as service:
        if is_new:
            print_notice(
                f"Notice: no service is running, and {settings.storage.data_dir} had no database: this command created "
                "one. Select another data folder with --data-dir, or a service with --url.",
                "yellow",
            )
        yield LocalService(service.app, key, source)


@asynccontextmanager
async def own_data_folder(settings: Settings, environ: Mapping[str, str], redactor: Redactor) -> AsyncIterator[Service]:
    """Run the service with the data folder lock held. Raises CommandFailed and StartRefused."""
    # The lock is in the data folder: on PostgreSQL a command cannot see whether a service runs on another machine.
    if settings.storage.database_url:
        raise CommandFailed(
            "With SERVICE_DATABASE_URL set, this command needs a running service: "
            "start `stentor serve` and set SERVICE_URL or pass --url.",
            EXIT_UNREACHABLE,
        )
    service = open_service(settings, environ, redactor)
    try:
        await service.start()
        yield service
        # Not in `finally`: a failed command does not wait for its tasks.
        await _drain(service.kernel)
    finally:
        await service.stop()


@asynccontextmanager
async def _open_read_only(settings: Settings, environ: Mapping[str, str], redactor: Redactor) -> AsyncIterator[ASGIApp]:
    redactor.add_secret(settings.storage.database_url)
    redactor.add_secret(settings.storage.session_url)
    # Without a service no worker can be online: skip the grace period after which one counts as offline.
    settings = replace(settings, routing=replace(settings.routing, worker_offline_seconds=0.0))
    driver = LocalReadOnlyDriver(open_driver(settings))
    require_current_schema(driver)
    loaded = key_files.load_keys(settings, environ, redactor)
    kernel = build(settings, Database(driver), SystemClock())
    try:
        # Loads what is held in memory, without a start, which would write.
        await kernel.views.refresh(0)
        yield application(kernel, open_surface_context(kernel, loaded.key_ring))
    finally:
        await kernel.stop()


async def _drain(kernel: Kernel) -> None:
    """Wait for the tasks that run in this process: an interrupted one would have to be repeated."""
    deadline = asyncio.get_running_loop().time() + DRAIN_SECONDS
    while kernel.tasks.dispatcher.count_running():
        if asyncio.get_running_loop().time() > deadline:
            running = kernel.tasks.dispatcher.count_running()
            print_notice(f"Tasks still running: {running}. The service resumes them at its next start.", "yellow")
            return
        await asyncio.sleep(0.02)
