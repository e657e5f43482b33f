"""One note: its text with links, its frontmatter, its versions; and where a link of it leads."""

from __future__ import annotations

import asyncio
from datetime import datetime
from functools import partial
from typing import Any
from urllib.parse import urlencode

from markupsafe import Markup
from starlette.responses import RedirectResponse, Response

from stentor.core.clock import micros_from_datetime
from stentor.domains.memory.vaults import DEFAULT
from stentor.surfaces.dashboard.pages import memory_rows, notetext
from stentor.surfaces.dashboard.site.calls import Refused, part
from stentor.surfaces.dashboard.site.page import Page

NAMED = 20
"""Versions, the newest ones, whose writer is looked for."""


def address(path: str, vault: str = DEFAULT, **more: str) -> str:
    """Of the page of a note."""
    return "/memory/note?" + urlencode({"path": path, **_named(vault), **more})


def _named(vault: str) -> dict[str, str]:
    return {} if vault == DEFAULT else {"vault": vault}


async def note(page: Page) -> Response:
    path, version, vault = page.query("path"), page.query("version"), page.query("vault", DEFAULT)
    document = await _read(page, path, vault)
    kept = await _versions(page, path, vault)  # after the read, which keeps the state that it found
    if document is None and isinstance(kept, Refused):
        raise kept
    versions = [] if isinstance(kept, Refused) else await _written(page, path, vault, kept["versions"])
    old = await _version(page, path, vault, version, document) if version else None
    return page.render(
        "note.html",
        note_path=path,
        vault=None if vault == DEFAULT else vault,
        document=document,
        versions=versions,
        old=old,
        chosen=version,
        body=await _body((old or {}).get("document") or document, path, vault),
        address=partial(address, path, vault),
        state=_state_address(path, vault, _present(kept)),
        changed=None,
    )


async def changed(page: Page) -> Response:
    """A line for who reads the note, once it is no longer what the page shows; `seen` is what that was."""
    path, vault = page.query("path"), page.query("vault", DEFAULT)
    if not page.request.headers.get("HX-Request"):
        return RedirectResponse(address(path, vault), 303)
    kept = await _versions(page, path, vault)
    present = _present(kept)
    found = None if present == page.query("seen") else "changed" if present else "deleted"
    return page.render("note.html", block="changed", changed=found, address=partial(address, path, vault))


def _present(kept: dict[str, Any] | Refused) -> str:
    """The state of the note as it is; the empty text when it is gone."""
    return "" if isinstance(kept, Refused) else kept["current"] or ""


def _state_address(path: str, vault: str, seen: str) -> str:
    return "/memory/note/changed?" + urlencode({"path": path, **_named(vault), "seen": seen})


async def _read(page: Page, path: str, vault: str) -> dict[str, Any] | None:
    """The document; None when there is none."""
    asked = {"path": path, "vault": vault}
    found: dict[str, Any] | None = (await page.call("GET", "/memory/read/exact", asked))["document"]
    return found


async def _versions(page: Page, path: str, vault: str) -> dict[str, Any] | Refused:
    """With the present state. None are kept of a note that the bus never saw: that is no error of the page."""
    try:
        return dict(await page.call("GET", "/memory/versions", {"path": path, "vault": vault}))
    except Refused as refused:
        if refused.status != 404:
            raise
        return refused


async def _written(page: Page, path: str, vault: str, versions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    times = [(one["version"], micros_from_datetime(datetime.fromisoformat(one["created_at"]))) for one in versions]
    names, writers = await asyncio.gather(
        page.rows.names(page.tenant),
        page.rows.read(lambda tx: memory_rows.writers(tx, page.tenant, path, vault, times[:NAMED])),
    )
    nobody = ("", None)
    return [
        {**one, "by": writers.get(one["version"], nobody)[0], "agent": writers.get(one["version"], nobody)[1],
         "names": names}
        for one in versions
    ]  # fmt: skip


async def _version(page: Page, path: str, vault: str, version: str, document: dict[str, Any] | None) -> dict[str, Any]:
    found = await page.call("GET", f"/memory/versions/{part(version)}", {"path": path, "vault": vault})
    before, after = notetext.whole(found["document"]), notetext.whole(document) if document else ""
    return {**found, "lines": await asyncio.to_thread(notetext.compared, before, after)}


async def _body(document: dict[str, Any] | None, path: str, vault: str) -> Markup | None:
    if document is None:
        return None
    source = {"from": path, **_named(vault)}
    return await asyncio.to_thread(notetext.rendered, document["content"], source)


async def follow(page: Page) -> Response:
    """A link of a note: to the note that it means, else to a search for its name."""
    source, name, vault = page.query("from"), page.query("name"), page.query("vault", DEFAULT)
    for path in _meant(name, source):
        if await _exists(page, path, vault):
            return RedirectResponse(address(path, vault), 303)
    stem = name.rpartition("/")[2].removesuffix(".md")
    search = {"mode": "keyword", "q": stem, "missing": name[:200], **_named(vault)}
    return RedirectResponse("/memory?" + urlencode(search), 303)


async def _exists(page: Page, path: str, vault: str) -> bool:
    try:
        return await _read(page, path, vault) is not None
    except Refused as refused:
        if refused.status != 400:  # a text that no path can be
            raise
        return False


def _meant(name: str, source: str) -> list[str]:
    """Where the note of a link may lie: at that path of the vault, else beside the note that has the link."""
    here = source.rpartition("/")[0]
    exact = name.startswith(("/", "./", "../"))
    parts = here.split("/") if here and name.startswith(("./", "../")) else []
    for one in name.lstrip("/").split("/"):
        if one == "..":
            if not parts:
                return []
            parts.pop()
        elif one not in (".", ""):
            parts.append(one)
    wanted = "/".join(parts)
    if not wanted:
        return [source] if source else []
    wanted = wanted if wanted.lower().endswith(".md") else f"{wanted}.md"
    return list(dict.fromkeys([wanted] if exact or not here else [wanted, f"{here}/{wanted}"]))


ROUTES = [("GET", "/memory/note", note), ("GET", "/memory/note/changed", changed), ("GET", "/memory/open", follow)]
