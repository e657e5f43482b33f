"""HTTP to providers: a few tries at most, bounded in time and size; what goes wrong is a fault of the provider."""

from __future__ import annotations

import asyncio
import codecs
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from stentor.core import jsontext, trace_context
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
from stentor.domains.llm.evidence import Evidence
from stentor.domains.llm.model import Call
from stentor.domains.llm.providers import Provider
from stentor.domains.llm.refusals import refusal

MAX_ANSWER = 32 * 1024 * 1024
"""Bytes of an answer or of a whole stream."""
MAX_PROBLEM = 64 * 1024
"""Bytes that are read of an answer with an error."""
MAX_WAIT = 5.0
"""Seconds of a Retry-After that are waited for within a call."""
PAUSE = 0.25
ASKING = 5.0
"""Seconds for the list of models."""
T = TypeVar("T")


class Limits:
    """Seconds and tries of one call."""

    def __init__(self, *, total: float, idle: float, retries: int, connect: float = 10.0) -> None:
        self.total, self.idle, self.retries, self.connect = total, idle, retries, connect


class EventSource:
    """An open stream of a provider: (event, data) after each other. `close` ends the provider's work."""

    def __init__(self, answer: ClientResponse, evidence: Evidence, idle: float) -> None:
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
        while block := await guarded(self._block):
            first, seen = not seen, seen + len(block)
            if seen > MAX_ANSWER:
                raise ProviderError("The provider's stream is too large.")
            self._evidence.received(block)
            # What is behind the block's last line break is the next block's, and no blank line.
            yield (block.removeprefix(codecs.BOM_UTF8) if first else block).removesuffix(b"\n").split(b"\n")

    async def _block(self) -> bytes:
        return await self._answer.read_lines(MAX_ANSWER, self._idle)


class Transport:
    """`trusted` may reach the operator's base addresses; `outbound` reaches public ones alone.

    `clean` takes the secrets of this process out of what a provider says.
    """

    def __init__(
        self, trusted: OutboundHttp, outbound: OutboundHttp, limits: Limits, clean: Callable[[str], str] = str
    ) -> None:
        self._trusted = trusted
        self._outbound = outbound
        self.limits = limits
        self._clean = clean

    async def ask(self, provider: Provider, call: Call, evidence: Evidence) -> bytes:
        """The body of a successful answer. Raises ProviderFault."""

        async def once() -> bytes:
            async with await self._send(provider, call, evidence, self.limits.total) as answer:
                body = await answer.read_body(MAX_ANSWER)
            evidence.received(body)
            return body

        return await self._tried(lambda: guarded(once), evidence)

    async def open(self, provider: Provider, call: Call, evidence: Evidence) -> EventSource:
        """A stream whose head has come. Raises ProviderFault."""

        async def once() -> EventSource:
            async with asyncio.timeout(self.limits.idle):
                answer = await self._send(provider, call, evidence)
            if answer.content_type != "text/event-stream":
                answer.close()
                raise ProviderError("The provider did not answer with a stream of events.")
            return EventSource(answer, evidence, self.limits.idle)

        return await self._tried(lambda: guarded(once), evidence)

    async def models(self, provider: Provider) -> list[str]:
        """The names of its models. Raises ProviderFault."""
        form = formats.of(provider.format)

        async def once() -> bytes:
            url = self._checked(provider, form.MODELS)
            headers = {"Accept": "application/json", **form.headers(provider.key, provider.quirks)}
            request = ClientRequest("GET", url, headers, credential=provider.key)
            limit = min(ASKING, self.limits.total)
            async with asyncio.timeout(limit), await self._of(provider).client.send(request, limit) as answer:
                await self._accept(answer, provider)
                return await answer.read_body(MAX_ANSWER)

        return form.models(await guarded(once))

    async def _tried(self, once: Callable[[], Awaitable[T]], evidence: Evidence) -> T:
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
        if attempts > self.limits.retries:
            return None
        if fault.upstream_status is None and isinstance(fault, ProviderUnreachable):
            return float(PAUSE * 2**attempts)
        soon = fault.has_retry_after and fault.retry_after <= min(MAX_WAIT, self.limits.total)
        return float(fault.retry_after) if soon else None

    async def _send(
        self, provider: Provider, call: Call, evidence: Evidence, total: float | None = None
    ) -> ClientResponse:
        form = formats.of(provider.format)
        url, body = self._checked(provider, call.path), jsontext.encode(call.body)
        headers = {
            "Content-Type": "application/json",
            **form.headers(provider.key, provider.quirks),
            **trace_context.outbound_headers(evidence.traceparent),
        }
        evidence.upstream_status = None
        evidence.sent(url.partition("?")[0], body)
        request = ClientRequest("POST", url, headers, body, evidence.tenant, provider.key)
        answer = await self._of(provider).client.send(request, self.limits.connect, total)
        evidence.upstream_status = answer.status
        try:
            await self._accept(answer, provider)
        except BaseException:
            answer.close()
            raise
        return answer

    async def _accept(self, answer: ClientResponse, provider: Provider) -> None:
        if answer.status != 200:
            body = await answer.read_prefix(MAX_PROBLEM)
            fault = refusal(provider, answer.status, answer.headers.get("retry-after", ""), body)
            fault.message = self._clean(fault.message)
            raise fault
        if answer.headers.get("content-encoding", "identity") != "identity":
            raise ProviderError("The provider's answer is compressed, which nobody asked for.")

    def _of(self, provider: Provider) -> OutboundHttp:
        return self._trusted if provider.operator else self._outbound

    def _checked(self, provider: Provider, path: str) -> str:
        try:
            self._of(provider).check_url(provider.base_url)
        except InvalidRequest:
            raise ProviderError(f"The base address of {provider.name} is not one that may be called.") from None
        return provider.base_url + path


async def guarded(work: Callable[[], Awaitable[T]]) -> T:
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
