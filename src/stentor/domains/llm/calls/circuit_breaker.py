"""The circuit breaker, which rejects calls to a provider that fails. `call_guard` asks here."""

from __future__ import annotations

import msgspec

from stentor.core.clock import SECOND, Clock
from stentor.core.errors import ProviderBusy, ProviderFault, ProviderTimeout, ProviderUnreachable
from stentor.domains.llm.providers import Provider

FAILURE_THRESHOLD = 5
"""Failures in a row that open the circuit."""
COOLDOWN_SECONDS = 30


class _CircuitState(msgspec.Struct):
    failures: int = 0
    open_until: int = 0
    is_probing: bool = False
    """A call that tests the provider after the cooldown is running; no other may start."""


class CircuitBreaker:
    """Circuit breaker per tenant and provider, in the memory of this process.

    After FAILURE_THRESHOLD outages in a row it rejects calls for COOLDOWN_SECONDS, then lets one call test the
    provider. Failures of one tenant's calls never reject those of another.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._states: dict[tuple[str, str, str], _CircuitState] = {}

    def before_call(self, tenant: str, provider: Provider) -> None:
        """Reserve the right to call. Raises ProviderUnreachable while the circuit is open."""
        name = provider.name
        # The address is part of the key: a corrected address must not inherit the failures of the wrong one.
        state = self._states.get((tenant, name, provider.base_url))
        if state is None or state.failures < FAILURE_THRESHOLD:
            return
        remaining = self._remaining(state)
        if remaining > 0 or state.is_probing:
            fault = ProviderUnreachable(f"The provider {name} is paused after {state.failures} failures. Retry later.")
            fault.retry_after = max(1, remaining // SECOND)
            # The model `auto` counts a failure as evidence only if the provider was really called.
            fault.was_called = False
            raise fault
        state.is_probing = True

    def is_open(self, tenant: str, provider: Provider) -> bool:
        """Return whether a call would be rejected now."""
        state = self._states.get((tenant, provider.name, provider.base_url))
        if state is None or state.failures < FAILURE_THRESHOLD:
            return False
        return state.is_probing or self._remaining(state) > 0

    def count_open(self) -> int:
        """Return how many circuits are open."""
        states = list(self._states.values())
        return sum(state.failures >= FAILURE_THRESHOLD and self._remaining(state) > 0 for state in states)

    def _remaining(self, state: _CircuitState) -> int:
        """Return how long the circuit stays open, in microseconds; at most the cooldown, if the clock was set back."""
        now = self._clock.now()
        state.open_until = min(state.open_until, now + COOLDOWN_SECONDS * SECOND)
        return state.open_until - now

    def after_call(self, tenant: str, provider: Provider, error: BaseException | None) -> None:
        """Record how a call ended that `before_call` allowed; a cancelled call changes no count."""
        circuit = (tenant, provider.name, provider.base_url)
        if circuit in self._states:
            # Also after a cancelled call, which would otherwise keep the circuit open for ever.
            self._states[circuit].is_probing = False
        if error is None or (isinstance(error, ProviderFault) and not _is_outage(error)):
            self._states.pop(circuit, None)
        elif isinstance(error, ProviderFault):  # neither a cancelled call nor a bug of this service
            state = self._states.setdefault(circuit, _CircuitState())
            state.failures += 1
            state.open_until = self._clock.now() + COOLDOWN_SECONDS * SECOND


def _is_outage(fault: ProviderFault) -> bool:
    """Return whether the provider itself fails, as opposed to rejecting this request or this key."""
    if isinstance(fault, ProviderBusy):
        return False
    is_unavailable = isinstance(fault, ProviderUnreachable | ProviderTimeout)
    return is_unavailable or fault.upstream_status is None or fault.upstream_status >= 500
