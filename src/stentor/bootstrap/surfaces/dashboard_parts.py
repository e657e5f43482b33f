"""Wires the application of the dashboard: in the gateway's process, or by itself over a data folder."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from stentor.auth.oidc.provider import OidcProvider
from stentor.bootstrap.kernel import Kernel
from stentor.bootstrap.operations import OPERATIONS, operations
from stentor.bootstrap.parts.memory import open_plugin_vault, vault_folder
from stentor.bootstrap.storage import open_driver
from stentor.bootstrap.surface_context import SurfaceContext, dashboard_principal
from stentor.bootstrap.surfaces.dashboard import Dashboard, dashboard_key
from stentor.core.clock import Clock, SystemClock
from stentor.core.db import Database
from stentor.core.db.driver import Driver, ReadOnlyDriver
from stentor.core.errors import StartRefused
from stentor.core.filesystem import read_lock_holder
from stentor.core.security import pinning
from stentor.core.security.redaction import Redactor
from stentor.core.settings import Settings
from stentor.domains.audit.service import AuditService
from stentor.domains.notes.plugin_vault import PluginVault
from stentor.domains.reports.service import ReportService
from stentor.surfaces.dashboard import api, app
from stentor.surfaces.dashboard.gateway import GatewayClient, InProcessGatewayClient, LocalTaskGateway, TaskGateway
from stentor.surfaces.dashboard.pages import app as pages
from stentor.surfaces.dashboard.presenters.resources import RankingSettings
from stentor.surfaces.dashboard.prometheus import PrometheusClient
from stentor.surfaces.dashboard.site.page import Site
from stentor.surfaces.dashboard.site.refused_sign_ins import Record, log_only
from stentor.surfaces.dashboard.site.single_sign_on import SingleSignOn
from stentor.surfaces.dashboard.store import DashboardStore
from stentor.surfaces.dashboard.streaming import InstructionExecutor
from stentor.web.sse import StreamLimit
from stentor_vault.notes.folder_vault import FolderVault
from stentor_vault.notes.model import Vault


def open_beside(kernel: Kernel, settings: Settings, context: SurfaceContext) -> Dashboard:
    """Open it over the kernel of this process. Raises StartRefused."""
    principal = dashboard_principal(settings)
    gateway = LocalTaskGateway(kernel.tasks.submission, kernel.tasks.activity, principal)

    def ranking() -> RankingSettings:
        return RankingSettings(kernel.agents.routing.policy, kernel.agents.trust.view.is_available)

    driver = kernel.infra.db.driver
    caller = InProcessGatewayClient(operations(kernel, context), kernel.tasks.activity, context.keys)
    audit = AuditService(kernel.infra.db, kernel.infra.runlog)
    record_refusals = partial(audit.record_refused_sign_ins, settings.dashboard.tenant, "dashboard")
    parts = (kernel.infra.clock, gateway, caller, kernel.infra.hub.closing)
    return build(settings, driver, *parts, ranking, record_refusals)


def open_alone(settings: Settings, redactor: Redactor) -> Dashboard:
    """Open it over a data folder whose gateway may be down. Raises StartRefused."""
    if dashboard_key(settings) is None and not settings.loopback:
        raise StartRefused(
            f"Without a key the dashboard service is for loopback only, and SERVICE_HOST is {settings.server.host}: "
            "set DASHBOARD_API_KEY, or listen on 127.0.0.1."
        )
    if not settings.storage.database_url and not settings.storage.data_dir.is_dir():
        raise StartRefused(
            f"There is no data folder {settings.storage.data_dir}. Name the one of the service with --data-dir."
        )
    for secret in settings.secrets():
        redactor.add_secret(secret)

    # Imported late: aiohttp takes a fifth of the time of all imports, and `stentor serve` does not need it.
    from stentor.surfaces.dashboard.gateway_http import (
        NO_GATEWAY_FOR_TASKS_MESSAGE,
        GatewayAddress,
        HttpGatewayClient,
        HttpTaskGateway,
    )

    def find() -> GatewayAddress | None:
        folder, url = settings.storage.data_dir, settings.client.url
        try:
            owner = read_lock_holder(folder)
            url = url or (owner.gateway if owner else None) or ""
            return GatewayAddress(url, pinning.find_trust(folder, url) or True) if url else None
        except OSError:
            return None

    operations_by_name = {row.name: row for row in OPERATIONS}
    tasks = HttpTaskGateway(HttpGatewayClient(operations_by_name, find, NO_GATEWAY_FOR_TASKS_MESSAGE))
    parts = (SystemClock(), tasks, HttpGatewayClient(operations_by_name, find), asyncio.Event())
    # In its own process the dashboard does not know the gateway's ranking settings, so its pages omit what depends on
    # them.
    return build(settings, open_driver(settings), *parts, lambda: None)


def build(
    settings: Settings,
    driver: Driver,
    clock: Clock,
    gateway: TaskGateway,
    caller: GatewayClient,
    closing: asyncio.Event,
    ranking: Callable[[], RankingSettings | None],
    record_refusals: Record = log_only,
) -> Dashboard:
    """Build the application; it never writes to the database. Raises StartRefused."""
    vault = _vault(settings)
    notes = vault if isinstance(vault, FolderVault) and settings.task_notes.enabled else None
    # Fails closed: the pages act only through the gateway, where permissions are checked and events recorded.
    db = Database(ReadOnlyDriver(driver))
    stores = DashboardStore(
        db, clock, settings.dashboard.tenant, notes, ReportService(vault), settings.routing.sentinel_threshold
    )
    prometheus = PrometheusClient(settings.dashboard.metrics_url, settings.dashboard.metrics_timeout_seconds)
    streams = StreamLimit(settings.server.max_streams, closing)
    lifetime = settings.dashboard.session_hours * 3600
    site = Site(
        caller,
        db,
        clock,
        prometheus,
        streams,
        settings.routing.sentinel_threshold,
        lifetime,
        record_refusals,
        SingleSignOn(OidcProvider(settings.oidc, clock), settings.oidc.label) if settings.oidc.issuer else None,
    )
    work = InstructionExecutor(stores, gateway, notes, closing)
    routers = [
        api.create_task_router(stores),
        api.create_agent_router(stores, clock, prometheus, ranking),
        api.create_execution_router(work, StreamLimit(settings.server.max_streams)),
    ]

    async def close() -> None:
        await site.close()
        await prometheus.close()
        await gateway.close()
        if isinstance(vault, PluginVault):
            await vault.close()
        await asyncio.to_thread(db.close)

    return Dashboard(
        app.build_dashboard_app(
            routers,
            dashboard_key(settings),
            dashboard_principal(settings),
            pages.build_pages_app(site),
            settings.server.max_body_mb * 1_000_000,
        ),
        closing.set,
        close,
    )


def _vault(settings: Settings) -> Vault | None:
    """Return the vault of the tenant that is shown; it is not created here."""
    if not settings.memory.enabled or settings.memory.tenant != settings.dashboard.tenant:
        return None
    return open_plugin_vault(settings) or FolderVault(vault_folder(settings))
