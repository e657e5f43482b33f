"""Probes: whether an agent can work, checked without giving it a task, by runtime. Fails closed.

builtin: the service has an agent of that name. http: the endpoint responds, called through the SSRF guard; not whether
it would do a task well. worker: always ok, because workers are never called. llm and command: what a registration
checks. ray and kubernetes: the cluster can be reached.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TYPE_CHECKING

import msgspec

from stentor.core.errors import InvalidRequest, StentorError
from stentor.core.http_client.outbound import OutboundHttp
from stentor.core.http_client.ssrf_guard import TargetRefused
from stentor.core.lazy_import import lazy_module
from stentor.domains.registry.model import Agent, Runtime

if TYPE_CHECKING:
    import aiohttp
else:
    aiohttp = lazy_module("aiohttp")

PROBE_SECONDS = 10.0
HEAD_UNSUPPORTED_STATUSES = frozenset((501,))
"""5xx statuses of servers that do not support HEAD, but are up."""


class ProbeResult(msgspec.Struct, frozen=True):
    is_ok: bool
    detail: str


Probe = Callable[[Agent], Awaitable[ProbeResult]]


def probe_by_kind(probes: Mapping[str, Probe], seconds: float = PROBE_SECONDS) -> Probe:
    """Return a probe that selects by runtime. A runtime without a probe and a timeout (seconds) count as failed."""

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
        exists = name in names
        return ProbeResult(exists, f"The builtin agent {name!r} {'exists' if exists else 'is not in this service'}.")

    return probe


def registration_probe(check: Callable[[Runtime], None]) -> Probe:
    """Return a probe that checks the runtime as a registration would: program, sandbox, options.

    It calls no model, because that costs money.
    """

    async def probe(agent: Agent) -> ProbeResult:
        try:
            await asyncio.to_thread(check, agent.runtime)
        except StentorError as error:
            return ProbeResult(False, error.message)
        return ProbeResult(True, f"A registration with this {agent.runtime.kind} runtime would succeed.")

    return probe


async def probe_worker(agent: Agent) -> ProbeResult:
    return ProbeResult(True, "A worker pulls its work, so it cannot be probed. Its next claim shows whether it works.")


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
    # HEAD has no body, so no agent takes it for a task; a 4xx shows as well that something answers.
    async with outbound.session.head(endpoint, timeout=timeout, allow_redirects=False) as response:
        is_up = response.status < 500 or response.status in HEAD_UNSUPPORTED_STATUSES
        return ProbeResult(is_up, f"The endpoint responded to HEAD with {response.status}.")
