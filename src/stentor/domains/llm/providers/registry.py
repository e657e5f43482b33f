"""Providers of a tenant, and the models that they list.

A tenant has the operator's providers, a local Ollama that is auto-detected, and those registered at runtime.
`ModelCatalog` caches their lists of models. Parsing of the operator's settings is in the package's `__init__`.
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
from stentor.core.errors import Conflict, InvalidRequest, NotFound, ProviderFault, ProviderTimeout
from stentor.core.runlog import EventDraft, RunLog
from stentor.core.security.redaction import Redactor
from stentor.core.security.sealing import Sealer
from stentor.domains.llm import store
from stentor.domains.llm.formats.base import FormatName
from stentor.domains.llm.providers import KNOWN_PROVIDERS, LOCAL_OLLAMA_URL, Provider, ProviderDefaults, normalize_url
from stentor.domains.llm.providers.transport import ProviderTransport
from stentor.domains.llm.store import ProviderRow

MAX_PROVIDERS = 100
"""Providers that a tenant may register."""
REGISTRATION_CACHE_SECONDS = 1.0
"""Delay until this process sees a registration of another process."""
OLLAMA_PROBE_SECONDS = 30.0
"""Seconds between probes for a local Ollama."""
LISTING_CACHE_SECONDS = 300.0
FAILED_LISTING_CACHE_SECONDS = 10.0
"""Applies to a provider that is down or lists no model."""
REFRESH_SECONDS = 0.5
"""How long a request waits for a newer list of models where an older one is known: a provider may hang."""
MAX_CACHED_LISTINGS = 1_000
EXTRACTIVE_MODEL = "extractive"
LOCAL_MODELS = EXTRACTIVE_MODEL, "embedding"
LOCAL_PROVIDER = Provider("local", "openai", "local:", default_model=EXTRACTIVE_MODEL, is_operator_owned=True)


class ProviderDraft(msgspec.Struct, frozen=True):
    """Fields of a registration; None keeps the stored value."""

    name: str
    key: str | None = None
    base_url: str | None = None
    default_model: str | None = None
    format: FormatName | None = None


class ProviderRegistry:
    """Registry of providers. `check` raises for a base address that callers of the API may not use."""

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
        self._probed_at: float | None = None
        self._probing = asyncio.Lock()
        self._detected: dict[str, Provider] = {}
        self._cached: dict[str, tuple[float, dict[str, Provider]]] = {}
        """All providers of a tenant, and when they were read."""
        self._reading: dict[str, asyncio.Task[dict[str, Provider]]] = {}
        self.listeners: list[Callable[[], None]] = []
        """Called after a provider was registered, changed or removed here; they must return at once."""

    async def providers_of(self, tenant: str) -> dict[str, Provider]:
        """Return the providers by name. A registered one replaces a detected Ollama, but not the operator's."""
        if self._find_ollama and not self._is_probe_recent():
            await self._probe_ollama()
        read_at, providers = self._cached.get(tenant, (-REGISTRATION_CACHE_SECONDS, {}))
        if time.monotonic() - read_at < REGISTRATION_CACHE_SECONDS:
            return providers
        reading = self._reading.get(tenant)
        if reading is None:
            reading = self._reading[tenant] = asyncio.create_task(self._read(tenant))
        # Others wait for it too: it must not end with a caller that leaves.
        return await asyncio.shield(reading)

    async def register(self, tenant: str, draft: ProviderDraft, by: str) -> Provider:
        """Add or change a provider. A new base address deletes the key, unless the draft has a new key too.

        Raises Conflict for the key, the address or the format of a provider of the operator's environment.
        """
        if draft.name == LOCAL_PROVIDER.name:
            raise Conflict("The name 'local' is reserved for the local baseline. Choose another name.")
        if draft.name in self._operators and (draft.key or draft.base_url or draft.format):
            raise Conflict(
                f"The provider {draft.name!r} is configured by the operator's environment, and a registration cannot "
                "replace it. Register another name with its own baseUrl, or have the operator change the environment."
            )
        base_url = None if draft.base_url is None else normalize_url(draft.base_url)
        if base_url is not None:
            self._check(base_url)

        def work(tx: Tx) -> ProviderRow:
            rows = {row.name: row for row in store.list_providers(tx, tenant)}
            if draft.name not in rows and len(rows) >= MAX_PROVIDERS:
                raise Conflict(f"This tenant has {MAX_PROVIDERS} providers, which is the limit. Remove one first.")
            row = self._merge(tenant, rows.get(draft.name), draft, base_url)
            store.upsert_provider(tx, tenant, row)
            meta = {
                "provider": row.name,
                "base_url": redact_url(row.base_url),
                "key_set": bool(row.sealed_key),
                "by": by,
            }
            event = EventDraft("provider_changed", "llm", f"Provider {row.name} registered or changed.", meta)
            self._runlog.append(tx, tenant, [event])
            return row

        row = await self._db.write(work)
        self._forget(tenant)
        return self._provider(tenant, row)

    async def remove(self, tenant: str, name: str, by: str) -> None:
        """Delete a registered provider and its key. Raises NotFound."""

        def work(tx: Tx) -> None:
            if not store.delete_provider(tx, tenant, name):
                raise NotFound(
                    f"No registered provider {name!r}. Only the operator can remove those of the environment."
                )
            meta = {"provider": name, "removed": True, "by": by}
            self._runlog.append(tx, tenant, [EventDraft("provider_changed", "llm", f"Provider {name} removed.", meta)])

        await self._db.write(work)
        self._forget(tenant)

    def _forget(self, tenant: str) -> None:
        # The next call of this process must use the new registration, which a read under way may have missed.
        self._cached.pop(tenant, None)
        self._reading.pop(tenant, None)
        for listener in self.listeners:
            listener()

    def _merge(self, tenant: str, row: ProviderRow | None, draft: ProviderDraft, base_url: str | None) -> ProviderRow:
        before = row or ProviderRow(draft.name, "", "", None, "")
        format_ = draft.format or before.format or self._default(draft.name).format
        after = msgspec.structs.replace(before, format=format_, base_url=base_url or before.base_url)
        if draft.default_model is not None:
            after = msgspec.structs.replace(after, default_model=draft.default_model)
        address = self._address(after)
        if not address:
            raise InvalidRequest(f"The provider {draft.name!r} has no known base address. Set baseUrl.")
        if draft.key:
            # The address is part of the seal: a row that is pointed elsewhere cannot be opened.
            sealed: str | None = self._sealer.seal(draft.key, tenant, draft.name, address)
        else:
            # A key must never be sent to an address other than the one it was stored for.
            sealed = before.sealed_key if row is not None and self._address(row) == address else None
        return msgspec.structs.replace(after, sealed_key=sealed)

    async def _read(self, tenant: str) -> dict[str, Provider]:
        try:
            rows = await self._db.read(lambda tx: store.list_providers(tx, tenant))
        finally:
            if is_latest := self._reading.get(tenant) is asyncio.current_task():
                del self._reading[tenant]
        registered = {row.name: self._provider(tenant, row) for row in rows}
        # `registered` comes last but cannot replace an operator's provider: `_provider` keeps that one's address and
        # key.
        providers = {**self._detected, **self._operators, **registered}
        if is_latest:
            self._cached[tenant] = (time.monotonic(), providers)
        return providers

    def _provider(self, tenant: str, row: ProviderRow) -> Provider:
        configured = self._operators.get(row.name)
        if configured is not None:  # the row can be older than the operator's configuration
            return replace(configured, default_model=row.default_model or configured.default_model)
        address = self._address(row)
        key = (self._sealer.open(row.sealed_key, tenant, row.name, address) if row.sealed_key else None) or ""
        # A row without its own address configures the detected Ollama, whose loopback address is private.
        is_operator_owned = not row.base_url and row.name in self._detected
        if key and self._redactor is not None:
            # A key from the database is not among the secrets that the start has registered.
            self._redactor.add_secret(key)
        return Provider(
            row.name,
            cast(FormatName, row.format),
            address,
            key,
            row.default_model,
            is_operator_owned=is_operator_owned,
        )

    def _address(self, row: ProviderRow) -> str:
        return row.base_url or self._default(row.name).base_url

    def _default(self, name: str) -> ProviderDefaults:
        configured = self._operators.get(name) or self._detected.get(name)
        if configured is not None:
            return ProviderDefaults(configured.format, configured.base_url)
        return KNOWN_PROVIDERS.get(name, ProviderDefaults())

    async def _probe_ollama(self) -> None:
        """Check whether an Ollama runs on this machine, at most every OLLAMA_PROBE_SECONDS.

        Calls during the first probe wait for it; during a later one they use what the one before it found.
        """
        if self._probed_at is not None and self._probing.locked():
            return
        async with self._probing:
            if self._is_probe_recent():  # probed by the call that this one waited for
                return
            ollama = Provider("ollama", "openai", LOCAL_OLLAMA_URL, is_operator_owned=True)
            try:
                # A list of models, not only an open port: another server may listen there.
                await self._transport.list_models(ollama)
            except ProviderTimeout:
                pass  # an Ollama that was found before is probably busy
            except ProviderFault:
                self._detected = {}
            else:
                self._detected = {"ollama": ollama}
            self._cached.clear()
            self._probed_at = time.monotonic()

    def _is_probe_recent(self) -> bool:
        return self._probed_at is not None and time.monotonic() - self._probed_at < OLLAMA_PROBE_SECONDS


def redact_url(url: str) -> str:
    """Remove credentials, query and fragment from a base address."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


class ProviderListing(msgspec.Struct, frozen=True):
    """Models of a provider at a time; `models` is None if the provider was not reachable."""

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
    """Cache of the providers' lists of models. `local` are the models of the local baseline."""

    def __init__(self, transport: ProviderTransport, local: tuple[str, ...] = ()) -> None:
        self._transport = transport
        self._local = local
        self._listings: dict[Provider, ProviderListing] = {}
        self._fetching: dict[Provider, asyncio.Task[ProviderListing]] = {}

    async def close(self) -> None:
        fetching = list(self._fetching.values())
        for task in fetching:
            task.cancel()
        await asyncio.gather(*fetching, return_exceptions=True)

    async def listings(self, providers: Iterable[Provider], *, live: bool = False) -> list[ProviderListing]:
        """Return one listing per provider; `live` requests those again that were reachable, however long it takes."""
        return list(await asyncio.gather(*(self._listing(provider, live=live) for provider in providers)))

    async def _listing(self, provider: Provider, *, live: bool) -> ProviderListing:
        cached = self._listings.get(provider)
        if cached is not None and not cached.is_stale and not (live and cached.is_reachable):
            return cached
        fetching = self._fetching.get(provider)
        if fetching is None:
            fetching = self._fetching[provider] = asyncio.create_task(self._refresh(provider))
        if cached is None or live:
            # Others wait for it too: it must not end with a caller that leaves.
            return await asyncio.shield(fetching)
        await asyncio.wait([fetching], timeout=REFRESH_SECONDS)
        return fetching.result() if fetching.done() else cached

    async def _refresh(self, provider: Provider) -> ProviderListing:
        try:
            listing = await self._fetch(provider)
        finally:
            del self._fetching[provider]
        # A provider with a changed key or address is a new entry, and its old one is never removed.
        if len(self._listings) >= MAX_CACHED_LISTINGS:
            self._listings.clear()
        self._listings[provider] = listing
        return listing

    async def _fetch(self, provider: Provider) -> ProviderListing:
        started = time.monotonic()
        try:
            models: tuple[str, ...] | None = (
                self._local if provider == LOCAL_PROVIDER else tuple(await self._transport.list_models(provider))
            )
        except ProviderFault as fault:
            # A provider without this endpoint, or one that rejects the key, is reachable all the same.
            models = () if fault.upstream_status is not None and fault.upstream_status < 500 else None
        now = time.monotonic()
        return ProviderListing(provider, models, round((now - started) * 1000), now)
