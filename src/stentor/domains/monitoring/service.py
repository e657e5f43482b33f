"""Component checks. A component that is not part of this installation is disabled, not unavailable."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Literal

import msgspec

from stentor.core.db import Database, Sql
from stentor.domains.notes.model import Vault
from stentor.domains.registry.agent_cache import AgentCache

Status = Literal["available", "unavailable", "disabled"]
CHECK_SECONDS = 2.0
KEPT_SECONDS = 1.0
"""Health is public: its checks are run at most this often, whoever asks."""

_PROBE = Sql("delete from idempotency_keys where created_at < 0")


class Component(msgspec.Struct, frozen=True):
    status: Status
    detail: str | None
    latency_ms: float | None = None

    @property
    def bare(self) -> Component:
        """As everybody may see it: what is behind a component helps an attacker."""
        return Component(self.status, None)


Check = Callable[[], Awaitable[Component]]


class Health:
    """`apart` are components without which the service still takes requests: ready does not ask for them."""

    def __init__(self, checks: Mapping[str, Check], apart: Iterable[str] = ()) -> None:
        self._checks = dict(checks)
        self._apart = frozenset(apart)
        self._last: dict[str, Component] = {}
        self._at = float("-inf")
        self._lock = asyncio.Lock()
        self.leaving = False
        """Whether nothing more should be sent here, because the process is being stopped."""

    def check(self, name: str, check: Check) -> None:
        """From now on this is how the component is asked."""
        self._checks[name] = check

    async def components(self) -> dict[str, Component]:
        """All components by name. Fails closed: a check that raises or hangs is unavailable."""
        async with self._lock:
            if time.monotonic() - self._at >= KEPT_SECONDS:
                found = await asyncio.gather(*(_run(check) for check in self._checks.values()))
                self._last = dict(zip(self._checks, found, strict=True))
                self._at = time.monotonic()
            return self._last

    async def ready(self) -> bool:
        found = await self.components()
        return not self.leaving and all(
            c.status != "unavailable" for name, c in found.items() if name not in self._apart
        )


async def _run(check: Check) -> Component:
    started = time.perf_counter()
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            component = await check()
    except TimeoutError:
        return Component("unavailable", f"no answer within {CHECK_SECONDS:g} s")
    except Exception as error:  # noqa: BLE001
        # The reason goes to the operator's log; this route is public.
        return Component("unavailable", f"the check failed ({type(error).__name__})")
    return msgspec.structs.replace(component, latency_ms=round((time.perf_counter() - started) * 1000, 3))


def database_check(db: Database) -> Check:
    """A real write transaction: a full disk is found here before a caller finds it."""

    async def check() -> Component:
        await db.write(lambda tx: tx.run(_PROBE), ())
        return Component("available", db.driver.name)

    return check


def vault_check(vault: Vault) -> Check:
    async def check() -> Component:
        await vault.check()
        return Component("available", "can be written")

    return check


def agents_check(snapshot: AgentCache) -> Check:
    async def check() -> Component:
        return Component("available", f"{len(snapshot)} registered")

    return check


def fixed(status: Status, detail: str) -> Check:
    async def check() -> Component:
        return Component(status, detail)

    return check
