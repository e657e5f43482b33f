"""Health checks of components. A component that this installation does not have is disabled, not unavailable."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Literal

import msgspec

from stentor.core.db import NO_LOCKS, Database, Tx, idempotency
from stentor_vault.notes.model import Vault

log = logging.getLogger(__name__)
ComponentStatus = Literal["available", "unavailable", "disabled"]
CHECK_SECONDS = 2.0
CACHE_SECONDS = 1.0
"""The health routes are public, so checks run at most this often, however many callers there are."""


class HealthComponent(msgspec.Struct, frozen=True):
    status: ComponentStatus
    detail: str | None
    latency_ms: float | None = None

    @property
    def without_details(self) -> HealthComponent:
        """The public form: details of a component would help an attacker."""
        return HealthComponent(self.status, None)


Check = Callable[[], Awaitable[HealthComponent]]


class HealthService:
    """Runs the checks and caches the results; readiness ignores the `optional_components`."""

    def __init__(self, checks: Mapping[str, Check], optional_components: Iterable[str] = ()) -> None:
        self._checks = dict(checks)
        self._optional = frozenset(optional_components)
        self._last: dict[str, HealthComponent] = {}
        self._at = float("-inf")
        self._lock = asyncio.Lock()
        self.is_stopping = False
        """Set while the process stops, so that load balancers send nothing more."""

    def set_check(self, name: str, check: Check) -> None:
        """Replace the check of a component."""
        self._checks[name] = check

    async def check_components(self) -> dict[str, HealthComponent]:
        """Return all components by name. Fails closed: a check that raises or times out is unavailable."""
        # Callers that come while the checks run wait for the same result.
        async with self._lock:
            if time.monotonic() - self._at >= CACHE_SECONDS:
                results = await asyncio.gather(*(_run(check) for check in self._checks.values()))
                before, self._last = self._last, {}
                for name, (component, reason) in zip(self._checks, results, strict=True):
                    _log_change(name, before.get(name), component, reason)
                    self._last[name] = component
                self._at = time.monotonic()
            return self._last

    async def is_ready(self) -> bool:
        """Return whether the service takes requests: no required component is unavailable, and it is not stopping."""
        components = await self.check_components()
        return not self.is_stopping and all(
            component.status != "unavailable" for name, component in components.items() if name not in self._optional
        )


async def _run(check: Check) -> tuple[HealthComponent, str | None]:
    """Return the component, and why it is unavailable, which only the log shows."""
    started = time.perf_counter()
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            component = await check()
    except TimeoutError:
        detail = f"no response within {CHECK_SECONDS:g} s"
        return HealthComponent("unavailable", detail), detail
    except Exception as error:  # noqa: BLE001 - fails closed
        # Only the type of the error: its message may hold details that help an attacker.
        return HealthComponent("unavailable", f"the check failed ({type(error).__name__})"), repr(error)
    latency_ms = round((time.perf_counter() - started) * 1000, 3)
    return msgspec.structs.replace(component, latency_ms=latency_ms), component.detail


def _log_change(name: str, before: HealthComponent | None, now: HealthComponent, reason: str | None) -> None:
    """Log that a component became unavailable or came back: once, not at every check."""
    was_unavailable = before is not None and before.status == "unavailable"
    if now.status == "unavailable" and not was_unavailable:
        log.warning("health: component unavailable component=%s reason=%s", name, reason)
    elif now.status != "unavailable" and was_unavailable:
        log.info("health: component available again component=%s", name)


def database_check(db: Database) -> Check:
    """Return a check that commits a write, so that a full disk shows here before it shows to a caller."""

    def probe(tx: Tx) -> None:
        idempotency.probe_write(tx)
        if db.driver.shared:
            idempotency.probe_disk(tx)

    async def check() -> HealthComponent:
        # A read would still work on a full disk. Both in one transaction: the success of one would end the outage that
        # the failure of the other began.
        await db.write(probe, NO_LOCKS)
        return HealthComponent("available", db.driver.name)

    return check


def vault_check(vault: Vault) -> Check:
    async def check() -> HealthComponent:
        await vault.check()
        return HealthComponent("available", "can be written")

    return check


def fixed_check(status: ComponentStatus, detail: str) -> Check:
    async def check() -> HealthComponent:
        return HealthComponent(status, detail)

    return check
