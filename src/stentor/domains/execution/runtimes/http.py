"""The driver of agents behind an HTTP endpoint: posts the task, reads the response as JSON or as an event stream.

With the option `repeat: hold` the request is an effect of the task's journal: see `run`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import msgspec

from stentor.core import jsontext, trace_context
from stentor.core.errors import InvalidRequest
from stentor.core.http_client.outbound import OutboundHttp, read_body
from stentor.core.http_client.ssrf_guard import TargetRefused
from stentor.core.jsontext import JsonObject
from stentor.core.lazy_import import lazy_module
from stentor.domains.execution import runtimes
from stentor.domains.execution.journal import AttemptJournal, EffectFailed, EffectUnknown
from stentor.domains.execution.model import AgentFailed, AttemptOutcome, ProviderFailed
from stentor.domains.execution.runtimes import EmitToken
from stentor.domains.registry.model import Agent, HttpOptions
from stentor.domains.registry.presence import Presence
from stentor.domains.steps.model import HTTP_REQUEST
from stentor.domains.steps.service import StepService
from stentor.domains.tasks.model import TaskClaim

if TYPE_CHECKING:
    import aiohttp
else:
    aiohttp = lazy_module("aiohttp")

MAX_RESPONSE_BYTES = 10 * 1024 * 1024
"""Longest response; a longer one fails the attempt."""
CONNECT_SECONDS = 10.0
"""Longest time until an endpoint has accepted a connection."""
ERROR_BODY_SECONDS = 5.0
"""Longest time to read what a failed request cost."""
BUSY = "AGENT_BUSY"
INLINE_DECODE_BYTES = 64 * 1024
"""Longest JSON that is decoded on the event loop: it takes less time than the switch to a thread."""


class HttpDriver:
    """Posts `{task_id, epoch, type, input, ...}`; expects `{result, performance?}` or a stream that ends with it.

    In a stream, `event: token` has the data `{text}`, and `event: complete` the result.
    """

    def __init__(self, outbound: OutboundHttp, presence: Presence, steps: StepService) -> None:
        self._outbound = outbound
        self._presence = presence
        self._steps = steps

    async def run(self, claim: TaskClaim, agent: Agent, emit: EmitToken) -> AttemptOutcome:
        """Call the agent and return its outcome. Raises AgentFailed.

        After a lost attempt it is called again with the same key. With `repeat: hold` it is not: that attempt, and one
        whose response is lost, fails with EFFECT_UNKNOWN until a person has recorded what happened.
        """
        try:
            options = msgspec.convert(agent.runtime.options, HttpOptions)
        except msgspec.ValidationError as error:
            message = f"The options of the agent's runtime are invalid: {error}."
            raise AgentFailed("AGENT_MISCONFIGURED", message) from None
        if options.repeat == "hold":
            return await self._call_once(claim, agent, emit)
        # Not the key of the attempt: after a crash between sending and recording, the endpoint must recognize the task.
        return await self._call(claim, agent, claim.repetition_key, emit)

    async def _call_once(self, claim: TaskClaim, agent: Agent, emit: EmitToken) -> AttemptOutcome:
        async def work(key: str) -> JsonObject:
            try:
                return _reply(await self._call(claim, agent, key, emit))
            except AgentFailed as failure:
                error = failure.outcome.error or {}
                if not failure.was_refused:
                    raise EffectUnknown(HTTP_REQUEST, key, error["message"]) from None
                raise EffectFailed({"type": error["code"], "message": error["message"]}) from None

        reply = await AttemptJournal(self._steps, claim).effect(HTTP_REQUEST, HTTP_REQUEST, work)
        fields = reply if isinstance(reply, dict) else {}
        error = fields.get("error")
        if isinstance(error, dict) and error.keys() >= {"type", "message"}:
            failed = ProviderFailed if error["type"] == BUSY else AgentFailed
            raise failed(error["type"], error["message"])
        # A person who confirmed the effect may have recorded only the result.
        return runtimes.parse_outcome(reply if "result" in fields else {"result": reply})

    async def _call(self, claim: TaskClaim, agent: Agent, key: str, emit: EmitToken) -> AttemptOutcome:
        endpoint = agent.runtime.endpoint or ""
        try:
            self._outbound.check_url(endpoint)
            outcome = await self._post(endpoint, claim, key, emit)
        except InvalidRequest as error:
            raise AgentFailed("ENDPOINT_REFUSED", error.message, was_refused=True) from None
        except TargetRefused:
            raise _not_public() from None
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            if isinstance(getattr(error, "os_error", None), TargetRefused):
                raise _not_public() from None
            self._presence.record_failed_delivery(agent.agent_id)
            raise AgentFailed(
                "ENDPOINT_UNREACHABLE",
                "The agent's endpoint cannot be reached: check that it runs and that its URL is right.",
                was_refused=True,
            ) from None
        except (aiohttp.ClientError, ValueError) as error:
            kind = type(error).__name__
            raise AgentFailed("ENDPOINT_FAILED", f"The connection to the agent's endpoint failed ({kind}).") from None
        self._presence.record_delivery(agent.agent_id)
        return outcome

    async def _post(self, endpoint: str, claim: TaskClaim, key: str, emit: EmitToken) -> AttemptOutcome:
        headers = {"Idempotency-Key": key, "Accept": "application/json, text/event-stream"}
        headers |= trace_context.outbound_headers()
        # No total: the executor limits the attempt by the timeout of its task. Not `connect`, which would include the
        # wait for one of the session's connections: that the others are busy says nothing about the endpoint.
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS)
        async with self._outbound.session.post(
            endpoint, json=runtimes.task_payload(claim), headers=headers, timeout=timeout, allow_redirects=False
        ) as response:
            if not 200 <= response.status < 300:
                message, cost = f"The agent's endpoint answered {response.status}.", await _read_cost(response)
                if response.status in (429, 503):
                    raise ProviderFailed(BUSY, message, was_refused=True, cost=cost)
                # Any other status of 500 or above may come from a proxy that gave up waiting for the agent.
                raise AgentFailed("ENDPOINT_STATUS", message, was_refused=response.status < 500, cost=cost)
            if response.content_type == "text/event-stream":
                return await _read_stream(response, emit)
            if (body := await read_body(response, MAX_RESPONSE_BYTES)) is None:
                raise _too_large()
            return runtimes.parse_outcome(await _decode(body))


async def _read_cost(response: aiohttp.ClientResponse) -> float | None:
    """Return the `cost` in the body of a failed request; None without a valid one. Never raises."""
    if response.content_type != "application/json":
        return None
    try:
        # The status is known: an endpoint that does not finish its body must not hold the task.
        async with asyncio.timeout(ERROR_BODY_SECONDS):
            body = await read_body(response, INLINE_DECODE_BYTES)
            return None if body is None else runtimes.find_cost(await _decode(body))
    except (aiohttp.ClientError, AgentFailed, TimeoutError, ValueError):
        return None


def _reply(outcome: AttemptOutcome) -> JsonObject:
    """Return what the journal stores of an outcome, so that `parse_outcome` gives the same one again."""
    more = {"performance": outcome.performance, "cost": outcome.cost}
    more["degraded"] = outcome.outcome_class == "degraded_success" or None
    return {"result": outcome.result, **{name: value for name, value in more.items() if value is not None}}


def _not_public() -> AgentFailed:
    return AgentFailed(
        "ENDPOINT_REFUSED",
        "The agent's endpoint resolves to an address that is not public, so it is not called.",
        was_refused=True,
    )


async def _decode(data: bytes) -> Any:
    """Decode JSON under the limits for request bodies, in a thread if it is long. Raises AgentFailed."""
    try:
        jsontext.check_shape(data)
        return await asyncio.to_thread(jsontext.load, data) if len(data) > INLINE_DECODE_BYTES else jsontext.load(data)
    except InvalidRequest as error:
        raise AgentFailed("ANSWER_INVALID", f"The agent's response is not valid. {error.message}") from None
    except ValueError:
        message = "The agent's response is not JSON: it must be an object with 'result'."
        raise AgentFailed("ANSWER_INVALID", message) from None


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
            raise AgentFailed("AGENT_ERROR", "The agent reported an error.", cost=runtimes.find_cost(data))
    raise AgentFailed("ANSWER_INVALID", "The agent's stream ended without an event 'complete'.")


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[tuple[str, Any]]:
    # Not bytes, which would be copied for each line.
    event, data = "message", bytearray()
    async for line in _lines(response):
        if line.startswith(b"event:"):
            event = line[6:].strip().decode("utf-8", "replace")
        elif line.startswith(b"data:"):
            # Without the line break that the standard puts between data lines: to JSON it means nothing.
            data += line[5:].strip()
        elif not line and data:
            yield event, await _decode(bytes(data))
            event, data = "message", bytearray()


async def _lines(response: aiohttp.ClientResponse) -> AsyncIterator[bytearray]:
    """Yield lines without their ends. A line may be as long as a whole response, because a result is one line.

    Not aiohttp's `readline`, which copies the line for each of its pieces: an endpoint can send it byte by byte.
    """
    size_bytes, rest = 0, bytearray()
    async for chunk in response.content.iter_any():
        size_bytes += len(chunk)
        if size_bytes > MAX_RESPONSE_BYTES:
            raise _too_large()
        rest += chunk
        if b"\n" in chunk:
            *lines, rest = rest.split(b"\n")
            for line in lines:
                yield line.rstrip(b"\r")
    if rest:
        yield rest.rstrip(b"\r")
