"""The way of the pages to the gateway's API, with the key of whoever is signed in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Protocol
from urllib.parse import quote, urlencode

import msgspec

from stentor.core import jsontext
from stentor.core.errors import InvalidRequest

API = "/api/v1"
Query = Mapping[str, Any]


class Reply(msgspec.Struct, frozen=True):
    """A whole answer; `data` is its JSON, None when it has none."""

    status: int
    data: Any
    headers: Mapping[str, str] = {}


class Caller(Protocol):
    """Implementations: `inprocess.InProcess` beside the gateway, `overhttp.OverHttp` apart from it."""

    async def call(self, key: str, method: str, target: str, body: Any = None) -> Reply:
        """`target` is a path with its query. Raises ServiceUnavailable when no gateway answers."""
        ...

    def stream(self, key: str, target: str, after: str | None = None) -> AsyncIterator[bytes]:
        """Server-sent events as they come. Raises Refused before the first of them, ServiceUnavailable."""
        ...

    async def known(self, key: str, tenant: str) -> bool:
        """Whether the gateway takes this key for this tenant; true as well when it cannot be asked."""
        ...

    async def close(self) -> None: ...


class Refused(Exception):
    """The gateway's answer to a page was an error; `code` and `message` are the gateway's own words."""

    def __init__(self, reply: Reply) -> None:
        error = reply.data.get("error") if isinstance(reply.data, dict) else None
        found = error if isinstance(error, dict) else {}
        self.status = reply.status
        self.code = str(found.get("code") or "")
        self.message = str(found.get("message") or _plain(reply.data) or f"The gateway answered {reply.status}.")
        self.details = found.get("details")
        super().__init__(self.message)


def _plain(data: Any) -> str:
    return str(data.get("message") or "") if isinstance(data, dict) else ""


def target(path: str, query: Query | None = None, api: str = API) -> str:
    """The address of a call; empty and absent values of the query are left out."""
    given = {name: value for name, value in (query or {}).items() if value not in (None, "")}
    return f"{api}{path}" + (f"?{urlencode(given)}" if given else "")


def part(text: str) -> str:
    """One segment of a path, whatever characters it has."""
    return quote(text, safe="")


def decoded(content: bytes) -> Any:
    """JSON, or None for what is none."""
    if not content:
        return None
    try:
        return jsontext.decode(content)
    except InvalidRequest:
        return None
