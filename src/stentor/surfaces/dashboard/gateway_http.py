"""Clients of a gateway in another process: over its HTTP API, with the caller's own key.

The protocols, and the clients within the gateway's process, are in `gateway`.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import aiohttp
import msgspec
from yarl import URL

from stentor.core import jsontext
from stentor.core.errors import (
    Forbidden,
    InvalidRequest,
    RateLimited,
    RoutingDenied,
    ServiceUnavailable,
    StentorError,
    all_errors,
)
from stentor.core.http_client.outbound import OutboundHttp
from stentor.core.jsontext import JsonObject
from stentor.domains.tasks.model import TaskDraft, TaskStreamStep
from stentor.surfaces.dashboard.gateway import AcceptedTask, GatewayError, quote_segment
from stentor.surfaces.dashboard.instruction import PlannedTask
from stentor.web.operations import Operation, http_request

NO_GATEWAY_FOR_TASKS_MESSAGE = (
    "No gateway is running for this data directory, so tasks cannot be submitted. "
    "Start `stentor serve` or set SERVICE_URL."
)
NO_GATEWAY_MESSAGE = "No gateway is running for this data directory. Start `stentor serve` or set SERVICE_URL."
UNREACHABLE_MESSAGE = "Gateway unreachable. The request may or may not have been processed."
KEY_REJECTED_MESSAGE = (
    "The gateway rejected this key. Send a gateway key as 'Authorization: Bearer <key>', in addition to X-API-Key."
)
NOT_ACCEPTED_MESSAGE = "The gateway could not accept the task ({}). Try again later."
CONNECT_SECONDS, RESPONSE_SECONDS = 5, 30
LONG_SECONDS = 600
"""For operations that may take long, such as the answer of a model: the gateway itself limits them."""
READ_SECONDS = 45
"""Three of the gateway's heartbeats, which come every 15 seconds on a stream."""
CONNECTION_ERRORS = (aiohttp.ClientError, TimeoutError, OSError)
_DENIALS = {kind.code: kind for kind in all_errors() if issubclass(kind, RoutingDenied)}


class GatewayAddress(NamedTuple):
    """Where the gateway is, and what verifies its certificate; True means the authorities of this machine."""

    url: str
    trust: ssl.SSLContext | bool = True


FindGateway = Callable[[], GatewayAddress | None]
"""Returns the current address, None while no gateway is running."""


class HttpGatewayClient:
    """The GatewayClient over HTTP, subject to the gateway's rate limit like any other client.

    It has a session for each host that the gateway had. `no_gateway` is the message while no gateway is running.
    """

    def __init__(
        self, operations: Mapping[str, Operation], find: FindGateway, no_gateway: str = NO_GATEWAY_MESSAGE
    ) -> None:
        self._operations = operations
        self._find = find
        self._no_gateway = no_gateway
        self._clients: dict[str, OutboundHttp] = {}

    async def close(self) -> None:
        for client in self._clients.values():
            await client.close()

    async def call(self, key: str, operation: str, arguments: Mapping[str, Any]) -> Any:
        spec = self._operations[operation]
        method, target, body = http_request(spec, arguments)
        # The calls that a caller can cancel are those that may take long.
        seconds = LONG_SECONDS if spec.cancellable else RESPONSE_SECONDS
        timeout = aiohttp.ClientTimeout(seconds, connect=CONNECT_SECONDS)
        content = None if body is None else jsontext.encode(body)
        headers = _headers(key) | ({"Content-Type": "application/json"} if content else {})
        try:
            async with self._request(method, target, data=content, headers=headers, timeout=timeout) as response:
                status, data = response.status, jsontext.decode_or_none(await response.read())
        except CONNECTION_ERRORS as error:
            raise ServiceUnavailable(UNREACHABLE_MESSAGE) from error
        if status >= 400:
            raise _gateway_error(status, data)
        return data["data"] if spec.envelope else data

    async def stream_task(self, key: str, task_id: str, after: str | None = None) -> AsyncIterator[TaskStreamStep]:
        timeout = aiohttp.ClientTimeout(None, connect=CONNECT_SECONDS, sock_read=READ_SECONDS)
        headers = _headers(key) | ({"Last-Event-ID": after} if after else {})
        target = f"/api/v1/tasks/{quote_segment(task_id)}/stream"
        try:
            async with self._request("GET", target, headers=headers, timeout=timeout) as response:
                if response.status != 200:
                    raise _gateway_error(response.status, jsontext.decode_or_none(await response.read()))
                async for event in _parse_events(response.content):
                    yield event
        except CONNECTION_ERRORS as error:
            raise ServiceUnavailable(UNREACHABLE_MESSAGE) from error

    def _request(self, method: str, target: str, **options: Any) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """Send a request for an encoded target to the gateway. Raises ServiceUnavailable if none is running."""
        # For every request, because a restarted gateway may have another port.
        address = self._find()
        if address is None:
            raise ServiceUnavailable(self._no_gateway)
        # The operator chose the host, so it is allowed even if its address is private.
        host = urlsplit(address.url).hostname or ""
        client = self._clients.setdefault(host, OutboundHttp((host,)))
        # `encoded`: yarl would otherwise decode the %2F of an id into a path separator.
        url = URL(address.url.rstrip("/") + target, encoded=True)
        # Redirects are not followed: another server would get the user's key.
        return client.session.request(method, url, ssl=address.trust, allow_redirects=False, **options)


class HttpTaskGateway:
    """The TaskGateway over HTTP."""

    def __init__(self, client: HttpGatewayClient) -> None:
        self._client = client

    async def submit(self, planned: PlannedTask, credential: str) -> AcceptedTask:
        try:
            accepted = await self._client.call(credential, "tasks.submit", {"body": _task_body(planned.draft)})
        except GatewayError as error:
            raise _submission_error(error) from error
        try:
            return msgspec.convert(accepted, AcceptedTask)
        except msgspec.ValidationError as error:
            raise ServiceUnavailable(NOT_ACCEPTED_MESSAGE.format("not a task")) from error

    async def stream_task(self, task_id: str, after: str | None, credential: str) -> AsyncIterator[TaskStreamStep]:
        try:
            async for event in self._client.stream_task(credential, task_id, after):
                yield event
        except (GatewayError, ServiceUnavailable, ValueError):
            return  # connection lost: the reader resumes after the last event

    async def close(self) -> None:
        await self._client.close()


def _headers(credential: str) -> dict[str, str]:
    return {"X-API-Key": credential} if credential else {}


def _task_body(draft: TaskDraft) -> JsonObject:
    """Return the draft as the gateway's API accepts it."""
    # The API reserves the priority `critical` for ATP messages.
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


def _submission_error(error: GatewayError) -> StentorError:
    """Return the error of this service that corresponds to the gateway's."""
    if error.code in _DENIALS:
        return _DENIALS[error.code](error.message, error.details)
    # Not 401: the caller has passed this service's own authentication, and only the gateway rejects the key.
    if error.status in (401, 403):
        return Forbidden(KEY_REJECTED_MESSAGE)
    if error.status == 429:
        return RateLimited("The gateway's rate limit for this key is exceeded. Try again in one minute.")
    if error.status in (400, 409, 422):
        return InvalidRequest(f"The gateway rejected the task: {error.message}", error.details)
    return ServiceUnavailable(NOT_ACCEPTED_MESSAGE.format(f"HTTP status {error.status}"))


async def _parse_events(content: aiohttp.StreamReader) -> AsyncIterator[TaskStreamStep]:
    """Yield server-sent events as the gateway writes them: one data line each. Raises ValueError for other data."""
    fields: dict[str, str] = {}
    async for line in _lines(content):
        if line:
            name, _, value = line.partition(": ")
            fields[name] = value
            continue
        if "data" in fields:
            data = json.loads(fields["data"])
            if not isinstance(data, dict):
                raise ValueError("an event without an object")
            yield TaskStreamStep(fields.get("event", ""), data, fields.get("id"))
        fields = {}


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[str]:
    """Yield lines of any length: aiohttp's `readline` has a limit, and a result of megabytes is one line."""
    buffer = bytearray()
    async for chunk in content.iter_any():
        buffer += chunk
        if b"\n" not in chunk:
            continue
        *lines, rest = buffer.split(b"\n")
        buffer = bytearray(rest)
        for line in lines:
            yield line.decode()


def _gateway_error(status: int, data: Any) -> GatewayError:
    body = data if isinstance(data, dict) else {}
    error = body["error"] if isinstance(body.get("error"), dict) else {}
    message = error.get("message") or body.get("message") or f"The gateway returned HTTP status {status}."
    return GatewayError(status, str(error.get("code") or ""), str(message), error.get("details"), data)
