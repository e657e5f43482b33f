"""What the providers offer: their models, and whether they answer. Asked at the same time, kept for a while."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

import msgspec

from stentor.core.errors import ProviderFault
from stentor.domains.llm.directory import LOCAL
from stentor.domains.llm.providers import Provider
from stentor.domains.llm.transport import Transport

KEPT = 300.0
"""Seconds that a list of models is kept."""
KEPT_FAILURE = 10.0
MOST = 1_000
"""Lists kept at a time."""


class Listing(msgspec.Struct, frozen=True):
    """`models` is None when the provider did not answer."""

    provider: Provider
    models: tuple[str, ...] | None
    latency_ms: int
    asked_at: float

    @property
    def reachable(self) -> bool:
        return self.models is not None

    @property
    def stale(self) -> bool:
        return time.monotonic() - self.asked_at > (KEPT if self.models else KEPT_FAILURE)


class Catalogue:
    """`local` are the models of the baseline on this machine."""

    def __init__(self, transport: Transport, local: tuple[str, ...] = ()) -> None:
        self._transport = transport
        self._local = local
        self._known: dict[Provider, Listing] = {}

    async def listings(self, providers: Iterable[Provider], *, live: bool = False) -> list[Listing]:
        """One per provider; `live` asks those again that answered before."""
        return list(await asyncio.gather(*(self._listing(provider, live=live) for provider in providers)))

    async def _listing(self, provider: Provider, *, live: bool) -> Listing:
        known = self._known.get(provider)
        if known is None or known.stale or (live and known.reachable):
            if len(self._known) >= MOST:
                self._known.clear()
            known = self._known[provider] = await self._ask(provider)
        return known

    async def _ask(self, provider: Provider) -> Listing:
        started = time.monotonic()
        try:
            models: tuple[str, ...] | None = await self._models(provider)
        except ProviderFault as fault:
            # One without such a list, or with another key than it wants, answers nevertheless.
            models = () if fault.upstream_status is not None and fault.upstream_status < 500 else None
        now = time.monotonic()
        return Listing(provider, models, round((now - started) * 1000), now)

    async def _models(self, provider: Provider) -> tuple[str, ...]:
        return self._local if provider == LOCAL else tuple(await self._transport.models(provider))
