"""What can be found out about an agent without giving it work, by its kind of runtime. Fails closed.

builtin: the service has an agent of that name. http: something answers at the endpoint, over the guard that every call
passes; not that it would do a task well. worker: nothing, because workers are not called; their next claim tells.
llm and command: what a registration looks at.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TYPE_CHECKING

import msgspec

from stentor.core.errors import InvalidRequest, StentorError
from stentor.core.http_client.outbound import OutboundHttp, TargetRefused
from stentor.core.lazy_import import lazy_module
from stentor.domains.registry.model import Agent, Runtime

if TYPE_CHECKING:
    import aiohttp
else:
    aiohttp = lazy_module("aiohttp")

PROBE_SECONDS = 10.0
HEAD_UNSUPPORTED_STATUSES = frozenset((501,))
"""What servers answer to a method that they do not have; they are there all the same."""


class ProbeResult(msgspec.Struct, frozen=True):
    is_ok: bool
    detail: str


Probe = Callable[[Agent], Awaitable[ProbeResult]]


def probe_by_kind(probes: Mapping[str, Probe], seconds: float = PROBE_SECONDS) -> Probe:
    """One probe out of one for each kind of runtime; a kind without a probe, and one that hangs, is not found well."""

    async def probe(agent: Agent) -> ProbeResult:
        kind = agent.runtime.kind
        if kind not in probes:
            return ProbeResult(False, f"There is no probe for the runtime {kind!r}.")
        try:
            async with asyncio.timeout(seconds):
                return await probes[kind](agent)
        except TimeoutError:
            return ProbeResult(False, f"The probe took longer than {seconds:g} s.")

    return probe


def builtin_probe(names: Collection[str]) -> Probe:
    async def probe(agent: Agent) -> ProbeResult:
        name = agent.runtime.name or ""
        there = name in names
        return ProbeResult(there, f"The builtin agent {name!r} is {'there' if there else 'not in this service'}.")

    return probe


def registration_probe(check: Callable[[Runtime], None]) -> Probe:
    """Whether a registration would take the runtime now: its program, its cage, the form of its options. A model is not
    called, because that costs money.
    """

    async def probe(agent: Agent) -> ProbeResult:
        try:
            await asyncio.to_thread(check, agent.runtime)
        except StentorError as error:
            return ProbeResult(False, error.message)
        return ProbeResult(True, f"A registration with this {agent.runtime.kind} runtime would be taken.")

    return probe


async def probe_worker(agent: Agent) -> ProbeResult:
    return ProbeResult(True, "A worker cannot be probed: it pulls its work. Its next claim shows whether it works.")


def http_probe(outbound: OutboundHttp) -> Probe:
    async def probe(agent: Agent) -> ProbeResult:
        try:
            return await _probe_endpoint(outbound, agent.runtime.endpoint or "")
        except InvalidRequest as error:
            return ProbeResult(False, error.message)
        except TargetRefused:
            return ProbeResult(False, "The endpoint's address is not public.")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            return ProbeResult(False, f"The endpoint cannot be reached ({type(error).__name__}).")

    return probe


async def _probe_endpoint(outbound: OutboundHttp, endpoint: str) -> ProbeResult:
    outbound.check_url(endpoint)
    timeout = aiohttp.ClientTimeout(total=PROBE_SECONDS)
    async with outbound.session.head(endpoint, timeout=timeout, allow_redirects=False) as answer:
        there = answer.status < 500 or answer.status in HEAD_UNSUPPORTED_STATUSES
        return ProbeResult(there, f"The endpoint answered {answer.status} to HEAD.")
