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
    tasks,
    updates,
    webhooks,
)
from stentor.surfaces.dashboard.pages.site import Handler

ROUTES: list[tuple[str, str, Handler]] = [
    *overview.ROUTES,
    *tasks.ROUTES,
    *console.ROUTES,
    *updates.ROUTES,
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
