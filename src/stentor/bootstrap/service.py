"""A kernel as a service: the lock on its data folder, its schema, its keys, and the gateway over it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fastapi import APIRouter
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from stentor.auth.api_keys import LoadedKeys, load_keys
from stentor.bootstrap.kernel import Kernel, build
from stentor.bootstrap.monitoring import scrape_function
from stentor.bootstrap.operations import TABLES, operations
from stentor.bootstrap.storage import open_driver
from stentor.bootstrap.surface_context import SurfaceContext, open_surface_context
from stentor.core import filesystem, migrations
from stentor.core.clock import SystemClock, format_iso
from stentor.core.db import Database, database_url
from stentor.core.errors import StartRefused
from stentor.core.filesystem import DataFolderLock
from stentor.core.security.redaction import Redactor
from stentor.core.settings import Settings
from stentor.domains.activity import operations as activity_operations
from stentor.domains.llm.anthropic_api import api as anthropic_api
from stentor.domains.llm.openai_api import api as openai_api
from stentor.domains.llm.routes import streaming as llm_streaming
from stentor.domains.monitoring import api as monitoring_api
from stentor.domains.provenance import operations as provenance_operations
from stentor.surfaces.gateway import app as gateway
from stentor.web.operations import Operation, operation_route
from stentor.web.request_context import RequestDurations


@dataclass
class Service:
    """A kernel with its keys, its lock on the data folder and its ASGI application."""

    kernel: Kernel
    keys: LoadedKeys
    context: SurfaceContext
    app: ASGIApp
    lock: DataFolderLock | None

    async def start(self) -> int:
        """Start the background work of all domains; return how many tasks were recovered."""
        return await self.kernel.start(self.keys.key_ring.tenants)

    def mark_unready(self) -> None:
        """Report that this process is not ready, and keep answering."""
        self.kernel.health.is_stopping = True

    def close_streams(self) -> None:
        """End long polls and streams, so that the server need not cut them off."""
        self.mark_unready()
        self.kernel.infra.hub.closing.set()

    def skip_drain(self) -> None:
        """Have the stop wait for no running task."""
        self.kernel.skip_drain.set()

    async def stop(self) -> None:
        try:
            await self.kernel.stop()
        finally:
            self._release()

    def abandon(self) -> None:
        """Close a service that was never started."""
        self.kernel.infra.db.close()
        self._release()

    def _release(self) -> None:
        if self.lock is not None:
            self.lock.release()


def open_service(settings: Settings, environ: Mapping[str, str], redactor: Redactor) -> Service:
    """Lock the data folder, migrate the schema, wire everything. Raises StartRefused."""
    try:
        settings.storage.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        reason = "is a file" if isinstance(error, FileExistsError) else f"cannot be created: {error.strerror}"
        raise _folder_refused(settings, reason) from None
    clock = SystemClock()
    # Before the database is opened: a second service on the same SQLite file must not change anything.
    lock = _lock_data_folder(settings, format_iso(clock.now()))
    try:
        # Also for a folder that exists: it has keys, and an earlier version or the operator may have left it open.
        filesystem.restrict_permissions(settings.storage.data_dir)
        # Before the database is opened, whose errors may name its URL.
        for secret in settings.secrets():
            redactor.add_secret(secret)
        for url in (settings.storage.database_url, settings.storage.session_url):
            for secret in database_url.url_secrets(url):
                redactor.add_secret(secret)
        driver = open_driver(settings)
        # Under the lock of the folder: no other service may work on a SQLite database while its schema changes.
        migrations.prepare_schema(driver, migrate=settings.storage.migrate)
        loaded = load_keys(settings, environ, redactor)
        kernel = build(settings, Database(driver), clock, redactor=redactor)
        context = open_surface_context(kernel, loaded.key_ring, environ)
        return Service(kernel, loaded, context, application(kernel, context), lock)
    except BaseException:
        if lock is not None:
            lock.release()
        raise


def _lock_data_folder(settings: Settings, started_at: str) -> DataFolderLock | None:
    """Raises StartRefused if another service holds a folder with the database in it.

    Services that share a PostgreSQL may share the folder too; commands find the first one there.
    """
    try:
        return DataFolderLock(settings.storage.data_dir, started_at)
    except StartRefused:
        if not settings.storage.database_url:
            raise
        return None
    except OSError as error:
        raise _folder_refused(settings, f"cannot be written: {error.strerror}") from None


def _folder_refused(settings: Settings, reason: str) -> StartRefused:
    return StartRefused(
        f"The data folder {settings.storage.data_dir} {reason}. Choose another one with --data-dir (SERVICE_DATA_DIR)."
    )


def application(kernel: Kernel, context: SurfaceContext) -> ASGIApp:
    """Return the gateway over a kernel; a process without that role serves only its health and its metrics."""
    durations = RequestDurations()
    metrics = monitoring_api.router(kernel.health, scrape_function(kernel, durations, context.grpc_durations))
    is_gateway = "gateway" in kernel.infra.settings.process.roles
    # Routes of other roles are not even created, so a key cannot reach them by accident.
    bound = operations(kernel, context) if is_gateway else {}
    routes = _routes(kernel, context, bound, metrics) if is_gateway else metrics.routes
    max_body_bytes = kernel.infra.settings.server.max_body_mb * 1_000_000
    return gateway.build(routes, bound, context.keys, context.rate_limiter, max_body_bytes, durations)


def _routes(
    kernel: Kernel, context: SurfaceContext, bound: Mapping[str, Operation], metrics: APIRouter
) -> list[BaseRoute]:
    """Return the routes in the order in which they are matched."""
    streams, activity = context.stream_limit, kernel.tasks.activity
    missing = gateway.LATER_PREFIXES | ({} if kernel.memory is not None else gateway.LATER_MEMORY)
    of_operations = [
        operation_route(row, tag)
        for tag, table in TABLES
        for row in table
        if row.name in bound and not row.has_own_route
    ]
    others = [
        activity_operations.router(activity, streams),
        kernel.messaging.router(activity, streams),
        llm_streaming.router(context.chat, streams),
        gateway.create_later_routes(missing),
        metrics,
        openai_api.router(kernel.llm.gateway, context.chat, streams),
        anthropic_api.router(context.chat, streams),
    ]
    checkpoints = provenance_operations.router(kernel.provenance.operations())
    return [*checkpoints.routes, *of_operations, *(route for router in others for route in router.routes)]
