"""Whether a request comes from a page of ours."""

from __future__ import annotations

from urllib.parse import urlsplit

from starlette.requests import Request


def same_origin(request: Request) -> bool:
    """What the browser says of itself; a client that says nothing is not a browser, and has no cookie to misuse."""
    if (site := request.headers.get("sec-fetch-site")) is not None:
        return site == "same-origin"
    origin = request.headers.get("origin")
    return origin is None or _place(origin) == request.headers.get("host")


def _place(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def encrypted(request: Request) -> bool:
    """Whether the browser came by TLS: the origin of a form says so also behind a proxy that ends it, as the proxy may.

    Who claims it without TLS gets a cookie that only TLS brings back.
    """
    headers = request.headers
    said = headers.get("origin", "").startswith("https://") or headers.get("x-forwarded-proto") == "https"
    return request.url.scheme == "https" or said
