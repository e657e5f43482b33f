"""The gateway in another process: over its HTTP API, with the caller's own key."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import quote, urlsplit

import aiohttp
import msgspec
from yarl import URL

from stentor.core import jsontext
from stentor.core.errors import Forbidden, InvalidRequest, RateLimited, RoutingDenied, ServiceUnavailable, all_errors
from stentor.core.http_client.outbound import OutboundHttp
from stentor.domains.tasks.model import TaskDraft
from stentor.surfaces.dashboard.gateways import Accepted, Step
from stentor.surfaces.dashboard.instruction import Planned

NO_GATEWAY = (
    "No gateway runs on this data folder, and only a gateway takes work. Start `stentor serve`, or set SERVICE_URL."
)
SILENT = "The gateway cannot be reached. Nothing is known of work that it may have taken."
CONNECT_SECONDS, ANSWER_SECONDS, SILENCE_SECONDS = 5, 30, 45
"""The gateway's streams have a heartbeat every 15 seconds."""
_DENIALS = {kind.code: kind for kind in all_errors() if issubclass(kind, RoutingDenied)}
REFUSED = "The gateway does not take this key. Send one of its own as 'Authorization: Bearer <key>', beside X-API-Key."


class RemoteStep(msgspec.Struct, frozen=True):
    kind: str
    data: dict[str, Any]
    id: str | None = None


class Remote:
    """Over HTTP. `find` answers the gateway's address now, None without one: it may come and go."""

    def __init__(self, find: Callable[[], str | None]) -> None:
        self._find = find
        self._clients: dict[str, OutboundHttp] = {}

    async def submit(self, planned: Planned, credential: str) -> Accepted:
        timeout = aiohttp.ClientTimeout(ANSWER_SECONDS, connect=CONNECT_SECONDS)
        address = self._address()
        try:
            async with self._session(address).post(
                f"{address}/api/v1/tasks",
                data=jsontext.encode(_body(planned.draft)),
                headers={"Content-Type": "application/json", **_headers(credential)},
                allow_redirects=False,
                timeout=timeout,
            ) as answer:
                status, content = answer.status, await answer.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ServiceUnavailable(SILENT) from error
        return _accepted(status, content)

    async def steps(self, task_id: str, after: str | None, credential: str) -> AsyncIterator[Step]:
        timeout = aiohttp.ClientTimeout(None, connect=CONNECT_SECONDS, sock_read=SILENCE_SECONDS)
        headers = _headers(credential) | ({"Last-Event-ID": after} if after else {})
        address = self._address()
        # Encoded already, so that an encoded slash of an id stays one.
        url = URL(f"{address}/api/v1/tasks/{quote(task_id, safe='')}/stream", encoded=True)
        try:
            async with self._session(address).get(
                url, headers=headers, allow_redirects=False, timeout=timeout
            ) as answer:
                if answer.status == 200:
                    async for step in _events(answer.content):
                        yield step
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
            return  # broken off: whoever reads goes on from the last step

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()

    def _address(self) -> str:
        address = self._find()
        if address is None:
            raise ServiceUnavailable(NO_GATEWAY)
        return address.rstrip("/")

    def _session(self, address: str) -> aiohttp.ClientSession:
        """The address is the operator's, so it may be a private one."""
        host = urlsplit(address).hostname or ""
        return self._clients.setdefault(host, OutboundHttp((host,))).session


def _headers(credential: str) -> dict[str, str]:
    return {"X-API-Key": credential} if credential else {}


def _body(draft: TaskDraft) -> dict[str, Any]:
    """The draft as the gateway's API takes it, which keeps the priority `critical` for messages."""
    priority = "high" if draft.metadata.priority == "critical" else draft.metadata.priority
    body = {
        "id": draft.id,
        "type": draft.type,
        "input": draft.input,
        "required_capabilities": list(draft.required_capabilities),
        "timeout_seconds": draft.timeout_seconds,
        "agent_preference": draft.agent_preference,
        "metadata": {"tags": list(draft.metadata.tags)} | ({"priority": priority} if priority else {}),
    }
    return {name: value for name, value in body.items() if value is not None}


class _Error(msgspec.Struct):
    code: str = ""
    message: str = ""
    details: dict[str, Any] | None = None


class _Answer(msgspec.Struct):
    task_id: str = ""
    provenance_id: str | None = None
    error: _Error | str = ""


def _accepted(status: int, content: bytes) -> Accepted:
    """Raises what the gateway's refusal means here; of what it said only what it says to every caller."""
    try:
        answer = msgspec.json.decode(content, type=_Answer)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        answer = _Answer()
    if status == 202 and answer.task_id:
        return Accepted(answer.task_id, answer.provenance_id)
    error = answer.error if isinstance(answer.error, _Error) else _Error()
    if error.code in _DENIALS:
        raise _DENIALS[error.code](error.message, error.details)
    if status in (401, 403):
        raise Forbidden(REFUSED)
    if status == 429:
        raise RateLimited("The gateway takes no more requests of this key in this minute.")
    if status in (400, 409, 422):
        raise InvalidRequest(f"The gateway refuses the task: {error.message or status}", error.details)
    raise ServiceUnavailable(f"The gateway cannot take the task now (it answered {status}).")


async def _events(content: aiohttp.StreamReader) -> AsyncIterator[RemoteStep]:
    """Server-sent events as the gateway writes them: one data line each. Raises ValueError for anything else."""
    fields: dict[str, str] = {}
    async for raw in _lines(content):
        if raw:
            name, _, value = raw.partition(": ")
            fields[name] = value
            continue
        if "data" in fields:
            data = json.loads(fields["data"])
            if not isinstance(data, dict):
                raise ValueError("an event without an object")
            yield RemoteStep(fields.get("event", ""), data, fields.get("id"))
        fields = {}


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[str]:
    """Of any length: a result of megabytes is one line."""
    waiting = bytearray()
    async for chunk in content.iter_any():
        waiting += chunk
        if b"\n" not in chunk:
            continue
        *lines, rest = waiting.split(b"\n")
        waiting = bytearray(rest)
        for line in lines:
            yield line.decode()
