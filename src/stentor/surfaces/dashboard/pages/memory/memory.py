"""The memory pages: search and health of a vault, and one note with its links, frontmatter and versions."""

from __future__ import annotations

import asyncio
import re
from functools import partial
from typing import TypedDict
from urllib.parse import urlencode

from markupsafe import Markup
from starlette.responses import RedirectResponse, Response

from stentor.core.jsontext import JsonObject
from stentor.domains.memory.embedding.embedding_worker import PREPARING
from stentor.domains.memory.model import find_copied_path
from stentor.domains.memory.text import tokenizer
from stentor.domains.memory.vaults import DEFAULT_VAULT
from stentor.domains.registry import queries as registry_queries
from stentor.surfaces.dashboard.gateway import GatewayError
from stentor.surfaces.dashboard.presenters.notes import note_graph, note_rendering
from stentor.surfaces.dashboard.presenters.notes.note_rendering import NoteDiffLine, note_url, vault_param
from stentor.surfaces.dashboard.presenters.notes.note_validity import present_validity
from stentor.surfaces.dashboard.site.page import PageRequest

SEARCH_MODES = {"hybrid": "Hybrid", "keyword": "Keyword", "semantic": "Semantic"}
MAX_RESULTS = 30
PATIENCE_SECONDS = 3.0
"""How long a page waits without a word for a search, which may have to wait until the embedding model is prepared."""
MEMORY_DISABLED_STATUS = 501
"""The gateway's status while the memory is disabled."""
_TERM = re.compile(r'"([^"]+)"|([^\s"]+)')


async def show_memory(page: PageRequest) -> Response:
    """Render the search in one vault, with the vault's health."""
    text, mode, vault = (
        page.query_param("q"),
        page.query_param("mode", "hybrid"),
        page.query_param("vault", DEFAULT_VAULT),
    )
    mode = mode if mode in SEARCH_MODES else "hybrid"
    as_of, include_invalid = page.query_param("as_of"), page.query_param("invalid") == "1"
    scope: JsonObject = {"include_invalid": include_invalid} | ({"as_of": as_of} if as_of else {})
    listed = None
    folder = page.query_param("folder") if "folder" in page.request.query_params else None
    try:
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                results, health = await asyncio.gather(
                    _search(page, text, mode, vault, scope), _read_health(page, vault)
                )
            is_preparing = False
        except TimeoutError:
            health = await _read_health(page, vault)
            is_preparing = health["is_preparing"]
            results = await _search(page, text, "keyword" if is_preparing else mode, vault, scope)
        if not text:
            listed = await _list_notes(page, vault, folder)
    except GatewayError as error:
        if error.status == MEMORY_DISABLED_STATUS:
            return page.render("memory-off.html")
        raise
    return page.render(
        "memory.html",
        results["status"],
        block="results",
        text=text,
        # Without a model a hybrid search is one by keyword.
        mode="keyword" if health["keyword_only"] and mode == "hybrid" else mode,
        modes=SEARCH_MODES,
        vault=vault,
        as_of=as_of,
        include_invalid=include_invalid,
        results=results,
        health=health,
        is_preparing=is_preparing,
        missing=page.query_param("missing"),
        listed=listed,
        folder=folder,
        tag=page.query_param("tag"),
        note_url=partial(_note_url, vault),
        list_url=partial(_list_url, vault),
    )


def _note_url(vault: str, path: str) -> str:
    return note_url(path, vault)


def _list_url(vault: str, **parameters: str) -> str:
    """Return the address of a list of notes."""
    return "/memory?" + urlencode({**vault_param(vault), **parameters})


async def _list_notes(page: PageRequest, vault: str, folder: str | None) -> JsonObject:
    """Return a page of the notes in a folder or with a tag, the latest changed first; `more` is the next page."""
    # Not left out as an empty parameter is elsewhere: an empty folder is the root of the vault.
    chosen = {} if folder is None else {"folder": folder}
    chosen |= {"tag": tag} if (tag := page.query_param("tag")) else {}
    cursor = {"cursor": page.query_param("cursor")} if page.query_param("cursor") else {}
    arguments = {"vault": vault, "limit": MAX_RESULTS, **chosen, **cursor}
    found = dict(await page.site.gateway.call(page.session.key, "memory.list", arguments))
    following = found["next_cursor"]
    return found | {"more": _list_url(vault, **chosen, cursor=following) if following else None}


async def show_health(page: PageRequest) -> Response:
    """Render only the health block, which live updates reload."""
    if not page.request.headers.get("HX-Request"):
        return RedirectResponse("/memory", 303)
    vault = page.query_param("vault", DEFAULT_VAULT)
    return page.render("memory.html", block="health", health=await _read_health(page, vault))


async def _read_health(page: PageRequest, vault: str) -> JsonObject:
    health = await page.call("memory.health", vault=vault)
    detail = health["components"]["vector_store"]["detail"]
    # The health report has no fields for them, only the text that `embedding_worker` sets.
    return {**health, "keyword_only": detail.startswith("no embedding model"), "is_preparing": detail == PREPARING}


class SearchHit(TypedDict):
    path: str
    address: str
    title: str
    excerpt: Markup
    score: float
    scores: dict[str, float | None]
    level: str | None
    invalid: JsonObject | None
    weak: bool


class SearchResults(TypedDict):
    """`problem` is the error of the search itself, `took` its duration in milliseconds.

    `incomplete`: the index is being built.
    """

    status: int
    problem: str | None
    rows: list[SearchHit]
    total: int
    took: float | None
    incomplete: bool


async def _search(page: PageRequest, text: str, mode: str, vault: str, scope: JsonObject) -> SearchResults:
    if not text:
        return {"status": 200, "problem": None, "rows": [], "total": 0, "took": None, "incomplete": False}
    terms = _keyword_terms(text)
    bodies = {
        "hybrid": {"query": text, "limit": MAX_RESULTS},
        "keyword": {"terms": terms, "limit": MAX_RESULTS},
        "semantic": {"query": text, "top_k": MAX_RESULTS},
    }
    try:
        result = await page.call(f"memory.{mode}", body={**bodies[mode], **scope, "vault": vault})
    except GatewayError as error:
        # A malformed query or an embedder that is down affects this search only, so the page stays usable.
        if error.status not in (400, 502, 503, 504):
            raise
        return {
            "status": error.status,
            "problem": error.message,
            "rows": [],
            "total": 0,
            "took": None,
            "incomplete": False,
        }
    query_terms = tokenizer.query_terms(tokenizer.drop_stop_words(terms))
    return {
        "status": 200,
        "problem": None,
        "rows": [_present_hit(match, query_terms, vault) for match in result["matches"]],
        "total": result["total_matches"],
        "took": result["search_latency_ms"],
        "incomplete": result.get("incomplete", False),
    }


def _keyword_terms(text: str) -> list[str]:
    """Return the phrases in quotation marks, and the other words."""
    return [phrase or word for phrase, word in _TERM.findall(text)] or [text]


def _present_hit(match: JsonObject, query_terms: frozenset[str], vault: str) -> SearchHit:
    """Return a match in one format for all three searches, whose field names differ."""
    excerpt = str(match["excerpt"])
    scores = {name: match.get(name) for name in ("keyword_score", "similarity_score")}
    path = str(match["path"])
    title = match.get("title") or path.rpartition("/")[2].removesuffix(".md")
    excerpt = excerpt.removeprefix(f"# {title} ")  # the title is above it
    return {
        "path": path,
        "address": note_url(path, vault),
        "title": title,
        "excerpt": note_rendering.highlight_terms(note_rendering.strip_markup(excerpt), query_terms),
        "score": next(match[name] for name in ("score", "relevance_score", "similarity_score") if name in match),
        "scores": scores,
        "level": match.get("source_level"),
        "invalid": match.get("invalid"),
        "weak": match.get("weak", False),
    }


async def show_note(page: PageRequest) -> Response:
    path, version, vault = (
        page.query_param("path"),
        page.query_param("version"),
        page.query_param("vault", DEFAULT_VAULT),
    )
    answer = await page.call("memory.read", path=path, vault=vault)
    document: JsonObject | None = answer["document"]
    # After the document, not concurrently: reading a note edited in the vault stores its current state as a version.
    history = await read_versions(page, path, vault)
    if document is None and isinstance(history, GatewayError):
        raise history
    versions = [] if isinstance(history, GatewayError) else history["versions"]
    old = await page.call("memory.version", version=version, path=path, vault=vault) if version else None
    comparison = await _compare(page, path, vault, old["document"], document) if old else None
    arguments = {"path": path, "vault": vault}
    around, linking, names = await asyncio.gather(
        page.call("memory.neighbourhood", **arguments),
        page.call("memory.backlinks", **arguments),
        page.read(registry_queries.read_names),
    )
    displayed: JsonObject | None = (old or {}).get("document") or document
    body = None
    if displayed is not None:
        source = {"from": path, **vault_param(vault)}
        body = await asyncio.to_thread(note_rendering.render_note, displayed["content"], source)
    copied_path = find_copied_path(path)
    return page.render(
        "note.html",
        note_path=path,
        copied_path=copied_path if copied_path and await read_document(page, copied_path, vault) else None,
        copied_url=note_url(copied_path or "", vault),
        vault=None if vault == DEFAULT_VAULT else vault,
        document=document,
        versions=versions,
        names=names,
        old=old,
        comparison=comparison,
        against=page.query_param("against"),
        chosen=version,
        displayed=version or current_version(history),
        body=body,
        graph=note_graph.build_graph(around, vault),
        validity=None if document is None else present_validity(document, answer.get("invalid"), vault),
        backlinks=[(source, note_url(source, vault)) for source in linking["backlinks"]],
        address=partial(note_url, path, vault),
        related_url=partial(_related_url, path, vault),
        state="/memory/note/changed?"
        + urlencode({"path": path, **vault_param(vault), "seen": current_version(history)}),
        changed=None,
    )


def _related_url(path: str, vault: str, page_name: str) -> str:
    """Return the address of another page about a note, such as its editor."""
    return f"/memory/{page_name}?" + urlencode({"path": path, **vault_param(vault)})


async def show_changed(page: PageRequest) -> Response:
    """Render a notice when the note is no longer the version `seen`, which the page displays."""
    path, vault = page.query_param("path"), page.query_param("vault", DEFAULT_VAULT)
    if not page.request.headers.get("HX-Request"):
        return RedirectResponse(note_url(path, vault), 303)
    current = current_version(await read_versions(page, path, vault))
    change = None if current == page.query_param("seen") else "changed" if current else "deleted"
    return page.render("note.html", block="changed", changed=change, address=partial(note_url, path, vault))


def current_version(history: JsonObject | GatewayError) -> str:
    """Return the content hash of the current version, empty when the note is deleted."""
    return "" if isinstance(history, GatewayError) else history["current"] or ""


async def read_document(page: PageRequest, path: str, vault: str) -> JsonObject | None:
    document: JsonObject | None = (await page.call("memory.read", path=path, vault=vault))["document"]
    return document


async def read_versions(page: PageRequest, path: str, vault: str) -> JsonObject | GatewayError:
    """Return the versions and the current one, or the 404 of a note that the memory API has never seen.

    The caller decides whether that is an error: the note may still exist in the vault.
    """
    try:
        return dict(await page.call("memory.versions", path=path, vault=vault))
    except GatewayError as error:
        if error.status != 404:
            raise
        return error


async def _compare(
    page: PageRequest, path: str, vault: str, old: JsonObject, document: JsonObject | None
) -> list[NoteDiffLine] | None:
    """Return the lines that changed from an old version to the version `against`, by default the current one."""
    if against := page.query_param("against"):
        document = (await page.call("memory.version", version=against, path=path, vault=vault))["document"]
    before = note_rendering.document_text(old)
    after = note_rendering.document_text(document) if document else ""
    return await asyncio.to_thread(note_rendering.diff_texts, before, after)


async def follow_link(page: PageRequest) -> Response:
    """Resolve a link of a note: redirect to its target, or to a search for its name."""
    source, name, vault = page.query_param("from"), page.query_param("name"), page.query_param("vault", DEFAULT_VAULT)
    for path in _candidate_paths(name, source):
        if await _note_exists(page, path, vault):
            return RedirectResponse(note_url(path, vault), 303)
    stem = name.rpartition("/")[2].removesuffix(".md")
    search = {"mode": "keyword", "q": stem, "missing": name[:200], **vault_param(vault)}
    return RedirectResponse("/memory?" + urlencode(search), 303)


async def _note_exists(page: PageRequest, path: str, vault: str) -> bool:
    try:
        return await read_document(page, path, vault) is not None
    except GatewayError as error:
        if error.status != 400:  # 400: the text is not a valid path
            raise
        return False


def _candidate_paths(name: str, source: str) -> list[str]:
    """Return the possible paths of a link's target: from the root of the vault, then in the folder of the source."""
    folder = source.rpartition("/")[0]
    is_exact = name.startswith(("/", "./", "../"))
    parts = folder.split("/") if folder and name.startswith(("./", "../")) else []
    for part in name.lstrip("/").split("/"):
        if part == "..":
            if not parts:
                return []  # outside the vault
            parts.pop()
        elif part not in (".", ""):
            parts.append(part)
    target = "/".join(parts)
    if not target:
        return [source] if source else []  # a link to a heading of the same note
    target = target if target.lower().endswith(".md") else f"{target}.md"
    return list(dict.fromkeys([target] if is_exact or not folder else [target, f"{folder}/{target}"]))


ROUTES = [
    ("GET", "/memory", show_memory),
    ("GET", "/memory/health", show_health),
    ("GET", "/memory/note", show_note),
    ("GET", "/memory/note/changed", show_changed),
    ("GET", "/memory/open", follow_link),
]
