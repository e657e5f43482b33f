"""The memory: its searches, and how well its parts are."""

from __future__ import annotations

import asyncio
import re
from typing import Any

from starlette.responses import RedirectResponse, Response

from stentor.domains.memory.text import words
from stentor.domains.memory.vaults import DEFAULT
from stentor.surfaces.dashboard.pages import notetext
from stentor.surfaces.dashboard.pages.note import address
from stentor.surfaces.dashboard.site.calls import Refused
from stentor.surfaces.dashboard.site.page import Page

MODES = {"hybrid": "By both", "keyword": "By word", "semantic": "By meaning"}
SHOWN = 30
OFF = 501
"""What the gateway answers when the memory is switched off."""
_TERM = re.compile(r'"([^"]+)"|([^\s"]+)')


async def memory(page: Page) -> Response:
    """The search in one vault, and the health of that vault beside it."""
    text, mode, vault = page.query("q"), page.query("mode", "hybrid"), page.query("vault", DEFAULT)
    mode = mode if mode in MODES else "hybrid"
    try:
        found, health = await asyncio.gather(_results(page, text, mode, vault), _health(page, vault))
    except Refused as refused:
        if refused.status == OFF:
            return page.render("memory-off.html")
        raise
    return page.render(
        "memory.html",
        found["status"],
        block="results",
        text=text,
        mode=mode,
        modes=MODES,
        vault=vault,
        found=found,
        health=health,
        missing=page.query("missing"),
    )


async def health(page: Page) -> Response:
    """The part of the page that is asked for again when the memory was used."""
    if not page.request.headers.get("HX-Request"):
        return RedirectResponse("/memory", 303)
    vault = page.query("vault", DEFAULT)
    return page.render("memory.html", block="health", health=await _health(page, vault))


async def _health(page: Page, vault: str) -> dict[str, Any]:
    return dict(await page.call("GET", "/memory/health", {"vault": vault}))


async def _results(page: Page, text: str, mode: str, vault: str) -> dict[str, Any]:
    """`rows` with path, title, excerpt and scores; a refusal of this search alone stands in `problem`."""
    if not text:
        return {"status": 200, "problem": None, "rows": [], "total": 0, "took": None}
    terms = [quoted or word for quoted, word in _TERM.findall(text)] or [text]
    bodies = {
        "hybrid": {"query": text, "limit": SHOWN},
        "keyword": {"terms": terms, "limit": SHOWN},
        "semantic": {"query": text, "top_k": SHOWN},
    }
    try:
        found = await page.post(f"/memory/search/{mode}", {**bodies[mode], "vault": vault})
    except Refused as refused:
        if refused.status not in (400, 502, 503, 504):
            raise
        return {"status": refused.status, "problem": refused.message, "rows": [], "total": 0, "took": None}
    wanted = frozenset(words.terms(text))
    rows = [_row(one, wanted, vault) for one in found["matches"]]
    return {
        "status": 200, "problem": None, "rows": rows, "total": found["total_matches"],
        "took": found["search_latency_ms"],
    }  # fmt: skip


def _row(match: dict[str, Any], wanted: frozenset[str], vault: str) -> dict[str, Any]:
    """One form for the answers of all three searches."""
    excerpt = str(match.get("excerpt", match.get("content_preview", "")))
    scores = {name: match.get(name) for name in ("keyword_score", "similarity_score")}
    main = next(match[name] for name in ("score", "relevance_score", "similarity_score") if name in match)
    path = str(match["path"])
    title = match.get("title") or path.rpartition("/")[2].removesuffix(".md")
    shown = {"path": path, "address": address(path, vault), "title": title, "excerpt": notetext.marked(excerpt, wanted)}
    return {**shown, "score": main, "scores": scores, "level": match.get("source_level")}


ROUTES = [("GET", "/memory", memory), ("GET", "/memory/health", health)]
