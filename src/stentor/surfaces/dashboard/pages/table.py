"""The routes of all pages."""

from __future__ import annotations

from stentor.surfaces.dashboard.pages import (
    agent,
    agents,
    checkpoints,
    compose,
    console,
    deliveries,
    governance,
    hookactions,
    memory,
    messages,
    models,
    note,
    overview,
    provenance,
    provenance_run,
    providers,
    streams,
    tasks,
    webhooks,
)
from stentor.surfaces.dashboard.site.page import Handler

ROUTES: list[tuple[str, str, Handler]] = [
    *overview.ROUTES,
    *tasks.ROUTES,
    *console.ROUTES,
    *streams.ROUTES,
    *agents.ROUTES,
    *agent.ROUTES,
    *governance.ROUTES,
    *checkpoints.ROUTES,
    *memory.ROUTES,
    *note.ROUTES,
    *compose.ROUTES,
    *messages.ROUTES,
    *models.ROUTES,
    *providers.ROUTES,
    *provenance.ROUTES,
    *provenance_run.ROUTES,
    *webhooks.ROUTES,
    *hookactions.ROUTES,
    *deliveries.ROUTES,
]
"""Method, path, handler; every one behind the session, and every POST behind its token."""
