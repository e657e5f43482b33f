"""The files that pages load, under addresses that tell their content, so that a browser may keep them for ever."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

FOLDER = Path(__file__).parents[1] / "static"
STYLES = (
    *("tokens", "base", "frame", "parts", "tables", "forms", "trail", "charts", "dialog"),
    *("memory", "webhooks", "models", "messages", "narrow", "agents", "governance", "console", "provenance"),
)
"""The parts of the style sheet in their order; a later one overrides."""
SHEET = "app.css"
FOR_EVER = "public, max-age=31536000, immutable"


def address(name: str) -> str:
    """Where a page finds a file of this folder, or the style sheet."""
    return f"/static/{name}?v={_mark(name)}"


def routes() -> list[BaseRoute]:
    return [Route(f"/static/{SHEET}", _styles), Mount("/static", _Files(directory=FOLDER))]


@cache
def sheet() -> bytes:
    """All styles in one file: a page asks for it once."""
    return b"\n".join((FOLDER / "css" / f"{name}.css").read_bytes() for name in STYLES)


@cache
def _mark(name: str) -> str:
    content = sheet() if name == SHEET else (FOLDER / name).read_bytes()
    return hashlib.sha256(content).hexdigest()[:12]


async def _styles(request: Request) -> Response:
    return _kept(Response(sheet(), media_type="text/css"), request.scope)


class _Files(StaticFiles):
    async def get_response(self, path: str, scope: Scope) -> Response:
        return _kept(await super().get_response(path, scope), scope)


def _kept(answer: Response, scope: Scope) -> Response:
    if scope["query_string"].startswith(b"v="):
        answer.headers["Cache-Control"] = FOR_EVER
    return answer
