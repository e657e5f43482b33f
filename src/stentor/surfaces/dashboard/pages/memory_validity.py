"""Marking a note, a passage of it or its source as invalid, and removing the mark, on the note's page."""

from __future__ import annotations

from starlette.responses import Response

from stentor.core.jsontext import JsonObject
from stentor.domains.memory.vaults import DEFAULT_VAULT
from stentor.surfaces.dashboard.presenters.note_rendering import note_url
from stentor.surfaces.dashboard.site.page import PageRequest


async def mark(page: PageRequest) -> Response:
    form = await page.read_form()
    await page.call("memory.invalidate", body={**_target(form), "reason": form.get("reason", "")})
    return page.redirect(_address(form), "invalidated")


async def unmark(page: PageRequest) -> Response:
    form = await page.read_form()
    reason = form.get("reason", "").strip()
    await page.call("memory.restore", body=_target(form) | ({"reason": reason} if reason else {}))
    return page.redirect(_address(form), "valid-again")


def _target(form: dict[str, str]) -> JsonObject:
    """Return what the form is about: a source, or the note itself or a passage of it."""
    vault, path, anchor = form.get("vault") or DEFAULT_VAULT, form.get("path", ""), form.get("anchor", "").strip()
    if source := form.get("source", ""):
        return {"source": source, "vault": vault}
    return {"vault": vault} | ({"claim": path + anchor} if anchor else {"note": path})


def _address(form: dict[str, str]) -> str:
    return note_url(form.get("path", ""), form.get("vault") or DEFAULT_VAULT)


ROUTES = [
    ("POST", "/memory/mark", mark),
    ("POST", "/memory/unmark", unmark),
]
