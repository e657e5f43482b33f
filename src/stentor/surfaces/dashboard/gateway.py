"""The way of the pages to the gateway's API, with the key of whoever is signed in.

The way to the gateway, which alone may take work; here within its own process.

Calls within the gateway's process: past the network and the rate limit, but not past the permissions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol
from urllib.parse import quote, unquote, urlencode

import msgspec
from starlette.types import ASGIApp, Message

from stentor.auth.principal import Principal
from stentor.core import jsontext
from stentor.core.errors import InvalidRequest
from stentor.domains.activity.service import ActivityService
from stentor.domains.tasks.submission import SubmissionService
from stentor.surfaces.dashboard.instruction import PlannedTask
from stentor.web.middleware import PRINCIPAL_SCOPE_KEY

API_PREFIX = "/api/v1"
QueryParams = Mapping[str, Any]


class GatewayResponse(msgspec.Struct, frozen=True):
    """A whole answer; `data` is its JSON, None when it has none."""

    status: int
    data: Any
    headers: Mapping[str, str] = {}


class GatewayClient(Protocol):
    """Implementations: `inprocess.InProcess` beside the gateway, `overhttp.OverHttp` apart from it."""

    async def call(self, key: str, method: str, target: str, body: Any = None) -> GatewayResponse:
        """`target` is a path with its query. Raises ServiceUnavailable when no gateway answers."""
        ...

    def stream(self, key: str, target: str, after: str | None = None) -> AsyncIterator[bytes]:
        """Server-sent events as they come. Raises Refused before the first of them, ServiceUnavailable."""
        ...

    async def is_key_valid(self, key: str, tenant: str) -> bool:
        """Whether the gateway takes this key for this tenant; true as well when it cannot be asked."""
        ...

    async def close(self) -> None: ...


class GatewayError(Exception):
    """The gateway's answer to a page was an error; `code` and `message` are the gateway's own words."""

    def __init__(self, reply: GatewayResponse) -> None:
        error = reply.data.get("error") if isinstance(reply.data, dict) else None
        found = error if isinstance(error, dict) else {}
        self.status = reply.status
        self.code = str(found.get("code") or "")
        self.message = str(
            found.get("message") or _top_level_message(reply.data) or f"The gateway answered {reply.status}."
        )
        self.details = found.get("details")
        super().__init__(self.message)


def _top_level_message(data: Any) -> str:
    return str(data.get("message") or "") if isinstance(data, dict) else ""


def build_target(path: str, query: QueryParams | None = None, api: str = API_PREFIX) -> str:
    """The address of a call; empty and absent values of the query are left out."""
    given = {name: value for name, value in (query or {}).items() if value not in (None, "")}
    return f"{api}{path}" + (f"?{urlencode(given)}" if given else "")


def quote_segment(text: str) -> str:
    """One segment of a path, whatever characters it has."""
    return quote(text, safe="")


def decode_json_or_none(content: bytes) -> Any:
    """JSON, or None for what is none."""
    if not content:
        return None
    try:
        return jsontext.decode(content)
    except InvalidRequest:
        return None


class TaskStreamEvent(Protocol):
    """One step of a task's stream; `id` is what the stream goes on from."""

    @property
    def kind(self) -> str: ...
    @property
    def data(self) -> dict[str, Any]: ...
    @property
    def id(self) -> str | None: ...


class AcceptedTask(msgspec.Struct, frozen=True):
    """A task that the gateway took; without a provenance id where the gateway is older than that."""

    task_id: str
    provenance_id: str | None


class TaskGateway(Protocol):
    async def submit(self, planned: PlannedTask, credential: str) -> AcceptedTask:
        """Returns when the task is stored. Raises the RoutingDenied after the task was stored as failed (its id in the
        details),
        InvalidRequest, Forbidden, ServiceUnavailable.
        """
        ...

    def stream_task(self, task_id: str, after: str | None, credential: str) -> AsyncIterator[TaskStreamEvent]:
        """What happens to the task after a step, up to its end, or until the stream breaks off."""
        ...

    async def close(self) -> None: ...


class LocalTaskGateway:
    """In the process of the gateway. The dashboard's own key opens it, so the work is the dashboard's own."""

    def __init__(self, submission: SubmissionService, activity: ActivityService, principal: Principal) -> None:
        self._submission = submission
        self._activity = activity
        self._principal = principal

    async def submit(self, planned: PlannedTask, credential: str) -> AcceptedTask:
        done = await self._submission.submit(self._principal, planned.draft, header=planned.header)
        return AcceptedTask(done.task_id, done.provenance_id)

    def stream_task(self, task_id: str, after: str | None, credential: str) -> AsyncIterator[TaskStreamEvent]:
        return self._activity.stream(self._principal.tenant, task_id, after)

    async def close(self) -> None:
        """The kernel is another's to stop."""


log = logging.getLogger(__name__)
INVALID_KEY_BODY = {
    "success": False,
    "error": "Invalid API key",
    "message": "The key is not one that this service knows.",
}


class InProcessGatewayClient:
    """`find` answers who holds a key, None when it is not known or not any more."""

    def __init__(self, app: ASGIApp, find: Callable[[str], Principal | None]) -> None:
        self._app = app
        self._find = find

    async def call(self, key: str, method: str, target: str, body: Any = None) -> GatewayResponse:
        principal = self._find(key)
        if principal is None:
            return GatewayResponse(401, INVALID_KEY_BODY)
        exchange = _AsgiExchange(_asgi_scope(principal, method, target), body)
        await self._app(exchange.scope, exchange.receive, exchange.collect)
        return GatewayResponse(exchange.status, decode_json_or_none(bytes(exchange.content)), exchange.headers)

    async def stream(self, key: str, target: str, after: str | None = None) -> AsyncIterator[bytes]:
        principal = self._find(key)
        if principal is None:
            raise GatewayError(GatewayResponse(401, INVALID_KEY_BODY))
        scope = _asgi_scope(principal, "GET", target)
        if after:
            scope["headers"].append((b"last-event-id", after.encode("latin-1", "replace")))
        exchange = _AsgiExchange(scope, None)
        chunks: asyncio.Queue[bytes | None] = asyncio.Queue(64)
        running = asyncio.create_task(self._run(exchange, chunks))
        try:
            while (chunk := await chunks.get()) is not None:
                yield chunk
            if exchange.status != 200:
                raise GatewayError(GatewayResponse(exchange.status, decode_json_or_none(bytes(exchange.content))))
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running

    async def is_key_valid(self, key: str, tenant: str) -> bool:
        principal = self._find(key)
        return principal is not None and principal.tenant == tenant

    async def close(self) -> None:
        """The gateway is another's to stop."""

    async def _run(self, exchange: _AsgiExchange, chunks: asyncio.Queue[bytes | None]) -> None:
        async def send(message: Message) -> None:
            await exchange.collect(message)
            if exchange.status == 200 and (chunk := bytes(exchange.content)):
                exchange.content.clear()
                await chunks.put(chunk)

        try:
            await self._app(exchange.scope, exchange.receive_forever, send)
        except Exception:
            log.exception("a stream of the gateway failed")
        await chunks.put(None)


class _AsgiExchange:
    """One request and what is answered to it."""

    def __init__(self, scope: dict[str, Any], body: Any) -> None:
        self.scope = scope
        self.status = 0
        self.headers: dict[str, str] = {}
        self.content = bytearray()
        self._body = b"" if body is None else jsontext.encode(body)
        if body is not None:
            scope["headers"] += [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(self._body))]

    async def receive(self) -> Message:
        body, self._body = self._body, b""
        return {"type": "http.request", "body": body, "more_body": False}

    async def receive_forever(self) -> Message:
        """A reader that stays until it is cancelled."""
        await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async def collect(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in message["headers"]}
        else:
            self.content += message.get("body", b"")


def _asgi_scope(principal: Principal, method: str, target: str) -> dict[str, Any]:
    path, _, query = target.partition("?")
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.4"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": unquote(path),
        "raw_path": path.encode("ascii"),
        "query_string": query.encode("ascii"),
        "root_path": "",
        "headers": [(b"host", b"stentor"), (b"accept", b"application/json")],
        "server": ("stentor", 80),
        "client": ("127.0.0.1", 0),
        "state": {},
        PRINCIPAL_SCOPE_KEY: principal,
    }
