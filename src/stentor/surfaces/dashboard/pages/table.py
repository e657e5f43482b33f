"""The routes of all pages."""

from __future__ import annotations

from stentor.surfaces.dashboard.pages import console, overview, tasks, updates
from stentor.surfaces.dashboard.pages.site import Handler

ROUTES: list[tuple[str, str, Handler]] = [
    *overview.ROUTES,
    *tasks.ROUTES,
    *console.ROUTES,
    *updates.ROUTES,
]
"""Method, path, handler; every one behind the session, and every POST behind its token."""
