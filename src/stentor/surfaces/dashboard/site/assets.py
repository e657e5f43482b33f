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

STATIC_DIR = Path(__file__).parents[1] / "static"
STYLE_SHEETS = (
    *("tokens", "base", "frame", "parts", "tables", "forms", "trail", "charts", "dialog"),
    *("memory", "webhooks", "models", "messages", "narrow", "agents", "governance", "console", "provenance"),
)
"""The parts of the style sheet in their order; a later one overrides."""
BUNDLE_NAME = "app.css"
IMMUTABLE_CACHE = "public, max-age=31536000, immutable"


def asset_url(name: str) -> str:
    """Where a page finds a file of this folder, or the style sheet."""
    return f"/static/{name}?v={_mark(name)}"


def asset_routes() -> list[BaseRoute]:
    return [Route(f"/static/{BUNDLE_NAME}", _styles), Mount("/static", _AssetFiles(directory=STATIC_DIR))]


@cache
def bundle_styles() -> bytes:
    """All styles in one file: a page asks for it once."""
    return b"\n".join((STATIC_DIR / "css" / f"{name}.css").read_bytes() for name in STYLE_SHEETS)


@cache
def _mark(name: str) -> str:
    content = bundle_styles() if name == BUNDLE_NAME else (STATIC_DIR / name).read_bytes()
    return hashlib.sha256(content).hexdigest()[:12]


async def _styles(request: Request) -> Response:
    return _kept(Response(bundle_styles(), media_type="text/css"), request.scope)


class _AssetFiles(StaticFiles):
    async def get_response(self, path: str, scope: Scope) -> Response:
        return _kept(await super().get_response(path, scope), scope)


def _kept(answer: Response, scope: Scope) -> Response:
    if scope["query_string"].startswith(b"v="):
        answer.headers["Cache-Control"] = IMMUTABLE_CACHE
    return answer
