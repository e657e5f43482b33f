"""The driver of agents behind an HTTP endpoint: posts the task, reads the response as JSON or as an event stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from stentor.core import jsontext, trace_context
from stentor.core.errors import InvalidRequest
from stentor.core.http_client.outbound import OutboundHttp, TargetRefused
from stentor.core.lazy_import import lazy_module
from stentor.domains.execution import runtimes
from stentor.domains.execution.model import AgentFailed, AttemptOutcome, ProviderFailed
from stentor.domains.execution.runtimes import EmitToken
from stentor.domains.registry.model import Agent
from stentor.domains.registry.presence import Presence
from stentor.domains.tasks.model import TaskClaim

if TYPE_CHECKING:
    import aiohttp
    from aiohttp import http_exceptions
else:
    aiohttp = lazy_module("aiohttp")
    http_exceptions = lazy_module("aiohttp.http_exceptions")

MAX_RESPONSE_BYTES = 10 * 1024 * 1024
"""Longest response; a longer one fails the attempt."""
INLINE_DECODE_BYTES = 64 * 1024
"""Longest JSON that is decoded on the event loop: it takes less time than the switch to a thread."""


class HttpDriver:
    """Posts `{task_id, epoch, type, input, ...}`; expects `{result, performance?}` or a stream that ends with it.

    In a stream, `event: token` has the data `{text}`, and `event: complete` the result.
    """

    def __init__(self, outbound: OutboundHttp, presence: Presence) -> None:
        self._outbound = outbound
        self._presence = presence

    async def run(self, claim: TaskClaim, agent: Agent, emit: EmitToken) -> AttemptOutcome:
        endpoint = agent.runtime.endpoint or ""
        try:
            self._outbound.check_url(endpoint)
            outcome = await self._post(endpoint, claim, emit)
        except InvalidRequest as error:
            raise AgentFailed("ENDPOINT_REFUSED", error.message) from None
        except TargetRefused:
            raise AgentFailed(
                "ENDPOINT_REFUSED",
                "The agent's endpoint resolves to an address that is not public, so it is not called.",
            ) from None
        except aiohttp.ClientConnectorError as error:
            if isinstance(error.os_error, TargetRefused):
                raise AgentFailed(
                    "ENDPOINT_REFUSED",
                    "The agent's endpoint resolves to an address that is not public, so it is not called.",
                ) from None
            self._presence.record_failed_delivery(agent.agent_id)
            raise AgentFailed(
                "ENDPOINT_UNREACHABLE",
                "The agent's endpoint cannot be reached: check that it runs and that its URL is right.",
            ) from None
        except (aiohttp.ClientError, ValueError) as error:
            kind = type(error).__name__
            raise AgentFailed("ENDPOINT_FAILED", f"The connection to the agent's endpoint failed ({kind}).") from None
        self._presence.record_delivery(agent.agent_id)
        return outcome

    async def _post(self, endpoint: str, claim: TaskClaim, emit: EmitToken) -> AttemptOutcome:
        # Not the key of the attempt: after a crash between sending and recording, the endpoint must recognize the task.
        headers = {"Idempotency-Key": claim.repetition_key, "Accept": "application/json, text/event-stream"}
        headers |= trace_context.outbound_headers()
        timeout = aiohttp.ClientTimeout(total=None, connect=10)
        async with self._outbound.session.post(
            endpoint, json=runtimes.task_payload(claim), headers=headers, timeout=timeout, allow_redirects=False
        ) as response:
            if response.status in (429, 503):
                raise ProviderFailed("AGENT_BUSY", f"The agent's endpoint answered {response.status}.")
            if not 200 <= response.status < 300:
                raise AgentFailed("ENDPOINT_STATUS", f"The agent's endpoint answered {response.status}.")
            if response.content_type == "text/event-stream":
                return await _read_stream(response, emit)
            return runtimes.parse_outcome(await _decode(await _read_body(response)))


async def _decode(data: bytes) -> Any:
    """Decode JSON under the limits for request bodies, in a thread if it is long."""
    try:
        jsontext.check_shape(data)
    except InvalidRequest as error:
        raise AgentFailed("ANSWER_INVALID", f"The agent's response is not valid. {error.message}") from None
    return await asyncio.to_thread(jsontext.load, data) if len(data) > INLINE_DECODE_BYTES else jsontext.load(data)


async def _read_body(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_chunked(65_536):
        body += chunk
        if len(body) > MAX_RESPONSE_BYTES:
            raise _too_large()
    return bytes(body)


def _too_large() -> AgentFailed:
    return AgentFailed("ANSWER_TOO_LARGE", f"The agent's response is larger than {MAX_RESPONSE_BYTES} bytes.")


async def _read_stream(response: aiohttp.ClientResponse, emit: EmitToken) -> AttemptOutcome:
    async for event, data in _events(response):
        if event == "token" and isinstance(data, dict) and isinstance(data.get("text"), str):
            emit(data["text"])
            await asyncio.sleep(0)  # many events may be buffered; without it nothing else would run until they are read
        elif event == "complete":
            return runtimes.parse_outcome(data)
        elif event == "error":
            raise AgentFailed("AGENT_ERROR", "The agent reported an error.")
    raise AgentFailed("ANSWER_INVALID", "The agent's stream ended without an event 'complete'.")


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[tuple[str, Any]]:
    event, data = "message", b""
    async for line in _lines(response):
        if line.startswith(b"event:"):
            event = line[6:].strip().decode("utf-8", "replace")
        elif line.startswith(b"data:"):
            data += line[5:].strip()
        elif not line and data:
            yield event, await _decode(data)
            event, data = "message", b""


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Yield lines without their ends. A line may be as long as a whole response, because a result is one line."""
    size_bytes = 0
    try:
        while line := await response.content.readline(max_line_length=MAX_RESPONSE_BYTES):
            size_bytes += len(line)
            if size_bytes > MAX_RESPONSE_BYTES:
                raise _too_large()
            yield line.rstrip(b"\r\n")
    except http_exceptions.LineTooLong:
        raise _too_large() from None
