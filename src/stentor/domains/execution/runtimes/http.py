"""Agents behind an HTTP endpoint: the task is posted, the answer comes as JSON or as an event stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

from stentor.core import jsontext, trace_context
from stentor.core.errors import InvalidRequest
from stentor.core.http_client.outbound import OutboundHttp, TargetRefused
from stentor.domains.execution import runtimes
from stentor.domains.execution.model import AgentFailed, AttemptOutcome, ProviderFailed
from stentor.domains.execution.runtimes import EmitToken
from stentor.domains.registry.model import Agent
from stentor.domains.registry.presence import Presence
from stentor.domains.tasks.model import TaskClaim

if TYPE_CHECKING:
    import aiohttp

MAX_RESPONSE_BYTES = 10 * 1024 * 1024
"""Bytes of an answer; a longer one fails the attempt."""

INLINE_DECODE_BYTES = 64 * 1024
"""Bytes that are decoded in less time than a thread takes."""


class HttpDriver:
    """Posts `{task_id, epoch, type, input, ...}`; expects `{result, performance?}` or such a stream.

    In a stream `event: token` carries `{text}`, and `event: complete` the answer.
    """

    def __init__(self, outbound: OutboundHttp, presence: Presence) -> None:
        self._outbound = outbound
        self._presence = presence

    async def run(self, claim: TaskClaim, agent: Agent, emit: EmitToken) -> AttemptOutcome:
        import aiohttp  # a fifth of all imports at the start, for the first such agent only

        endpoint = agent.runtime.endpoint or ""
        try:
            self._outbound.check_url(endpoint)
            outcome = await self._post(endpoint, claim, emit)
        except InvalidRequest as error:
            raise AgentFailed("ENDPOINT_REFUSED", error.message) from None
        except TargetRefused:
            raise AgentFailed("ENDPOINT_REFUSED", "The endpoint's address is not public.") from None
        except aiohttp.ClientConnectorError as error:
            if isinstance(error.os_error, TargetRefused):
                raise AgentFailed("ENDPOINT_REFUSED", "The endpoint's address is not public.") from None
            self._presence.record_failed_delivery(agent.agent_id)
            raise AgentFailed("ENDPOINT_UNREACHABLE", "The agent's endpoint cannot be reached.") from None
        except (aiohttp.ClientError, ValueError) as error:
            kind = type(error).__name__
            raise AgentFailed("ENDPOINT_FAILED", f"The agent's endpoint broke off ({kind}).") from None
        self._presence.record_delivery(agent.agent_id)
        return outcome

    async def _post(self, endpoint: str, claim: TaskClaim, emit: EmitToken) -> AttemptOutcome:
        import aiohttp

        headers = {"Idempotency-Key": claim.idempotency_key, "Accept": "application/json, text/event-stream"}
        headers |= trace_context.outbound_headers()
        timeout = aiohttp.ClientTimeout(total=None, connect=10)
        async with self._outbound.session.post(
            endpoint, json=runtimes.task_payload(claim), headers=headers, timeout=timeout, allow_redirects=False
        ) as answer:
            if answer.status in (429, 503):
                raise ProviderFailed("AGENT_BUSY", f"The agent's endpoint answered {answer.status}.")
            if not 200 <= answer.status < 300:
                raise AgentFailed("ENDPOINT_STATUS", f"The agent's endpoint answered {answer.status}.")
            if answer.content_type == "text/event-stream":
                return await _streamed(answer, emit)
            return runtimes.parse_outcome(await _decoded(await _capped(answer)))


async def _decoded(data: bytes) -> Any:
    """Held to the same shape as a body of a caller, and beside the event loop where it is long."""
    try:
        jsontext.check_shape(data)
    except InvalidRequest as error:
        raise AgentFailed("ANSWER_INVALID", f"The agent's answer cannot be read. {error.message}") from None
    return await asyncio.to_thread(jsontext.load, data) if len(data) > INLINE_DECODE_BYTES else jsontext.load(data)


async def _capped(answer: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in answer.content.iter_chunked(65_536):
        body += chunk
        if len(body) > MAX_RESPONSE_BYTES:
            raise _too_large()
    return bytes(body)


def _too_large() -> AgentFailed:
    return AgentFailed("ANSWER_TOO_LARGE", f"The agent's answer is larger than {MAX_RESPONSE_BYTES} bytes.")


async def _streamed(answer: aiohttp.ClientResponse, emit: EmitToken) -> AttemptOutcome:
    async for event, data in _events(answer):
        if event == "token" and isinstance(data, dict) and isinstance(data.get("text"), str):
            emit(data["text"])
            await asyncio.sleep(0)
        elif event == "complete":
            return runtimes.parse_outcome(data)
        elif event == "error":
            raise AgentFailed("AGENT_ERROR", "The agent reported an error.")
    raise AgentFailed("ANSWER_INVALID", "The agent's stream ended without an answer.")


async def _events(answer: aiohttp.ClientResponse) -> AsyncIterator[tuple[str, Any]]:
    event, data = "message", b""
    async for line in _lines(answer):
        if line.startswith(b"event:"):
            event = line[6:].strip().decode("utf-8", "replace")
        elif line.startswith(b"data:"):
            data += line[5:].strip()
        elif not line and data:
            yield event, await _decoded(data)
            event, data = "message", b""


async def _lines(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Lines without their ends, as long as the whole answer may be: a result is one line of a stream."""
    from aiohttp.http_exceptions import LineTooLong

    seen = 0
    try:
        while line := await answer.content.readline(max_line_length=MAX_RESPONSE_BYTES):
            seen += len(line)
            if seen > MAX_RESPONSE_BYTES:
                raise _too_large()
            yield line.rstrip(b"\r\n")
    except LineTooLong:
        raise _too_large() from None
