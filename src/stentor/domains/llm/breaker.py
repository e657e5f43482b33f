"""Leaves a provider alone for a while after it failed several times in a row, then tries it with one call."""

from __future__ import annotations

import msgspec

from stentor.core.clock import SECOND, Clock
from stentor.core.errors import ProviderBusy, ProviderFault, ProviderTimeout, ProviderUnreachable
from stentor.domains.llm.providers import Provider

FAILURES = 5
REST = 30
"""Seconds."""


class _State(msgspec.Struct):
    failures: int = 0
    rests_until: int = 0
    trying: bool = False


class Breaker:
    """Counted in this process, per tenant and provider: what one tenant's calls run into rests nobody else's."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._states: dict[tuple[str, str, str], _State] = {}

    def enter(self, tenant: str, provider: Provider) -> None:
        """Raises ProviderUnreachable while the provider rests."""
        name = provider.name
        state = self._states.setdefault((tenant, name, provider.base_url), _State())
        if state.failures < FAILURES:
            return
        left = state.rests_until - self._clock.now()
        if left > 0 or state.trying:
            fault = ProviderUnreachable(f"The provider {name} failed {state.failures} times and is left alone for now.")
            fault.retry_after = max(1, left // SECOND)
            fault.was_called = False
            raise fault
        state.trying = True

    def rests(self, tenant: str, provider: Provider) -> bool:
        """Whether a call would not be let in now."""
        state = self._states.get((tenant, provider.name, provider.base_url))
        if state is None or state.failures < FAILURES:
            return False
        return state.trying or state.rests_until > self._clock.now()

    def resting(self) -> int:
        """How many providers are left alone now."""
        now = self._clock.now()
        return sum(state.failures >= FAILURES and state.rests_until > now for state in list(self._states.values()))

    def left(self, tenant: str, provider: Provider, error: BaseException | None) -> None:
        """How a call that entered has ended; what was given up says nothing."""
        at = (tenant, provider.name, provider.base_url)
        state = self._states.setdefault(at, _State())
        state.trying = False
        if error is None or (isinstance(error, ProviderFault) and not _outage(error)):
            self._states.pop(at)
        elif isinstance(error, ProviderFault):
            state.failures += 1
            state.rests_until = self._clock.now() + REST * SECOND


def _outage(fault: ProviderFault) -> bool:
    """Whether it says that the provider itself is in trouble, and not this request or this key."""
    if isinstance(fault, ProviderBusy):
        return False
    unwell = isinstance(fault, ProviderUnreachable | ProviderTimeout)
    return unwell or fault.upstream_status is None or fault.upstream_status >= 500
