"""One note: its text with links, its frontmatter, its versions; and where a link of it leads."""

from __future__ import annotations

import asyncio
from datetime import datetime
from functools import partial
from typing import Any
from urllib.parse import urlencode

from markupsafe import Markup
from starlette.responses import RedirectResponse, Response

from stentor.core.clock import from_datetime
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
    document, kept = await asyncio.gather(_read(page, path, vault), _versions(page, path, vault))
    if document is None and isinstance(kept, Refused):
        raise kept
    versions = [] if isinstance(kept, Refused) else await _written(page, path, vault, kept)
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
    )


async def _read(page: Page, path: str, vault: str) -> dict[str, Any] | None:
    """The document; None when there is none."""
    asked = {"path": path, "vault": vault}
    found: dict[str, Any] | None = (await page.call("GET", "/memory/read/exact", asked))["document"]
    return found


async def _versions(page: Page, path: str, vault: str) -> list[dict[str, Any]] | Refused:
    """Newest first. None are kept of a note that the bus never read or wrote: that is no error of the page."""
    try:
        return list((await page.call("GET", "/memory/versions", {"path": path, "vault": vault}))["versions"])
    except Refused as refused:
        if refused.status != 404:
            raise
        return refused


async def _written(page: Page, path: str, vault: str, versions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    times = [(one["version"], from_datetime(datetime.fromisoformat(one["created_at"]))) for one in versions]
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


ROUTES = [("GET", "/memory/note", note), ("GET", "/memory/open", follow)]
