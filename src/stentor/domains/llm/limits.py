"""What may reject a call before it starts: the budgets in force, and the circuit breaker. `call_guard` asks here.

Fails closed: no call if its budgets cannot be read. What a budget is, is in `costs`; those that admins set at runtime
come from `runtime_settings`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from weakref import WeakValueDictionary

import msgspec

from stentor.core.clock import SECOND, Clock, format_duration
from stentor.core.db import Database, Tx
from stentor.core.errors import BudgetExceeded, ProviderBusy, ProviderFault, ProviderTimeout, ProviderUnreachable
from stentor.domains.llm import costs, store
from stentor.domains.llm.costs import NANOS_PER_DOLLAR, Budget, BudgetAccount, SpentAmount, TaskBudget
from stentor.domains.llm.providers import Provider

RESERVED_RETRY_SECONDS = 5
"""Retry-After if only calls in progress use up a budget."""
TASK_RETRY_SECONDS = 86_400
"""Retry-After if the budget of a task is used up. It never resets, but the header is promised, and a long time keeps
clients from trying again."""
FAILURE_THRESHOLD = 5
"""Failures in a row that open the circuit."""
COOLDOWN_SECONDS = 30
_PERIOD_ADJECTIVES = {"day": "daily", "month": "monthly"}
Applying = tuple[BudgetAccount, Budget | TaskBudget]
"""An account of a call, and a budget that applies to it."""


class BudgetLedger:
    """Knows all budgets. A call must stay within each that applies to it: another budget never raises a limit."""

    def __init__(self, db: Database, configured: tuple[Budget, ...] = ()) -> None:
        self._db = db
        self._configured = configured
        self._of_keys: tuple[Budget, ...] = ()
        self._stored: tuple[Budget, ...] = ()
        self._reserved: dict[BudgetAccount, SpentAmount] = {}
        # Weak, because every task with a budget has an account of its own.
        self._locks: WeakValueDictionary[BudgetAccount, asyncio.Lock] = WeakValueDictionary()

    @property
    def budgets(self) -> tuple[Budget, ...]:
        """The budgets of the settings, of the keys that were made at runtime, and those that admins set."""
        return self._configured + self._of_keys + self._stored

    def set_key_budgets(self, budgets: Iterable[Budget]) -> None:
        self._of_keys = tuple(budgets)

    def set_stored_budgets(self, budgets: Iterable[Budget]) -> None:
        self._stored = tuple(budgets)

    def find(self, accounts: Iterable[BudgetAccount], of_tasks: tuple[TaskBudget, ...] = ()) -> list[Applying]:
        """Return the budgets that apply to the accounts, in the order of the accounts."""
        budgets = self.budgets + of_tasks
        # Most installations have no budgets, and this is asked before every call.
        if not budgets:
            return []
        return [(account, budget) for account in accounts for budget in budgets if budget.applies_to(account)]

    async def check(self, applying: Sequence[Applying], locks: AsyncExitStack) -> None:
        """Check the budgets, and add the locks of their accounts to `locks`. Raises BudgetExceeded."""
        held = None
        # The accounts of all calls are in the same order, so that two calls cannot deadlock.
        for account, budget in applying:
            if account != held:
                await locks.enter_async_context(self._locks.setdefault(account, asyncio.Lock()))
                held = account
            await self._check(account, budget)

    def reserve(self, accounts: Iterable[BudgetAccount], amount: SpentAmount, sign: int = 1) -> None:
        """Add a call's estimate to the reserved amounts, or with the sign -1 remove it.

        Open calls count against budgets through these amounts, so that many at once cannot exceed one together.
        """
        for account in accounts:
            reserved = self._reserved.get(account, SpentAmount())
            tokens, cost = reserved.tokens + amount.tokens * sign, reserved.cost + amount.cost * sign
            self._reserved[account] = SpentAmount(tokens, cost)
            # Otherwise the dict would keep an entry for every agent that ever called a model.
            if self._reserved[account] == SpentAmount():
                del self._reserved[account]

    async def remaining_dollars(
        self, accounts: Iterable[BudgetAccount], of_tasks: tuple[TaskBudget, ...] = ()
    ) -> float | None:
        """Return the US dollars left in the tightest budget of the accounts; None without a budget in US dollars.

        Raises StoreUnavailable.
        """
        applying = [(account, budget) for account, budget in self.find(accounts, of_tasks) if budget.unit == "usd"]
        if not applying:
            return None

        def read(tx: Tx) -> int:
            return min(budget.remaining(_read_spent(tx, account, budget)) for account, budget in applying)

        return await self._db.read(read) / NANOS_PER_DOLLAR

    async def _check(self, account: BudgetAccount, budget: Budget | TaskBudget) -> None:
        """Raise BudgetExceeded if spent and reserved amounts use up the budget."""
        # Before the rows are read: a call that is recorded meanwhile then counts twice for a moment, never not at all.
        reserved = self._reserved.get(account, SpentAmount())

        def read(tx: Tx) -> tuple[SpentAmount, int]:
            spent = _read_spent(tx, account, budget)
            if isinstance(budget, TaskBudget):
                return spent, TASK_RETRY_SECONDS
            return spent, costs.seconds_until_reset(budget.period, tx.now)

        spent, reset_s = await self._db.read(read)
        if budget.remaining(SpentAmount(spent.tokens + reserved.tokens, spent.cost + reserved.cost)) > 0:
            return
        name, is_spent = _name(account, budget), budget.remaining(spent) <= 0
        if not is_spent:
            error = BudgetExceeded(f"What is left of the {name} is reserved by calls in progress.")
        elif isinstance(budget, TaskBudget):
            error = BudgetExceeded(f"The {name} is used up.")
        else:
            error = BudgetExceeded(f"The {name} is used up. It resets in {format_duration(reset_s * 1000)}.")
        error.retry_after = reset_s if is_spent else RESERVED_RETRY_SECONDS
        error.is_outage = is_spent and account[1] not in ("key", "task")
        raise error


def _name(account: BudgetAccount, budget: Budget | TaskBudget) -> str:
    _, kind, subject = account
    if isinstance(budget, TaskBudget):
        return f"cost budget of {budget.max_cost_usd:g} US dollars of task {subject!r} and its subtasks"
    unit = "token" if budget.unit == "tokens" else "cost"
    return f"{_PERIOD_ADJECTIVES[budget.period]} {unit} budget of {kind} {subject!r}"


def _read_spent(tx: Tx, account: BudgetAccount, budget: Budget | TaskBudget) -> SpentAmount:
    if isinstance(budget, TaskBudget):
        return SpentAmount(cost=store.read_spent_by_task(tx, account[0], budget.task_id))
    return store.read_spent(tx, account, costs.first_day_of_period(budget.period, tx.now))


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
