"""The memory: its searches, and how well its parts are.

One note: its text with links, its frontmatter, its versions; and where a link of it leads.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable
from datetime import datetime
from functools import partial
from typing import Any
from urllib.parse import urlencode

from markupsafe import Markup
from starlette.responses import RedirectResponse, Response

from stentor.core import runlog_queries
from stentor.core.clock import SECOND, micros_from_datetime
from stentor.core.db import Tx
from stentor.core.ids import min_id_at
from stentor.domains.memory.text import tokenizer
from stentor.domains.memory.vaults import DEFAULT_VAULT
from stentor.domains.registry import queries as registry_queries
from stentor.surfaces.dashboard.gateway import GatewayError
from stentor.surfaces.dashboard.presenters import note_rendering
from stentor.surfaces.dashboard.presenters.note_rendering import note_url, vault_param
from stentor.surfaces.dashboard.site.page import PageRequest

SEARCH_MODES = {"hybrid": "Hybrid", "keyword": "Keyword", "semantic": "Semantic"}
MAX_RESULTS = 30
MEMORY_DISABLED_STATUS = 501
"""What the gateway answers when the memory is switched off."""
_TERM = re.compile(r'"([^"]+)"|([^\s"]+)')


async def show_memory(page: PageRequest) -> Response:
    """The search in one vault, and the health of that vault beside it."""
    text, mode, vault = (
        page.query_param("q"),
        page.query_param("mode", "hybrid"),
        page.query_param("vault", DEFAULT_VAULT),
    )
    mode = mode if mode in SEARCH_MODES else "hybrid"
    try:
        found, health = await asyncio.gather(_search(page, text, mode, vault), _read_health(page, vault))
    except GatewayError as refused:
        if refused.status == MEMORY_DISABLED_STATUS:
            return page.render("memory-off.html")
        raise
    return page.render(
        "memory.html",
        found["status"],
        block="results",
        text=text,
        mode=mode,
        modes=SEARCH_MODES,
        vault=vault,
        found=found,
        health=health,
        missing=page.query_param("missing"),
    )


async def show_health(page: PageRequest) -> Response:
    """The part of the page that is asked for again when the memory was used."""
    if not page.request.headers.get("HX-Request"):
        return RedirectResponse("/memory", 303)
    vault = page.query_param("vault", DEFAULT_VAULT)
    return page.render("memory.html", block="health", health=await _read_health(page, vault))


async def _read_health(page: PageRequest, vault: str) -> dict[str, Any]:
    return dict(await page.call("memory.health", vault=vault))


async def _search(page: PageRequest, text: str, mode: str, vault: str) -> dict[str, Any]:
    """`rows` with path, title, excerpt and scores; a refusal of this search alone stands in `problem`."""
    if not text:
        return {"status": 200, "problem": None, "rows": [], "total": 0, "took": None}
    terms = [quoted or word for quoted, word in _TERM.findall(text)] or [text]
    bodies = {
        "hybrid": {"query": text, "limit": MAX_RESULTS},
        "keyword": {"terms": terms, "limit": MAX_RESULTS},
        "semantic": {"query": text, "top_k": MAX_RESULTS},
    }
    try:
        found = await page.call(f"memory.{mode}", body={**bodies[mode], "vault": vault})
    except GatewayError as refused:
        if refused.status not in (400, 502, 503, 504):
            raise
        return {"status": refused.status, "problem": refused.message, "rows": [], "total": 0, "took": None}
    wanted = frozenset(tokenizer.tokenize(text))
    rows = [_search_hit(one, wanted, vault) for one in found["matches"]]
    return {
        "status": 200, "problem": None, "rows": rows, "total": found["total_matches"],
        "took": found["search_latency_ms"],
    }  # fmt: skip


def _search_hit(match: dict[str, Any], wanted: frozenset[str], vault: str) -> dict[str, Any]:
    """One form for the answers of all three searches."""
    excerpt = str(match.get("excerpt", match.get("content_preview", "")))
    scores = {name: match.get(name) for name in ("keyword_score", "similarity_score")}
    main = next(match[name] for name in ("score", "relevance_score", "similarity_score") if name in match)
    path = str(match["path"])
    title = match.get("title") or path.rpartition("/")[2].removesuffix(".md")
    shown = {
        "path": path,
        "address": note_url(path, vault),
        "title": title,
        "excerpt": note_rendering.highlight_terms(excerpt, wanted),
    }
    return {**shown, "score": main, "scores": scores, "level": match.get("source_level")}


ROUTES = [("GET", "/memory", show_memory), ("GET", "/memory/health", show_health)]


MAX_NAMED_VERSIONS = 20
EVENT_ID_SKEW_US = SECOND
"""How far the id of an event may lie from the time of its transaction."""
MAX_SCANNED_EVENTS = 2_000
"""Events that are searched around each version."""
"""Versions, the newest ones, whose writer is looked for."""


async def show_note(page: PageRequest) -> Response:
    path, version, vault = (
        page.query_param("path"),
        page.query_param("version"),
        page.query_param("vault", DEFAULT_VAULT),
    )
    document = await _read_document(page, path, vault)
    kept = await _read_versions(page, path, vault)  # after the read, which keeps the state that it found
    if document is None and isinstance(kept, GatewayError):
        raise kept
    versions = [] if isinstance(kept, GatewayError) else await _add_writers(page, path, vault, kept["versions"])
    old = await _read_version(page, path, vault, version, document) if version else None
    return page.render(
        "note.html",
        note_path=path,
        vault=None if vault == DEFAULT_VAULT else vault,
        document=document,
        versions=versions,
        old=old,
        chosen=version,
        body=await _render_body((old or {}).get("document") or document, path, vault),
        address=partial(note_url, path, vault),
        state=_changed_url(path, vault, _current_version(kept)),
        changed=None,
    )


async def show_changed(page: PageRequest) -> Response:
    """A line for who reads the note, once it is no longer what the page shows; `seen` is what that was."""
    path, vault = page.query_param("path"), page.query_param("vault", DEFAULT_VAULT)
    if not page.request.headers.get("HX-Request"):
        return RedirectResponse(note_url(path, vault), 303)
    kept = await _read_versions(page, path, vault)
    present = _current_version(kept)
    found = None if present == page.query_param("seen") else "changed" if present else "deleted"
    return page.render("note.html", block="changed", changed=found, address=partial(note_url, path, vault))


def _current_version(kept: dict[str, Any] | GatewayError) -> str:
    """The state of the note as it is; the empty text when it is gone."""
    return "" if isinstance(kept, GatewayError) else kept["current"] or ""


def _changed_url(path: str, vault: str, seen: str) -> str:
    return "/memory/note/changed?" + urlencode({"path": path, **vault_param(vault), "seen": seen})


async def _read_document(page: PageRequest, path: str, vault: str) -> dict[str, Any] | None:
    """The document; None when there is none."""
    asked = {"path": path, "vault": vault}
    found: dict[str, Any] | None = (await page.call("memory.read", **asked))["document"]
    return found


async def _read_versions(page: PageRequest, path: str, vault: str) -> dict[str, Any] | GatewayError:
    """With the present state. None are kept of a note that the bus never saw: that is no error of the page."""
    try:
        return dict(await page.call("memory.versions", path=path, vault=vault))
    except GatewayError as refused:
        if refused.status != 404:
            raise
        return refused


async def _add_writers(
    page: PageRequest, path: str, vault: str, versions: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    times = [(one["version"], micros_from_datetime(datetime.fromisoformat(one["created_at"]))) for one in versions]
    names, writers = await asyncio.gather(
        page.read(registry_queries.read_names),
        page.read(_read_version_writers, path, vault, times[:MAX_NAMED_VERSIONS]),
    )
    nobody = ("", None)
    return [
        {**one, "by": writers.get(one["version"], nobody)[0], "agent": writers.get(one["version"], nobody)[1],
         "names": names}
        for one in versions
    ]  # fmt: skip


async def _read_version(
    page: PageRequest, path: str, vault: str, version: str, document: dict[str, Any] | None
) -> dict[str, Any]:
    found = await page.call("memory.version", version=version, path=path, vault=vault)
    before, after = (
        note_rendering.document_text(found["document"]),
        note_rendering.document_text(document) if document else "",
    )
    return {**found, "lines": await asyncio.to_thread(note_rendering.diff_texts, before, after)}


async def _render_body(document: dict[str, Any] | None, path: str, vault: str) -> Markup | None:
    if document is None:
        return None
    source = {"from": path, **vault_param(vault)}
    return await asyncio.to_thread(note_rendering.render_note, document["content"], source)


async def follow_link(page: PageRequest) -> Response:
    """A link of a note: to the note that it means, else to a search for its name."""
    source, name, vault = page.query_param("from"), page.query_param("name"), page.query_param("vault", DEFAULT_VAULT)
    for path in _candidate_paths(name, source):
        if await _note_exists(page, path, vault):
            return RedirectResponse(note_url(path, vault), 303)
    stem = name.rpartition("/")[2].removesuffix(".md")
    search = {"mode": "keyword", "q": stem, "missing": name[:200], **vault_param(vault)}
    return RedirectResponse("/memory?" + urlencode(search), 303)


async def _note_exists(page: PageRequest, path: str, vault: str) -> bool:
    try:
        return await _read_document(page, path, vault) is not None
    except GatewayError as refused:
        if refused.status != 400:  # a text that no path can be
            raise
        return False


def _candidate_paths(name: str, source: str) -> list[str]:
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


NOTE_ROUTES = [
    ("GET", "/memory/note", show_note),
    ("GET", "/memory/note/changed", show_changed),
    ("GET", "/memory/open", follow_link),
]


def _read_version_writers(
    tx: Tx, tenant: str, path: str, vault: str, versions: Iterable[tuple[str, int]]
) -> dict[str, tuple[str, str | None]]:
    """Return who wrote each version, key and agent by content hash, as far as the run log tells.

    `versions` are content hashes with their times in microseconds.
    """
    writers: dict[str, tuple[str, str | None]] = {}
    for content_hash, at in versions:
        low, high = min_id_at(at - EVENT_ID_SKEW_US), min_id_at(at + EVENT_ID_SKEW_US)
        for event in runlog_queries.list_events_between(tx, tenant, "memory_written", low, high, MAX_SCANNED_EVENTS):
            note = (event.metadata.get("path"), event.metadata.get("vault", DEFAULT_VAULT))
            if note == (path, vault) and event.metadata.get("after_hash") == content_hash:
                writers[content_hash] = (str(event.metadata.get("by") or ""), event.agent_id)
    return writers
