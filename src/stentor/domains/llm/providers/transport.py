"""HTTP to providers with limits on retries, time and size. Every failure is raised as a ProviderFault.

`CallEvidence` is the wire evidence of one call: ids, endpoint, status, latency and hashes, and the content until it is
stored, if the operator opts in. The bodies are built and parsed in `formats`.
"""

from __future__ import annotations

import asyncio
import codecs
import hashlib
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from stentor.core import ids, jsontext, trace_context
from stentor.core.errors import (
    InvalidRequest,
    ProviderError,
    ProviderFault,
    ProviderTimeout,
    ProviderUnreachable,
)
from stentor.core.http_client.client import (
    ClientRequest,
    ClientResponse,
    ConnectError,
    RemoteProtocolError,
    ResponseTooLarge,
)
from stentor.core.http_client.outbound import OutboundHttp
from stentor.core.http_client.ssrf_guard import TargetRefused
from stentor.core.jsontext import JsonObject
from stentor.domains.llm.formats import FORMATS
from stentor.domains.llm.formats.base import reported_fault
from stentor.domains.llm.model import ChatReply, ProviderRequest
from stentor.domains.llm.providers import Provider
from stentor.domains.llm.providers.failures import fault_from_response

MAX_RESPONSE_BYTES = 32 * 1024 * 1024
"""Limit of a response or of a whole stream."""
MAX_ERROR_BYTES = 64 * 1024
"""How much of an error response is read."""
MAX_RETRY_WAIT_SECONDS = 5.0
"""Longest Retry-After that a call waits for before it retries."""
MAX_SECONDS_WITHOUT_EVENT = 600.0
"""How long a stream may send only comments and pings, which restart its idle timeout.

The SDKs of OpenAI and Anthropic wait this long for a reply that is not streamed.
"""
RETRY_BASE_SECONDS = 0.25
LIST_MODELS_SECONDS = 5.0
NETWORK_ERRORS = (ConnectError, ResponseTooLarge, RemoteProtocolError, OSError, ValueError)
"""What a request can raise because of the network or of a server that breaks its protocol."""
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class TransportLimits:
    """Timeouts and retries of one call. `total_seconds` does not limit a stream, `idle_seconds` does."""

    total_seconds: float
    idle_seconds: float
    max_retries: int
    connect_seconds: float = 10.0


class EventSource:
    """Open stream of server-sent events. `close` disconnects, so that the provider stops generating."""

    def __init__(self, response: ClientResponse, evidence: CallEvidence, idle_seconds: float) -> None:
        self._response = response
        self._evidence = evidence
        self._idle_seconds = idle_seconds

    def close(self) -> None:
        self._response.close()

    async def __aiter__(self) -> AsyncIterator[tuple[str, bytes]]:
        """Yield event name and data. Raises ProviderFault."""
        event, data, received = "", [], 0
        last_event = time.monotonic()
        try:
            while block := await self._response.read_lines(MAX_RESPONSE_BYTES, self._idle_seconds):
                is_first, received = not received, received + len(block)
                if received > MAX_RESPONSE_BYTES:
                    raise ProviderError("The provider's stream is too large.")
                self._evidence.hash_response(block)
                lines = block.removeprefix(codecs.BOM_UTF8) if is_first else block
                # Without removesuffix the split would end with an empty line, which would end the event too early.
                for line in lines.removesuffix(b"\n").split(b"\n"):
                    line = line.rstrip(b"\r")
                    if line.startswith(b"data:"):
                        data.append(line[5:].removeprefix(b" "))
                    elif line.startswith(b"event:"):
                        event = line[6:].strip().decode("utf-8", "replace")
                    elif not line:
                        if data:
                            yield event, b"\n".join(data)
                            # After the yield: the time that the reader takes is not the provider's.
                            last_event = last_event if event == "ping" else time.monotonic()
                        event, data = "", []
                self._require_event_since(last_event)
        except NETWORK_ERRORS as error:
            raise network_fault(error, idle_limit(self._idle_seconds)) from None
        if data:
            yield event, b"\n".join(data)

    def _require_event_since(self, last_event: float) -> None:
        """Raise ProviderTimeout if the last event is too long ago. Heartbeats call this, so it needs no timer."""
        if time.monotonic() - last_event > max(MAX_SECONDS_WITHOUT_EVENT, self._idle_seconds):
            raise ProviderTimeout("The provider's stream sent only heartbeats for too long.")


class ProviderTransport:
    """HTTP client for providers.

    `trusted` may also connect to the operator's base addresses, `outbound` only to public ones. They are separate pools
    of connections, so that a base address set through the API cannot use the first. `redact` removes the secrets of
    this process from a provider's error message.
    """

    def __init__(
        self, trusted: OutboundHttp, outbound: OutboundHttp, limits: TransportLimits, redact: Callable[[str], str]
    ) -> None:
        self._trusted = trusted
        self._outbound = outbound
        self.limits = limits
        self._redact = redact

    async def send(self, provider: Provider, call: ProviderRequest, evidence: CallEvidence) -> bytes:
        """Return the body of a successful response. Raises ProviderFault."""

        async def attempt() -> bytes:
            response = await self._send(provider, call, evidence, self.limits.total_seconds)
            try:
                body = await response.read_body(MAX_RESPONSE_BYTES)
            finally:
                response.close()
            evidence.record_response(body)
            return body

        limit = f"within {self.limits.total_seconds:g} s (SERVICE_LLM_TIMEOUT_SECONDS); a stream may take longer"
        return await self._retry(attempt, evidence, limit)

    async def open_stream(self, provider: Provider, call: ProviderRequest, evidence: CallEvidence) -> EventSource:
        """Return a stream once its response headers are received. Raises ProviderFault."""

        async def attempt() -> EventSource:
            # Only until the headers: how long the stream itself may take depends on the reply.
            async with asyncio.timeout(self.limits.idle_seconds):
                response = await self._send(provider, call, evidence)
                if response.content_type != "text/event-stream":
                    async with response:
                        raise await self._read_fault(provider, response)
            return EventSource(response, evidence, self.limits.idle_seconds)

        return await self._retry(attempt, evidence, idle_limit(self.limits.idle_seconds))

    async def list_models(self, provider: Provider) -> list[str]:
        """Return the names of the provider's models. Raises ProviderFault."""
        form = FORMATS[provider.format]

        async def fetch() -> bytes:
            url = self._checked_url(provider, form.MODELS_PATH)
            headers = {"Accept": "application/json", **form.build_headers(provider.key, provider.quirks)}
            request = ClientRequest("GET", url, headers, credential=provider.key)
            seconds = min(LIST_MODELS_SECONDS, self.limits.total_seconds)
            client = self._http_for(provider).client
            async with asyncio.timeout(seconds), await client.send(request, seconds) as response:
                await self._check_response(response, provider)
                return await response.read_body(MAX_RESPONSE_BYTES)

        try:
            return form.parse_models(await fetch())
        except NETWORK_ERRORS as error:
            raise network_fault(error) from None

    async def _retry(self, attempt: Callable[[], Awaitable[T]], evidence: CallEvidence, limit: str) -> T:
        """Run an attempt, and retry it only if the provider cannot have processed the request; `limit` is a time limit.
        That is if it was not reached, or if it asked for a retry soon. Any other call may have run and cost money.
        """
        while True:
            try:
                try:
                    return await attempt()
                except NETWORK_ERRORS as error:
                    raise network_fault(error, limit) from None
            except ProviderFault as fault:
                wait = self._retry_delay(fault, evidence.attempts)
                if wait is None:
                    raise
            await asyncio.sleep(wait)

    def _retry_delay(self, fault: ProviderFault, attempts: int) -> float | None:
        """Return the seconds until the next attempt, None for no retry, also if a busy provider sets no Retry-After."""
        # `attempts` counts the first one too, so this allows `max_retries` more.
        if attempts > self.limits.max_retries:
            return None
        if fault.upstream_status is None and isinstance(fault, ProviderUnreachable):
            return float(RETRY_BASE_SECONDS * 2**attempts)
        is_soon = fault.has_retry_after and fault.retry_after <= min(MAX_RETRY_WAIT_SECONDS, self.limits.total_seconds)
        return float(fault.retry_after) if is_soon else None

    async def _send(
        self, provider: Provider, call: ProviderRequest, evidence: CallEvidence, total_seconds: float | None = None
    ) -> ClientResponse:
        form = FORMATS[provider.format]
        url, body = self._checked_url(provider, call.path), jsontext.encode(call.body)
        headers = {
            "Content-Type": "application/json",
            **form.build_headers(provider.key, provider.quirks),
            **call.headers,
            **trace_context.outbound_headers(evidence.traceparent),
        }
        # Clears the status of an earlier attempt: an attempt that reaches no server must not be recorded with it.
        evidence.upstream_status = None
        evidence.record_request(url.partition("?")[0], body)
        # Tenant and key choose the pool: connections are never shared between tenants or keys.
        request = ClientRequest("POST", url, headers, body, evidence.tenant, provider.key, evidence.record_sent)
        response = await self._http_for(provider).client.send(request, self.limits.connect_seconds, total_seconds)
        evidence.upstream_status = response.status
        try:
            await self._check_response(response, provider)
        except BaseException:  # a cancelled call must release its connection too
            response.close()
            raise
        return response

    async def _check_response(self, response: ClientResponse, provider: Provider) -> None:
        if response.status != 200:
            body = await response.read_prefix(MAX_ERROR_BYTES)
            raise self._fault(provider, response.status, response.headers.get("retry-after", ""), body)
        # A small compressed body could expand to far more than MAX_RESPONSE_BYTES.
        if response.headers.get("content-encoding", "identity") != "identity":
            raise ProviderError("The provider's response is compressed, although the request did not accept it.")

    async def _read_fault(self, provider: Provider, response: ClientResponse) -> ProviderFault:
        """Return the fault of a response with status 200 that is not a stream, but possibly an error."""
        if response.content_type == "application/json":
            body = await response.read_prefix(MAX_ERROR_BYTES)
            document = jsontext.decode_or_none(body)
            if isinstance(document, dict) and document.get("error"):
                return self.explain(provider, reported_fault(document["error"]), body)
        return ProviderError("The provider did not return an event stream.")

    def explain(self, provider: Provider, fault: ProviderError, body: bytes) -> ProviderFault:
        """Return the fault for a body that could not be parsed; of an error with status 200, with its message."""
        if fault.upstream_status in (None, 200):
            return fault
        return self._fault(provider, fault.upstream_status, "", body)

    def _fault(self, provider: Provider, status: int, retry_after: str, body: bytes) -> ProviderFault:
        fault = fault_from_response(provider, status, retry_after, body)
        fault.message = self._redact(fault.message)
        return fault

    def _http_for(self, provider: Provider) -> OutboundHttp:
        return self._trusted if provider.is_operator_owned else self._outbound

    def _checked_url(self, provider: Provider, path: str) -> str:
        # Checked at each call as well as at registration (tests/manifest/llm.toml, provider-ssrf).
        try:
            self._http_for(provider).check_url(provider.base_url)
        except InvalidRequest:
            raise ProviderError(f"The base address of the provider {provider.name} is not allowed.") from None
        return provider.base_url + path


def idle_limit(seconds: float) -> str:
    return f"within {seconds:g} s (SERVICE_LLM_STREAM_IDLE_SECONDS)"


def network_fault(error: Exception, limit: str = "in time") -> ProviderFault:
    """Return the fault for a network or protocol error (`NETWORK_ERRORS`); `limit` names the limit of time."""
    match error:
        case TargetRefused():
            return ProviderError("The provider's address is not allowed.")
        case socket.gaierror():
            return ProviderUnreachable("The provider cannot be reached: its host name cannot be resolved.")
        case ConnectError():
            return ProviderUnreachable(f"The provider cannot be reached{' ' + str(error) if str(error) else ''}.")
        case TimeoutError():
            return ProviderTimeout(f"The provider did not respond {limit}.")
        case ResponseTooLarge():
            return ProviderError("The provider's response is too large.")
    return ProviderError(f"The connection to the provider failed ({type(error).__name__}).")


class CallEvidence:
    """Wire evidence of one call, filled in while it runs. Its request and hashes are of the last attempt."""

    def __init__(self, *, keep_content: bool = False, tenant: str = "") -> None:
        self.tenant = tenant
        self.call_id = ids.new_id()
        self.response_id = ""
        self.endpoint = ""
        self.upstream_status: int | None = None
        self.attempts = 0
        self._was_sent = False
        self.request_hash = ""
        self.traceparent: str | None = None
        self.keeps_content = keep_content
        self.request = self.response = b""
        """The content, only with `keep_content`. Of a stream it is the reply that its parts make: see `keep_reply`."""
        self._response_hash: hashlib._Hash | None = None
        self._started = time.monotonic()

    def record_request(self, endpoint: str, body: bytes) -> None:
        self.endpoint, self.attempts, self._was_sent = endpoint, self.attempts + 1, False
        self.request_hash = hashlib.sha256(body).hexdigest()
        self._response_hash = None
        if self.keeps_content:
            self.request, self.response = body, b""

    def record_sent(self) -> None:
        self._was_sent = True

    def may_be_billed(self, error: BaseException) -> bool:
        """Return whether the provider may have carried out the call that ended with this error, and bill it."""
        reported = error.upstream_status if isinstance(error, ProviderFault) else None
        return self._was_sent and all(status in (None, 200) for status in (self.upstream_status, reported))

    def hash_response(self, data: bytes) -> None:
        """Add the next bytes of the response to its hash."""
        if self._response_hash is None:
            self._response_hash = hashlib.sha256(data)
        else:
            self._response_hash.update(data)

    def record_response(self, data: bytes) -> None:
        self.hash_response(data)
        if self.keeps_content:
            self.response = data

    def keep_reply(self, reply: ChatReply) -> None:
        """Keep the reply of a stream. Its parts are not kept: a secret could be split between two of them."""
        if self.keeps_content:
            self.response = jsontext.encode(
                {
                    "role": "assistant",
                    "content": reply.content,
                    "reasoning": reply.reasoning,
                    "tool_calls": [
                        {"id": call.id, "function": {"name": call.name, "arguments": call.arguments}}
                        for call in reply.tool_calls
                    ],
                    "finish_reason": reply.finish,
                }
            )

    @property
    def latency_ms(self) -> int:
        return round((time.monotonic() - self._started) * 1000)

    @property
    def _response_sha256(self) -> str:
        return (self._response_hash or hashlib.sha256()).hexdigest()

    def to_metadata(self) -> JsonObject:
        return {
            "call_id": self.call_id,
            "response_id": self.response_id[:255] or None,
            "endpoint": self.endpoint,
            "upstream_status": self.upstream_status,
            "attempts": self.attempts,
            "request_sha256": self.request_hash,
            "response_sha256": self._response_sha256 if self.upstream_status else None,
        }
