"""Provenance: the state of the log and its checkpoints, and the way to a run."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.responses import RedirectResponse, Response

from stentor.core.clock import format_iso_or_none
from stentor.domains.provenance.notes import NoteError, Verifier, read_verifier
from stentor.surfaces.dashboard.pages import provenance_rows
from stentor.surfaces.dashboard.site.calls import Refused, part, target
from stentor.surfaces.dashboard.site.page import Page

NEWEST = 25
"""Runs that are shown as ways in."""


async def provenance(page: Page) -> Response:
    """With `q` to the run of a task or an event; what is not found says so here."""
    text = page.query("q")
    if text and (found := await _find(page, text)):
        return RedirectResponse(f"/provenance/{part(found)}", 303)
    if page.query("part") == "log":
        return page.render("provenance.html", block="log", **await _log(page), signed=await signed(page))
    found_log, checkpoint, tasks, names = await asyncio.gather(
        _log(page), signed(page), page.get("/tasks", limit=NEWEST), page.rows.names(page.tenant)
    )
    return page.render(
        "provenance.html",
        block="runs",
        text=text,
        **found_log,
        signed=checkpoint,
        verifier=verifier(checkpoint),
        tasks=tasks["tasks"],
        names=names,
    )


async def _find(page: Page, text: str) -> str | None:
    """The provenance id that a task id or a provenance id leads to."""
    try:
        return str((await page.get(f"/tasks/{part(text)}"))["provenance_id"])
    except Refused as refused:
        if refused.status not in (400, 404):
            raise
    try:
        await page.get(f"/provenance/{part(text)}")
    except Refused as refused:
        if refused.status not in (400, 404):
            raise
        return None
    return text


async def _log(page: Page) -> dict[str, Any]:
    state, health = await asyncio.gather(page.rows.read(provenance_rows.state), component(page))
    return {"state": state, "since": format_iso_or_none(state.since), "health": health}


async def component(page: Page) -> dict[str, Any]:
    """The provenance as the gateway's health tells it, which it does with 503 too."""

    async def ask() -> dict[str, Any]:
        reply = await page.site.caller.call(page.session.key, "GET", target("/health/detailed"))
        parts = reply.data.get("components", {}) if isinstance(reply.data, dict) else {}
        return dict(parts.get("provenance") or {"status": "unknown", "detail": "The gateway does not tell."})

    found: dict[str, Any] = await page.site.kept.get("provenance", ask)
    return found


async def signed(page: Page) -> dict[str, Any] | None:
    """The newest checkpoint; None before the first."""
    try:
        return dict(await page.get("/provenance/checkpoint"))
    except Refused as refused:
        if refused.status != 404:
            raise
        return None


def verifier(checkpoint: dict[str, Any] | None) -> Verifier | None:
    """The public key that a checkpoint came with, if it is one."""
    try:
        return read_verifier(checkpoint["key"]) if checkpoint and checkpoint["key"] else None
    except NoteError:
        return None


async def sign(page: Page) -> Response:
    await page.post("/provenance/checkpoint")
    return page.back("/provenance", "signed")


ROUTES = [("GET", "/provenance", provenance), ("POST", "/provenance/checkpoint", sign)]
