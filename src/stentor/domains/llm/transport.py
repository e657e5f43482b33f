"""HTTP to providers: a few tries at most, bounded in time and size; what goes wrong is a fault of the provider."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

import aiohttp
from aiohttp.http_exceptions import LineTooLong

from stentor.core import jsontext, tracing
from stentor.core.errors import (
    InvalidRequest,
    ProviderError,
    ProviderFault,
    ProviderTimeout,
    ProviderUnreachable,
)
from stentor.core.outbound import Outbound, TargetRefused
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
RETRIED = {429, 503, 529}
"""The provider says that it did not take the request; after any other failure it may have been carried out."""
ASKING = 5.0
"""Seconds for the list of models."""
T = TypeVar("T")


class Limits:
    """Seconds and tries of one call."""

    def __init__(self, *, total: float, idle: float, retries: int, connect: float = 10.0) -> None:
        self.total, self.idle, self.retries, self.connect = total, idle, retries, connect


class EventSource:
    """An open stream of a provider: (event, data) after each other. `close` ends the provider's work."""

    def __init__(self, answer: aiohttp.ClientResponse, evidence: Evidence) -> None:
        self._answer = answer
        self._evidence = evidence

    def close(self) -> None:
        self._answer.close()

    async def __aiter__(self) -> AsyncIterator[tuple[str, bytes]]:
        event, data = "", []
        async for line in self._lines():
            if line.startswith(b"data:"):
                data.append(line[5:].removeprefix(b" "))
            elif line.startswith(b"event:"):
                event = line[6:].strip().decode("utf-8", "replace")
            elif not line and data:
                yield event, b"\n".join(data)
                event, data = "", []
        if data:
            yield event, b"\n".join(data)

    async def _lines(self) -> AsyncIterator[bytes]:
        seen = 0
        while line := await guarded(self._line):
            seen += len(line)
            if seen > MAX_ANSWER:
                raise ProviderError("The provider's stream is too large.")
            self._evidence.received(line)
            yield line.rstrip(b"\r\n")

    async def _line(self) -> bytes:
        return await self._answer.content.readline(max_line_length=MAX_ANSWER)


class Transport:
    """`trusted` may reach the operator's base addresses; `outbound` reaches public ones alone.

    `clean` takes the secrets of this process out of what a provider says.
    """

    def __init__(
        self, trusted: Outbound, outbound: Outbound, limits: Limits, clean: Callable[[str], str] = str
    ) -> None:
        self._trusted = trusted
        self._outbound = outbound
        self.limits = limits
        self._clean = clean

    async def ask(self, provider: Provider, call: Call, evidence: Evidence) -> bytes:
        """The body of a successful answer. Raises ProviderFault."""
        timeout = aiohttp.ClientTimeout(total=self.limits.total, sock_connect=self.limits.connect)

        async def once() -> bytes:
            answer = await self._send(provider, call, evidence, timeout)
            async with answer:
                body = await _read(answer, MAX_ANSWER)
            evidence.received(body)
            return body

        return await self._tried(lambda: guarded(once), evidence)

    async def open(self, provider: Provider, call: Call, evidence: Evidence) -> EventSource:
        """A stream whose head has come. Raises ProviderFault."""
        limits = self.limits
        timeout = aiohttp.ClientTimeout(
            total=None, connect=limits.total, sock_connect=limits.connect, sock_read=limits.idle
        )

        async def once() -> EventSource:
            answer = await self._send(provider, call, evidence, timeout)
            if answer.content_type != "text/event-stream":
                answer.close()
                raise ProviderError("The provider did not answer with a stream of events.")
            return EventSource(answer, evidence)

        return await self._tried(lambda: guarded(once), evidence)

    async def models(self, provider: Provider) -> list[str]:
        """The names of its models. Raises ProviderFault."""
        form = formats.of(provider.format)
        timeout = aiohttp.ClientTimeout(total=min(ASKING, self.limits.total))

        async def once() -> bytes:
            url = self._checked(provider, form.MODELS)
            headers = form.headers(provider.key, provider.quirks)
            session = self._of(provider).session
            async with session.get(url, headers=headers, timeout=timeout, allow_redirects=False) as answer:
                await self._accept(answer, provider)
                return await _read(answer, MAX_ANSWER)

        return form.models(await guarded(once))

    async def _tried(self, once: Callable[[], Awaitable[T]], evidence: Evidence) -> T:
        """Again only where the provider did not take the request: not reached, or refused for now."""
        while True:
            try:
                return await once()
            except ProviderFault as fault:
                left = evidence.attempts <= self.limits.retries
                if not left or not _refused_for_now(fault) or fault.retry_after > MAX_WAIT:
                    raise
                wait = PAUSE * 2**evidence.attempts if fault.upstream is None else float(fault.retry_after)
            await asyncio.sleep(wait)

    async def _send(
        self, provider: Provider, call: Call, evidence: Evidence, timeout: aiohttp.ClientTimeout
    ) -> aiohttp.ClientResponse:
        form = formats.of(provider.format)
        url, body = self._checked(provider, call.path), jsontext.encode(call.body)
        headers = {
            "Content-Type": "application/json",
            **form.headers(provider.key, provider.quirks),
            **tracing.headers(),
        }
        evidence.upstream_status = None
        evidence.sent(url.partition("?")[0], body)
        session = self._of(provider).session
        answer = await session.post(url, data=body, headers=headers, timeout=timeout, allow_redirects=False)
        evidence.upstream_status = answer.status
        try:
            await self._accept(answer, provider)
        except BaseException:
            answer.close()
            raise
        return answer

    async def _accept(self, answer: aiohttp.ClientResponse, provider: Provider) -> None:
        if answer.status != 200:
            body = await _read(answer, MAX_PROBLEM, cut=True)
            fault = refusal(provider, answer.status, answer.headers.get("Retry-After", ""), body)
            fault.message = self._clean(fault.message)
            raise fault

    def _of(self, provider: Provider) -> Outbound:
        return self._trusted if provider.operator else self._outbound

    def _checked(self, provider: Provider, path: str) -> str:
        try:
            self._of(provider).check(provider.base_url)
        except InvalidRequest:
            raise ProviderError(f"The base address of {provider.name} is not one that may be called.") from None
        return provider.base_url + path


def _refused_for_now(fault: ProviderFault) -> bool:
    return fault.upstream in RETRIED or (fault.upstream is None and isinstance(fault, ProviderUnreachable))


async def _read(answer: aiohttp.ClientResponse, most: int, *, cut: bool = False) -> bytes:
    body = bytearray()
    async for chunk in answer.content.iter_chunked(65_536):
        body += chunk
        if len(body) > most:
            if cut:
                break
            raise ProviderError("The provider's answer is too large.")
    return bytes(body[:most])


async def guarded(work: Callable[[], Awaitable[T]]) -> T:
    """Whatever can go wrong on the way, as a fault of the provider."""
    try:
        return await work()
    except TargetRefused:
        raise ProviderError("The provider's address is not one that may be called.") from None
    except aiohttp.ClientConnectorError as error:
        if isinstance(error.os_error, TargetRefused):
            raise ProviderError("The provider's address is not one that may be called.") from None
        raise ProviderUnreachable("The provider cannot be reached.") from None
    except aiohttp.ConnectionTimeoutError:
        raise ProviderUnreachable("The provider cannot be reached in time.") from None
    except TimeoutError:
        raise ProviderTimeout("The provider did not answer in time.") from None
    except (aiohttp.ClientError, LineTooLong, ValueError) as error:
        raise ProviderError(f"The connection to the provider broke off ({type(error).__name__}).") from None
