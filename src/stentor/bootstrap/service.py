"""A kernel as a service: its lock on the data folder, its schema, its keys, and the gateway over it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp

from stentor.auth import api_keys as key_files
from stentor.auth.api_keys import LoadedKeys
from stentor.bootstrap.entrance import Entrance, entrance
from stentor.bootstrap.kernel import Kernel
from stentor.bootstrap.monitoring import figures
from stentor.bootstrap.operations import operations
from stentor.bootstrap.wiring import build
from stentor.core import filesystem, migrations
from stentor.core.clock import SystemClock, format_iso
from stentor.core.db import Database, database_url
from stentor.core.db.driver import Driver
from stentor.core.db.sqlite import SqliteDriver
from stentor.core.errors import StartRefused
from stentor.core.filesystem import DataFolderLock
from stentor.core.security.redaction import Redactor
from stentor.core.settings import Settings, setting_infos
from stentor.domains.activity import operations as activity_operations
from stentor.domains.llm import streaming as llm_streaming
from stentor.domains.llm.openai_api import api as openai_api
from stentor.domains.monitoring import api as monitoring_api
from stentor.domains.provenance import operations as provenance_operations
from stentor.surfaces.gateway import app as gateway
from stentor.surfaces.gateway import later
from stentor.web.operations import operation_routes
from stentor.web.request_context import RequestDurations


@dataclass
class Service:
    """A kernel with its keys, its lock on the data folder and its ASGI application."""

    kernel: Kernel
    keys: LoadedKeys
    entrance: Entrance
    app: ASGIApp
    lock: DataFolderLock | None

    async def start(self) -> int:
        return await self.kernel.start(self.keys.key_ring.tenants)

    def refuse(self) -> None:
        """Say that nothing more should be sent here, and go on answering."""
        self.kernel.health.is_stopping = True

    def leave(self) -> None:
        """Have long polls and streams end, so that the server need not cut them off."""
        self.kernel.health.is_stopping = True
        self.kernel.hub.closing.set()

    def hurry(self) -> None:
        """Have the stop wait for nothing that runs."""
        self.kernel.hurry.set()

    async def stop(self) -> None:
        await self.kernel.stop()
        self._release()

    def abandon(self) -> None:
        """Instead of a start: nothing runs yet."""
        self.kernel.db.close()
        self._release()

    def _release(self) -> None:
        if self.lock is not None:
            self.lock.release()


def open_service(settings: Settings, environ: Mapping[str, str], redactor: Redactor) -> Service:
    """Lock the folder, bring the schema up to date, wire everything. Raises StartRefused."""
    try:
        settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StartRefused(f"The data folder {settings.data_dir} cannot be made: {error.strerror}.") from None
    filesystem.restrict_permissions(settings.data_dir)
    clock = SystemClock()
    lock = _hold(settings, format_iso(clock.now()))
    try:
        for name, meta in setting_infos().items():
            if meta.secret and (value := getattr(settings, name)):
                redactor.add_secret(value)
        for secret in database_url.url_secrets(settings.database_url):
            redactor.add_secret(secret)
        driver = open_driver(settings)
        migrations.prepare_schema(driver, migrate=settings.migrate)
        loaded = key_files.load_keys(settings, environ, redactor)
        kernel = build(settings, Database(driver), clock, redactor=redactor)
        shared = entrance(kernel, loaded.key_ring)
        return Service(kernel, loaded, shared, application(kernel, shared), lock)
    except BaseException:
        if lock is not None:
            lock.release()
        raise


def _hold(settings: Settings, since: str) -> DataFolderLock | None:
    """Raises StartRefused when another service holds a folder with the database in it. Services that share a PostgreSQL
    may share the folder too: commands find the first one there.
    """
    try:
        return DataFolderLock(settings.data_dir, since)
    except StartRefused:
        if not settings.database_url:
            raise
        return None


def open_driver(settings: Settings) -> Driver:
    if not settings.database_url:
        return SqliteDriver(settings.data_dir / "stentor.db")
    try:
        module = importlib.import_module("stentor.core.db.postgres")
    except ImportError:
        raise StartRefused("PostgreSQL needs the extra: pip install 'stentor[postgres]'.") from None
    try:
        found = database_url.parse_postgres_url(settings.database_url)
    except ValueError as error:
        raise StartRefused(f"SERVICE_DATABASE_URL {error}.") from None
    driver: Driver = module.PostgresDriver(found.url)
    return driver


def application(kernel: Kernel, shared: Entrance) -> ASGIApp:
    """The gateway over a kernel; a process without that role answers only for its health and its metrics."""
    times = RequestDurations()
    if "gateway" in kernel.settings.roles:
        return _behind_the_gate(_routers(kernel, shared, times), kernel, shared, times)
    monitoring = monitoring_api.router(kernel.health, figures(kernel, times, shared.calls))
    return _behind_the_gate([monitoring], kernel, shared, times)


def _behind_the_gate(routers: list[Any], kernel: Kernel, shared: Entrance, times: RequestDurations) -> ASGIApp:
    return gateway.build(routers, shared.keys, shared.rate, kernel.settings.max_body_mb * 1_000_000, times)


def _routers(kernel: Kernel, shared: Entrance, times: RequestDurations) -> list[Any]:
    streams = shared.streams
    unbuilt = later.PREFIXES if kernel.memory is not None else later.PREFIXES | later.MEMORY
    return [
        provenance_operations.router(kernel.provenance.operations()),
        *(operation_routes(table, tag) for tag, table in operations(kernel, shared)),
        activity_operations.router(kernel.activity, streams),
        kernel.messages.router(kernel.activity, streams),
        llm_streaming.router(shared.talk, streams),
        later.router(unbuilt),
        monitoring_api.router(kernel.health, figures(kernel, times, shared.calls)),
        openai_api.router(kernel.llm.gateway, shared.talk, streams),
    ]
