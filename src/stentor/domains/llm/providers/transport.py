"""HTTP to providers: a few tries at most, bounded in time and size; what goes wrong is a fault of the provider.

What is kept of a call: ids, endpoint, status, latency and hashes, never content unless the operator opts in.
"""

from __future__ import annotations

import asyncio
import codecs
import hashlib
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

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
from stentor.core.http_client.outbound import OutboundHttp, TargetRefused
from stentor.domains.llm import formats
from stentor.domains.llm.model import ProviderRequest
from stentor.domains.llm.providers import Provider
from stentor.domains.llm.providers.failures import fault_from_response

MAX_RESPONSE_BYTES = 32 * 1024 * 1024
"""Bytes of an answer or of a whole stream."""
MAX_ERROR_BYTES = 64 * 1024
"""Bytes that are read of an answer with an error."""
MAX_RETRY_WAIT_SECONDS = 5.0
"""Seconds of a Retry-After that are waited for within a call."""
RETRY_BASE_SECONDS = 0.25
LIST_MODELS_SECONDS = 5.0
"""Seconds for the list of models."""
T = TypeVar("T")


class TransportLimits:
    """Seconds and tries of one call."""

    def __init__(
        self, *, total_seconds: float, idle_seconds: float, max_retries: int, connect_seconds: float = 10.0
    ) -> None:
        self.total_seconds, self.idle_seconds, self.max_retries, self.connect_seconds = (
            total_seconds,
            idle_seconds,
            max_retries,
            connect_seconds,
        )


class EventSource:
    """An open stream of a provider: (event, data) after each other. `close` ends the provider's work."""

    def __init__(self, answer: ClientResponse, evidence: CallEvidence, idle: float) -> None:
        self._answer = answer
        self._evidence = evidence
        self._idle = idle

    def close(self) -> None:
        self._answer.close()

    async def __aiter__(self) -> AsyncIterator[tuple[str, bytes]]:
        event, data = "", []
        async for lines in self._lines():
            for line in lines:
                line = line.rstrip(b"\r")
                if line.startswith(b"data:"):
                    data.append(line[5:].removeprefix(b" "))
                elif line.startswith(b"event:"):
                    event = line[6:].strip().decode("utf-8", "replace")
                elif not line:
                    if data:
                        yield event, b"\n".join(data)
                    event, data = "", []
        if data:
            yield event, b"\n".join(data)

    async def _lines(self) -> AsyncIterator[list[bytes]]:
        """The lines that came together. Raises ProviderFault."""
        seen = 0
        while block := await with_provider_faults(self._block):
            first, seen = not seen, seen + len(block)
            if seen > MAX_RESPONSE_BYTES:
                raise ProviderError("The provider's stream is too large.")
            self._evidence.record_response(block)
            # What is behind the block's last line break is the next block's, and no blank line.
            yield (block.removeprefix(codecs.BOM_UTF8) if first else block).removesuffix(b"\n").split(b"\n")

    async def _block(self) -> bytes:
        return await self._answer.read_lines(MAX_RESPONSE_BYTES, self._idle)


class ProviderTransport:
    """`trusted` may reach the operator's base addresses; `outbound` reaches public ones alone.

    `clean` takes the secrets of this process out of what a provider says.
    """

    def __init__(
        self, trusted: OutboundHttp, outbound: OutboundHttp, limits: TransportLimits, redact: Callable[[str], str] = str
    ) -> None:
        self._trusted = trusted
        self._outbound = outbound
        self.limits = limits
        self._clean = redact

    async def send(self, provider: Provider, call: ProviderRequest, evidence: CallEvidence) -> bytes:
        """The body of a successful answer. Raises ProviderFault."""

        async def once() -> bytes:
            async with await self._send(provider, call, evidence, self.limits.total_seconds) as answer:
                body = await answer.read_body(MAX_RESPONSE_BYTES)
            evidence.record_response(body)
            return body

        return await self._tried(lambda: with_provider_faults(once), evidence)

    async def open_stream(self, provider: Provider, call: ProviderRequest, evidence: CallEvidence) -> EventSource:
        """A stream whose head has come. Raises ProviderFault."""

        async def once() -> EventSource:
            async with asyncio.timeout(self.limits.idle_seconds):
                answer = await self._send(provider, call, evidence)
            if answer.content_type != "text/event-stream":
                answer.close()
                raise ProviderError("The provider did not answer with a stream of events.")
            return EventSource(answer, evidence, self.limits.idle_seconds)

        return await self._tried(lambda: with_provider_faults(once), evidence)

    async def list_models(self, provider: Provider) -> list[str]:
        """The names of its models. Raises ProviderFault."""
        form = formats.get_format(provider.format)

        async def once() -> bytes:
            url = self._checked(provider, form.MODELS_PATH)
            headers = {"Accept": "application/json", **form.build_headers(provider.key, provider.quirks)}
            request = ClientRequest("GET", url, headers, credential=provider.key)
            limit = min(LIST_MODELS_SECONDS, self.limits.total_seconds)
            async with asyncio.timeout(limit), await self._of(provider).client.send(request, limit) as answer:
                await self._accept(answer, provider)
                return await answer.read_body(MAX_RESPONSE_BYTES)

        return form.parse_models(await with_provider_faults(once))

    async def _tried(self, once: Callable[[], Awaitable[T]], evidence: CallEvidence) -> T:
        """Again only where the provider did not take the request: not reached, or told to come again soon."""
        while True:
            try:
                return await once()
            except ProviderFault as fault:
                wait = self._pause(fault, evidence.attempts)
                if wait is None:
                    raise
            await asyncio.sleep(wait)

    def _pause(self, fault: ProviderFault, attempts: int) -> float | None:
        """Seconds until the next try; None when there is none. A provider that names no time is not guessed at."""
        if attempts > self.limits.max_retries:
            return None
        if fault.upstream_status is None and isinstance(fault, ProviderUnreachable):
            return float(RETRY_BASE_SECONDS * 2**attempts)
        soon = fault.has_retry_after and fault.retry_after <= min(MAX_RETRY_WAIT_SECONDS, self.limits.total_seconds)
        return float(fault.retry_after) if soon else None

    async def _send(
        self, provider: Provider, call: ProviderRequest, evidence: CallEvidence, total: float | None = None
    ) -> ClientResponse:
        form = formats.get_format(provider.format)
        url, body = self._checked(provider, call.path), jsontext.encode(call.body)
        headers = {
            "Content-Type": "application/json",
            **form.build_headers(provider.key, provider.quirks),
            **trace_context.outbound_headers(evidence.traceparent),
        }
        evidence.upstream_status = None
        evidence.record_request(url.partition("?")[0], body)
        request = ClientRequest("POST", url, headers, body, evidence.tenant, provider.key)
        answer = await self._of(provider).client.send(request, self.limits.connect_seconds, total)
        evidence.upstream_status = answer.status
        try:
            await self._accept(answer, provider)
        except BaseException:
            answer.close()
            raise
        return answer

    async def _accept(self, answer: ClientResponse, provider: Provider) -> None:
        if answer.status != 200:
            body = await answer.read_prefix(MAX_ERROR_BYTES)
            fault = fault_from_response(provider, answer.status, answer.headers.get("retry-after", ""), body)
            fault.message = self._clean(fault.message)
            raise fault
        if answer.headers.get("content-encoding", "identity") != "identity":
            raise ProviderError("The provider's answer is compressed, which nobody asked for.")

    def _of(self, provider: Provider) -> OutboundHttp:
        return self._trusted if provider.is_operator_owned else self._outbound

    def _checked(self, provider: Provider, path: str) -> str:
        try:
            self._of(provider).check_url(provider.base_url)
        except InvalidRequest:
            raise ProviderError(f"The base address of {provider.name} is not one that may be called.") from None
        return provider.base_url + path


async def with_provider_faults(work: Callable[[], Awaitable[T]]) -> T:
    """Whatever can go wrong on the way, as a fault of the provider."""
    try:
        return await work()
    except TargetRefused:
        raise ProviderError("The provider's address is not one that may be called.") from None
    except socket.gaierror:
        raise ProviderUnreachable("The provider cannot be reached: its name is not known.") from None
    except ConnectError as error:
        raise ProviderUnreachable(f"The provider cannot be reached{' ' + str(error) if str(error) else ''}.") from None
    except TimeoutError:
        raise ProviderTimeout("The provider did not answer in time.") from None
    except ResponseTooLarge:
        raise ProviderError("The provider's answer is too large.") from None
    except (RemoteProtocolError, OSError, ValueError) as error:
        raise ProviderError(f"The connection to the provider broke off ({type(error).__name__}).") from None


MAX_CONTENT_BYTES = 256 * 1024
"""Bytes of a request and of an answer that are kept, when the operator opts in."""


class CallEvidence:
    """Filled in while the call goes on."""

    def __init__(self, *, keep_content: bool = False, tenant: str = "") -> None:
        self.tenant = tenant
        self.call_id = ids.new_id()
        self.response_id = ""
        self.endpoint = ""
        self.upstream_status: int | None = None
        self.attempts = 0
        self.request_hash = ""
        self.traceparent: str | None = None
        self._keep = keep_content
        self._request = b""
        self._response = bytearray()
        self._hash = hashlib.sha256()
        self._started = time.monotonic()

    def record_request(self, endpoint: str, body: bytes) -> None:
        self.endpoint, self.attempts = endpoint, self.attempts + 1
        self.request_hash = hashlib.sha256(body).hexdigest()
        self._hash = hashlib.sha256()
        if self._keep:
            self._request = body[:MAX_CONTENT_BYTES]
            self._response.clear()

    def record_response(self, data: bytes) -> None:
        self._hash.update(data)
        if self._keep and len(self._response) < MAX_CONTENT_BYTES:
            self._response += data[: MAX_CONTENT_BYTES - len(self._response)]

    @property
    def latency_ms(self) -> int:
        return round((time.monotonic() - self._started) * 1000)

    def to_metadata(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "call_id": self.call_id,
            "response_id": self.response_id[:255] or None,
            "endpoint": self.endpoint,
            "upstream_status": self.upstream_status,
            "attempts": self.attempts,
            "request_sha256": self.request_hash,
            "response_sha256": self._hash.hexdigest() if self.upstream_status else None,
        }
        if self._keep:
            found["request"] = self._request.decode("utf-8", "replace")
            found["response"] = self._response.decode("utf-8", "replace")
        return found
