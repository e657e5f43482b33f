"""The routes of all pages."""

from __future__ import annotations

from stentor.surfaces.dashboard.pages import agent, agents, checkpoints, governance, overview, tasks, updates
from stentor.surfaces.dashboard.pages.site import Handler

ROUTES: list[tuple[str, str, Handler]] = [
    *overview.ROUTES,
    *tasks.ROUTES,
    *updates.ROUTES,
    *agents.ROUTES,
    *agent.ROUTES,
    *governance.ROUTES,
    *checkpoints.ROUTES,
]
"""Method, path, handler; every one behind the session, and every POST behind its token."""
