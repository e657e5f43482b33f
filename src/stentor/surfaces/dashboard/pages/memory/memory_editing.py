"""Changes of notes: an editor with a preview, deleting a note, restoring and naming versions, and marking a note, a
passage or a source as invalid.

A change that somebody else made meanwhile is merged; where both changed the same lines, the other text goes to a copy.
"""

from __future__ import annotations

import asyncio

from starlette.responses import RedirectResponse, Response

from stentor.core.jsontext import JsonObject
from stentor.domains.memory.vaults import DEFAULT_VAULT
from stentor.surfaces.dashboard.gateway import GatewayError
from stentor.surfaces.dashboard.pages.memory.memory import current_version, read_document, read_versions
from stentor.surfaces.dashboard.presenters.notes import note_rendering
from stentor.surfaces.dashboard.presenters.notes.note_rendering import note_url, vault_param
from stentor.surfaces.dashboard.site.page import PageRequest

REFUSALS = (400, 409, 412, 413)
"""Statuses of a write that the form shows together with what was typed."""
EXISTS_MESSAGE = "There is a note at this path. Edit that one, or choose another path."
CHANGED_MESSAGE = "This note has changed, so it was not deleted. Read it again first."
GONE_MESSAGE = "This note was deleted or moved in the meantime. Save again to write it as a new one."


async def show_editor(page: PageRequest) -> Response:
    """Render the editor of a note, or of a new one if there is none at this path."""
    path, vault = page.query_param("path"), page.query_param("vault", DEFAULT_VAULT)
    document = await read_document(page, path, vault) if path else None
    # After the document: reading a note that was edited in the vault stores its state as a version.
    base = current_version(await read_versions(page, path, vault)) if document else ""
    return _render(page, path, vault, document["content"] if document else "", base)


def _render(
    page: PageRequest, path: str, vault: str, text: str, base: str, problem: GatewayError | None = None
) -> Response:
    return page.render(
        "note-edit.html",
        problem.status if problem else 200,
        note_path=path,
        vault=vault,
        text=text,
        base=base,
        problem=problem,
        address=note_url(path, vault),
    )


async def preview(page: PageRequest) -> Response:
    """Render the text as the note's page would, without saving it."""
    form = await page.read_form()
    source = {"from": form.get("path", ""), **vault_param(form.get("vault") or DEFAULT_VAULT)}
    body = await asyncio.to_thread(note_rendering.render_note, await _read_text(page), source)
    return page.render("note-preview.html", body=body)


async def _read_text(page: PageRequest) -> str:
    return (await page.read_field("text")).replace("\r\n", "\n")


async def save(page: PageRequest) -> Response:
    form = await page.read_form()
    path, vault, base = form.get("path", "").strip(), form.get("vault") or DEFAULT_VAULT, form.get("base", "")
    text = await _read_text(page)
    # A new note is written only where the reading just now found none.
    metadata = {"conflict_resolution": "merge", "base_hash": base} if base else {"conflict_resolution": "abort"}
    try:
        document = await read_document(page, path, vault)
        if document is not None and not base:
            raise GatewayError(409, "CONFLICT", EXISTS_MESSAGE)
        if document is None and base:
            base = ""  # for the form that follows
            raise GatewayError(409, "CONFLICT", GONE_MESSAGE)
        written = await _write(page, path, vault, text, (document or {}).get("frontmatter", {}), metadata)
        if written["status"] == "conflict" and not base:
            raise GatewayError(409, "CONFLICT", EXISTS_MESSAGE)
    except GatewayError as error:
        return _render(page, path, vault, text, base, error.require_status(*REFUSALS))
    return _redirect(page, path, vault, written)


async def delete(page: PageRequest) -> Response:
    """Delete a note unless it has another version than `base`, the one that was displayed."""
    form = await page.read_form()
    path, vault, base = form.get("path", ""), form.get("vault") or DEFAULT_VAULT, form.get("base", "")
    metadata = {"conflict_resolution": "abort"} | ({"base_hash": base} if base else {})
    body = {"operation": "delete", "vault": vault, "document": {"path": path}, "metadata": metadata}
    written = await page.call("memory.write", body=body)
    if written["status"] == "conflict":
        raise GatewayError(409, "CONFLICT", CHANGED_MESSAGE)
    return page.redirect(note_url(path, vault), "note-deleted")


async def restore(page: PageRequest) -> Response:
    """Write an earlier version again; the present one stays among the versions."""
    form = await page.read_form()
    path, vault, version = form.get("path", ""), form.get("vault") or DEFAULT_VAULT, form.get("version", "")
    # Without a condition: it replaces whatever is there.
    old = (await page.call("memory.version", version=version, path=path, vault=vault))["document"]
    written = await _write(page, path, vault, old["content"], old["frontmatter"], {})
    return _redirect(page, path, vault, written)


async def name_version(page: PageRequest) -> Response:
    """Give a version the name that was typed; an empty one removes the name."""
    form = await page.read_form()
    path, vault, version = form.get("path", ""), form.get("vault") or DEFAULT_VAULT, form.get("version", "")
    body = {"path": path, "vault": vault, "name": form.get("name", "").strip() or None}
    await page.call("memory.name_version", version=version, body=body)
    shown = {} if form.get("shown") != version else {"version": version}
    return page.redirect(note_url(path, vault, **shown), "saved")


async def _write(
    page: PageRequest, path: str, vault: str, text: str, frontmatter: JsonObject, metadata: JsonObject
) -> JsonObject:
    body = {
        "operation": "write",
        "vault": vault,
        "document": {"path": path, "content": text, "frontmatter": frontmatter},
        "metadata": metadata,
    }
    return dict(await page.call("memory.write", body=body))


def _redirect(page: PageRequest, path: str, vault: str, written: JsonObject) -> Response:
    if written["conflict_copy"]:  # whose page says what to do
        return RedirectResponse(note_url(written["conflict_copy"], vault), 303)
    return page.redirect(note_url(path, vault), "merged" if written["merged"] else "saved")


async def mark(page: PageRequest) -> Response:
    form = await page.read_form()
    await page.call("memory.invalidate", body={**_marked(form), "reason": form.get("reason", "")})
    return page.redirect(_note_address(form), "invalidated")


async def unmark(page: PageRequest) -> Response:
    form = await page.read_form()
    reason = form.get("reason", "").strip()
    await page.call("memory.restore", body=_marked(form) | ({"reason": reason} if reason else {}))
    return page.redirect(_note_address(form), "valid-again")


def _marked(form: dict[str, str]) -> JsonObject:
    """Return what the form marks: a source, a passage of the note, or the note."""
    vault, path, anchor = form.get("vault") or DEFAULT_VAULT, form.get("path", ""), form.get("anchor", "").strip()
    if source := form.get("source", ""):
        return {"source": source, "vault": vault}
    return {"vault": vault} | ({"claim": path + anchor} if anchor else {"note": path})


def _note_address(form: dict[str, str]) -> str:
    return note_url(form.get("path", ""), form.get("vault") or DEFAULT_VAULT)


ROUTES = [
    ("GET", "/memory/edit", show_editor),
    ("POST", "/memory/edit", save),
    ("POST", "/memory/preview", preview),
    ("POST", "/memory/delete", delete),
    ("POST", "/memory/restore", restore),
    ("POST", "/memory/version-name", name_version),
    ("POST", "/memory/mark", mark),
    ("POST", "/memory/unmark", unmark),
]
