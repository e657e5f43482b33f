"""The providers of a tenant: the operator's, a local Ollama found by itself, and those registered at runtime.

What the providers offer: their models, and whether they answer. Asked at the same time, kept for a while.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import cast
from urllib.parse import urlsplit

import msgspec

from stentor.core.db import Database, Tx
from stentor.core.errors import Conflict, InvalidRequest, NotFound, ProviderFault
from stentor.core.runlog import EventDraft, RunLog
from stentor.core.security.redaction import Redactor
from stentor.core.security.sealing import Sealer
from stentor.domains.llm import store
from stentor.domains.llm.formats import FormatName
from stentor.domains.llm.providers import KNOWN_PROVIDERS, LOCAL_OLLAMA_URL, Provider, ProviderDefaults, normalize_url
from stentor.domains.llm.providers.transport import ProviderTransport
from stentor.domains.llm.store import ProviderRow

MAX_PROVIDERS = 100
"""Providers that a tenant may register."""
REGISTRATION_CACHE_SECONDS = 1.0
"""Seconds that what another process registered may go unseen."""
OLLAMA_PROBE_SECONDS = 30.0
"""Seconds between looks for a local Ollama."""
EXTRACTIVE_MODEL, EMBEDDING_MODEL = LOCAL_MODELS = ("extractive", "embedding")
LOCAL_PROVIDER = Provider("local", "openai", "local:", default_model=EXTRACTIVE_MODEL, is_operator_owned=True)


class ProviderDraft(msgspec.Struct, frozen=True):
    """What a registration names; None leaves what is there."""

    name: str
    key: str | None = None
    base_url: str | None = None
    default_model: str | None = None
    format: FormatName | None = None


class ProviderRegistry:
    """`check` refuses base addresses that callers of the API may not name."""

    def __init__(
        self,
        db: Database,
        runlog: RunLog,
        sealer: Sealer,
        operators: dict[str, Provider],
        transport: ProviderTransport,
        check: Callable[[str], None],
        *,
        find_ollama: bool = False,
        include_local: bool = False,
        redactor: Redactor | None = None,
    ) -> None:
        self._db = db
        self._runlog = runlog
        self._sealer = sealer
        self._operators = operators | ({"local": LOCAL_PROVIDER} if include_local else {})
        self._transport = transport
        self._check = check
        self._find_ollama = find_ollama and "ollama" not in operators
        self._redactor = redactor
        self._looked = -OLLAMA_PROBE_SECONDS
        self._found: dict[str, Provider] = {}
        self._cached: dict[str, tuple[float, dict[str, Provider]]] = {}

    async def providers_of(self, tenant: str) -> dict[str, Provider]:
        """By name. A registered one stands before an Ollama that was found, and never before the operator's."""
        if self._find_ollama:
            await self._look()
        registered = await self._registered(tenant)
        return {**self._found, **self._operators, **registered}

    async def register(self, tenant: str, draft: ProviderDraft, by: str) -> Provider:
        """Add or change a provider. Another base address drops the key, unless a new one comes with it.

        Raises Conflict for the key, the address or the format of a provider of the operator's environment.
        """
        if draft.name == LOCAL_PROVIDER.name:
            raise Conflict("The name 'local' belongs to the local baseline.")
        if draft.name in self._operators and (draft.key or draft.base_url or draft.format):
            raise Conflict(
                f"The provider {draft.name!r} is configured by the operator's environment, and a registration does not "
                "replace it. Register another name with its own baseUrl, or have the operator change the environment."
            )
        base_url = None if draft.base_url is None else normalize_url(draft.base_url)
        if base_url is not None:
            self._check(base_url)

        def work(tx: Tx) -> ProviderRow:
            known = {row.name: row for row in store.list_providers(tx, tenant)}
            if draft.name not in known and len(known) >= MAX_PROVIDERS:
                raise Conflict(f"This tenant has {MAX_PROVIDERS} providers, which is the most allowed.")
            row = self._merged(tenant, known.get(draft.name), draft, base_url)
            store.upsert_provider(tx, tenant, row)
            self._runlog.append(tx, tenant, [_provider_changed_event(row, by)])
            return row

        row = await self._db.write(work)
        self._cached.pop(tenant, None)
        return self._provider(tenant, row)

    async def remove(self, tenant: str, name: str, by: str) -> None:
        """Forget a registered provider and its key. Raises NotFound."""

        def work(tx: Tx) -> None:
            if not store.delete_provider(tx, tenant, name):
                raise NotFound(f"No provider {name!r} was registered; those of the environment are the operator's.")
            self._runlog.append(tx, tenant, [_provider_removed_event(name, by)])

        await self._db.write(work)
        self._cached.pop(tenant, None)

    def _merged(self, tenant: str, row: ProviderRow | None, draft: ProviderDraft, base_url: str | None) -> ProviderRow:
        before = row or ProviderRow(draft.name, "", "", None, "")
        format_ = draft.format or before.format or self._default(draft.name).format
        now = msgspec.structs.replace(before, format=format_, base_url=base_url or before.base_url)
        if draft.default_model is not None:
            now = msgspec.structs.replace(now, default_model=draft.default_model)
        address = self._address(now)
        if not address:
            raise InvalidRequest(f"{draft.name!r} has no base address of its own: name its baseUrl.")
        if draft.key:
            sealed: str | None = self._sealer.seal(draft.key, tenant, draft.name, address)
        else:
            sealed = before.sealed_key if row is not None and self._address(row) == address else None
        return msgspec.structs.replace(now, sealed_key=sealed)

    async def _registered(self, tenant: str) -> dict[str, Provider]:
        read_at, known = self._cached.get(tenant, (-REGISTRATION_CACHE_SECONDS, {}))
        if time.monotonic() - read_at < REGISTRATION_CACHE_SECONDS:
            return known
        rows = await self._db.read(lambda tx: store.list_providers(tx, tenant))
        known = {row.name: self._provider(tenant, row) for row in rows}
        self._cached[tenant] = (time.monotonic(), known)
        return known

    def _provider(self, tenant: str, row: ProviderRow) -> Provider:
        operators = self._operators.get(row.name)
        if operators is not None:  # also for a row from before the operator configured it
            return replace(operators, default_model=row.default_model or operators.default_model)
        address = self._address(row)
        key = (self._sealer.open(row.sealed_key, tenant, row.name, address) if row.sealed_key else None) or ""
        own = not row.base_url and row.name in self._found
        if key and self._redactor is not None:
            self._redactor.add_secret(key)
        return Provider(row.name, cast(FormatName, row.format), address, key, row.default_model, is_operator_owned=own)

    def _address(self, row: ProviderRow) -> str:
        return row.base_url or self._default(row.name).base_url

    def _configured(self, name: str) -> Provider | None:
        return self._operators.get(name) or self._found.get(name)

    def _default(self, name: str) -> ProviderDefaults:
        configured = self._configured(name)
        if configured is not None:
            return ProviderDefaults(configured.format, configured.base_url)
        return KNOWN_PROVIDERS.get(name, ProviderDefaults())

    async def _look(self) -> None:
        """Whether an Ollama answers on this machine; asked now and then."""
        now = time.monotonic()
        if now - self._looked < OLLAMA_PROBE_SECONDS:
            return
        self._looked = now
        ollama = Provider("ollama", "openai", LOCAL_OLLAMA_URL, is_operator_owned=True)
        try:
            await self._transport.list_models(ollama)
        except ProviderFault:
            self._found = {}
        else:
            self._found = {"ollama": ollama}


def _provider_changed_event(row: ProviderRow, by: str) -> EventDraft:
    meta = {"provider": row.name, "base_url": redact_url(row.base_url), "key_set": bool(row.sealed_key), "by": by}
    return EventDraft("provider_changed", "llm", f"Provider {row.name} registered or changed.", meta)


def _provider_removed_event(name: str, by: str) -> EventDraft:
    return EventDraft(
        "provider_changed", "llm", f"Provider {name} removed.", {"provider": name, "removed": True, "by": by}
    )


def redact_url(url: str) -> str:
    """A base address without anything that could be a secret."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


LISTING_CACHE_SECONDS = 300.0
"""Seconds that a list of models is kept."""
FAILED_LISTING_CACHE_SECONDS = 10.0
MAX_CACHED_LISTINGS = 1_000
"""Lists kept at a time."""


class ProviderListing(msgspec.Struct, frozen=True):
    """`models` is None when the provider did not answer."""

    provider: Provider
    models: tuple[str, ...] | None
    latency_ms: int
    fetched_at: float

    @property
    def is_reachable(self) -> bool:
        return self.models is not None

    @property
    def is_stale(self) -> bool:
        return time.monotonic() - self.fetched_at > (
            LISTING_CACHE_SECONDS if self.models else FAILED_LISTING_CACHE_SECONDS
        )


class ModelCatalog:
    """`local` are the models of the baseline on this machine."""

    def __init__(self, transport: ProviderTransport, local: tuple[str, ...] = ()) -> None:
        self._transport = transport
        self._local = local
        self._known: dict[Provider, ProviderListing] = {}

    async def listings(self, providers: Iterable[Provider], *, live: bool = False) -> list[ProviderListing]:
        """One per provider; `live` asks those again that answered before."""
        return list(await asyncio.gather(*(self._listing(provider, live=live) for provider in providers)))

    async def _listing(self, provider: Provider, *, live: bool) -> ProviderListing:
        known = self._known.get(provider)
        if known is None or known.is_stale or (live and known.is_reachable):
            if len(self._known) >= MAX_CACHED_LISTINGS:
                self._known.clear()
            known = self._known[provider] = await self._ask(provider)
        return known

    async def _ask(self, provider: Provider) -> ProviderListing:
        started = time.monotonic()
        try:
            models: tuple[str, ...] | None = await self._models(provider)
        except ProviderFault as fault:
            # One without such a list, or with another key than it wants, answers nevertheless.
            models = () if fault.upstream_status is not None and fault.upstream_status < 500 else None
        now = time.monotonic()
        return ProviderListing(provider, models, round((now - started) * 1000), now)

    async def _models(self, provider: Provider) -> tuple[str, ...]:
        return self._local if provider == LOCAL_PROVIDER else tuple(await self._transport.list_models(provider))
