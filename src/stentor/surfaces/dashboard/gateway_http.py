"""The gateway in another process: over its HTTP API, with the caller's own key."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec
from yarl import URL

from stentor.core import jsontext
from stentor.core.errors import Forbidden, InvalidRequest, RateLimited, RoutingDenied, ServiceUnavailable, all_errors
from stentor.core.http_client.outbound import OutboundHttp
from stentor.domains.tasks.model import TaskDraft
from stentor.surfaces.dashboard.gateway import (
    AcceptedTask,
    GatewayError,
    TaskStreamEvent,
    quote_segment,
)
from stentor.surfaces.dashboard.instruction import PlannedTask
from stentor.web.operations import Operation, http_request

NO_GATEWAY_FOR_TASKS_MESSAGE = (
    "No gateway runs on this data folder, and only a gateway takes work. Start `stentor serve`, or set SERVICE_URL."
)
UNREACHABLE_MESSAGE = "The gateway cannot be reached. Nothing is known of work that it may have taken."
CONNECT_SECONDS, RESPONSE_SECONDS, READ_SECONDS = 5, 30, 45
"""The gateway's streams have a heartbeat every 15 seconds."""
_DENIALS = {kind.code: kind for kind in all_errors() if issubclass(kind, RoutingDenied)}
KEY_REJECTED_MESSAGE = (
    "The gateway does not take this key. Send one of its own as 'Authorization: Bearer <key>', beside X-API-Key."
)


class HttpTaskStreamEvent(msgspec.Struct, frozen=True):
    kind: str
    data: dict[str, Any]
    id: str | None = None


class HttpTaskGateway:
    """Over HTTP. `find` answers the gateway's address now, None without one: it may come and go."""

    def __init__(self, find: Callable[[], str | None]) -> None:
        self._find = find
        self._clients: dict[str, OutboundHttp] = {}

    async def submit(self, planned: PlannedTask, credential: str) -> AcceptedTask:
        timeout = aiohttp.ClientTimeout(RESPONSE_SECONDS, connect=CONNECT_SECONDS)
        address = self._address()
        try:
            async with self._session(address).post(
                f"{address}/api/v1/tasks",
                data=jsontext.encode(_task_body(planned.draft)),
                headers={"Content-Type": "application/json", **_headers(credential)},
                allow_redirects=False,
                timeout=timeout,
            ) as answer:
                status, content = answer.status, await answer.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise ServiceUnavailable(UNREACHABLE_MESSAGE) from error
        return _parse_submit_response(status, content)

    async def stream_task(self, task_id: str, after: str | None, credential: str) -> AsyncIterator[TaskStreamEvent]:
        timeout = aiohttp.ClientTimeout(None, connect=CONNECT_SECONDS, sock_read=READ_SECONDS)
        headers = _headers(credential) | ({"Last-Event-ID": after} if after else {})
        address = self._address()
        # Encoded already, so that an encoded slash of an id stays one.
        url = URL(f"{address}/api/v1/tasks/{quote_segment(task_id)}/stream", encoded=True)
        try:
            async with self._session(address).get(
                url, headers=headers, allow_redirects=False, timeout=timeout
            ) as answer:
                if answer.status == 200:
                    async for step in _parse_events(answer.content):
                        yield step
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
            return  # broken off: whoever reads goes on from the last step

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()

    def _address(self) -> str:
        address = self._find()
        if address is None:
            raise ServiceUnavailable(NO_GATEWAY_FOR_TASKS_MESSAGE)
        return address.rstrip("/")

    def _session(self, address: str) -> aiohttp.ClientSession:
        """The address is the operator's, so it may be a private one."""
        host = urlsplit(address).hostname or ""
        return self._clients.setdefault(host, OutboundHttp((host,))).session


def _headers(credential: str) -> dict[str, str]:
    return {"X-API-Key": credential} if credential else {}


def _task_body(draft: TaskDraft) -> dict[str, Any]:
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


class _GatewayErrorBody(msgspec.Struct):
    code: str = ""
    message: str = ""
    details: dict[str, Any] | None = None


class _SubmitResponse(msgspec.Struct):
    task_id: str = ""
    provenance_id: str | None = None
    error: _GatewayErrorBody | str = ""


def _parse_submit_response(status: int, content: bytes) -> AcceptedTask:
    """Raises what the gateway's refusal means here; of what it said only what it says to every caller."""
    try:
        answer = msgspec.json.decode(content, type=_SubmitResponse)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        answer = _SubmitResponse()
    if status == 202 and answer.task_id:
        return AcceptedTask(answer.task_id, answer.provenance_id)
    error = answer.error if isinstance(answer.error, _GatewayErrorBody) else _GatewayErrorBody()
    if error.code in _DENIALS:
        raise _DENIALS[error.code](error.message, error.details)
    if status in (401, 403):
        raise Forbidden(KEY_REJECTED_MESSAGE)
    if status == 429:
        raise RateLimited("The gateway takes no more requests of this key in this minute.")
    if status in (400, 409, 422):
        raise InvalidRequest(f"The gateway refuses the task: {error.message or status}", error.details)
    raise ServiceUnavailable(f"The gateway cannot take the task now (it answered {status}).")


async def _parse_events(content: aiohttp.StreamReader) -> AsyncIterator[HttpTaskStreamEvent]:
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
            yield HttpTaskStreamEvent(fields.get("event", ""), data, fields.get("id"))
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


NO_GATEWAY_MESSAGE = "No gateway runs on this data folder. Start `stentor serve`, or set SERVICE_URL."
NO_RESPONSE_MESSAGE = "The gateway cannot be reached. Nothing is known of work that it may have taken."
CONNECTION_ERRORS = (aiohttp.ClientError, TimeoutError, OSError)


class HttpGatewayClient:
    """Over HTTP, counted by the gateway's rate limit like any other client.

    `find` returns the gateway's address now, None without one: it may come and go.
    """

    def __init__(self, operations: Mapping[str, Operation], find: Callable[[], str | None]) -> None:
        self._operations = operations
        self._find = find
        self._clients: dict[str, OutboundHttp] = {}

    async def call(self, key: str, operation: str, arguments: Mapping[str, Any]) -> Any:
        row = self._operations[operation]
        method, target, body = http_request(row, arguments)
        timeout = aiohttp.ClientTimeout(RESPONSE_SECONDS, connect=CONNECT_SECONDS)
        content = None if body is None else jsontext.encode(body)
        headers = {"X-API-Key": key} | ({"Content-Type": "application/json"} if content else {})
        url, session = self._at(target)
        try:
            async with session.request(
                method, url, data=content, headers=headers, allow_redirects=False, timeout=timeout
            ) as answer:
                status, data = answer.status, jsontext.decode_or_none(await answer.read())
        except CONNECTION_ERRORS as error:
            raise ServiceUnavailable(NO_RESPONSE_MESSAGE) from error
        if status >= 400:
            raise _gateway_error(status, data)
        return data["data"] if row.envelope else data

    async def stream_task(self, key: str, task_id: str, after: str | None = None) -> AsyncIterator[TaskStreamEvent]:
        timeout = aiohttp.ClientTimeout(None, connect=CONNECT_SECONDS, sock_read=READ_SECONDS)
        headers = {"X-API-Key": key} | ({"Last-Event-ID": after} if after else {})
        url, session = self._at(f"/api/v1/tasks/{quote_segment(task_id)}/stream")
        try:
            async with session.get(url, headers=headers, allow_redirects=False, timeout=timeout) as answer:
                if answer.status != 200:
                    raise _gateway_error(answer.status, jsontext.decode_or_none(await answer.read()))
                async for step in _parse_events(answer.content):
                    yield step
        except CONNECTION_ERRORS as error:
            raise ServiceUnavailable(NO_RESPONSE_MESSAGE) from error

    async def is_key_valid(self, key: str, tenant: str) -> bool:
        try:
            who = await self.call(key, "whoami", {})
        except ServiceUnavailable:
            return True
        except GatewayError as refused:
            return refused.status != 401
        return bool(who["tenant"] == tenant)

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()

    def _at(self, target: str) -> tuple[URL, aiohttp.ClientSession]:
        """Encoded already, so that an encoded slash of an id stays one; the operator's address may be private."""
        address = self._find()
        if address is None:
            raise ServiceUnavailable(NO_GATEWAY_MESSAGE)
        host = urlsplit(address).hostname or ""
        client = self._clients.setdefault(host, OutboundHttp((host,)))
        return URL(address.rstrip("/") + target, encoded=True), client.session


def _gateway_error(status: int, data: Any) -> GatewayError:
    body = data if isinstance(data, dict) else {}
    error = body["error"] if isinstance(body.get("error"), dict) else {}
    message = error.get("message") or body.get("message") or f"The gateway answered {status}."
    return GatewayError(status, str(error.get("code") or ""), str(message), error.get("details"), data)
