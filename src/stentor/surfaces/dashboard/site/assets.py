"""Static files of the pages. Each URL carries a hash of the content, so browsers may cache the file forever."""

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
    *("memory", "webhooks", "models", "messages", "narrow", "agents", "governance", "console", "provenance", "keys"),
    *("overview", "sessions", "print"),
)
"""The parts of the style sheet in cascade order: later parts override earlier ones."""
BUNDLE_NAME = "app.css"
IMMUTABLE_CACHE = "public, max-age=31536000, immutable"


def asset_url(name: str) -> str:
    """Return the versioned URL of a file in `static`, or of the style sheet."""
    return f"/static/{name}?v={_content_hash(name)}"


def asset_routes() -> list[BaseRoute]:
    return [Route(f"/static/{BUNDLE_NAME}", _styles), Mount("/static", _AssetFiles(directory=STATIC_DIR))]


@cache
def bundle_styles() -> bytes:
    """Return all style sheets as one file, so that a page needs one request."""
    return b"\n".join((STATIC_DIR / "css" / f"{name}.css").read_bytes() for name in STYLE_SHEETS)


@cache
def _content_hash(name: str) -> str:
    content = bundle_styles() if name == BUNDLE_NAME else (STATIC_DIR / name).read_bytes()
    return hashlib.sha256(content).hexdigest()[:12]


async def _styles(request: Request) -> Response:
    return _with_cache_header(Response(bundle_styles(), media_type="text/css"), request.scope)


class _AssetFiles(StaticFiles):
    async def get_response(self, path: str, scope: Scope) -> Response:
        return _with_cache_header(await super().get_response(path, scope), scope)


def _with_cache_header(response: Response, scope: Scope) -> Response:
    # Only the versioned URL may be kept for ever: without the hash its content can change.
    if scope["query_string"].startswith(b"v="):
        response.headers["Cache-Control"] = IMMUTABLE_CACHE
    return response
