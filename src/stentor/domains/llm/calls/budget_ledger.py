"""The budgets in force, which may reject a call before it starts. `call_guard` asks here.

Fails closed: no call if its budgets cannot be read. What a budget is, is in `costs`; those that admins set at runtime
come from `runtime_settings`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from weakref import WeakValueDictionary

from stentor.core.clock import format_duration
from stentor.core.db import Database, Tx
from stentor.core.errors import BudgetExceeded
from stentor.domains.llm import costs, store
from stentor.domains.llm.costs import NANOS_PER_DOLLAR, Budget, BudgetAccount, BudgetPeriod, SpentAmount, TaskBudget

RESERVED_RETRY_SECONDS = 5
"""Retry-After if only calls in progress use up a budget."""
TASK_RETRY_SECONDS = 86_400
"""Retry-After if the budget of a task is used up. It never resets, but the header is promised, and a long time keeps
clients from trying again."""
_PERIOD_ADJECTIVES = {"day": "daily", "month": "monthly"}
ApplicableBudget = tuple[BudgetAccount, Budget | TaskBudget]
"""A budget that applies to a call, after the account of the call that it limits."""


class BudgetLedger:
    """Knows all budgets. A call must stay within each that applies to it: another budget never raises a limit."""

    def __init__(self, db: Database, configured: tuple[Budget, ...]) -> None:
        self._spending = SpendingReader(db)
        self._configured = configured
        self._of_keys: tuple[Budget, ...] = ()
        self._stored: tuple[Budget, ...] = ()
        # Weak: there would be an entry for every task with a budget, and for every agent that ever called a model.
        self._reserved: WeakValueDictionary[BudgetAccount, _ReservedAmount] = WeakValueDictionary()

    @property
    def budgets(self) -> tuple[Budget, ...]:
        """The budgets of the settings, of the keys that were made at runtime, and those that admins set."""
        return self._configured + self._of_keys + self._stored

    def set_key_budgets(self, budgets: Iterable[Budget]) -> None:
        self._of_keys = tuple(budgets)

    def set_stored_budgets(self, budgets: Iterable[Budget]) -> None:
        self._stored = tuple(budgets)

    def find_applicable(
        self, accounts: Iterable[BudgetAccount], of_tasks: tuple[TaskBudget, ...] = ()
    ) -> list[ApplicableBudget]:
        """Return the budgets that apply to the accounts, in the order of the accounts."""
        budgets = self.budgets + of_tasks
        # Most installations have no budgets, and this is asked before every call.
        if not budgets:
            return []
        return [(account, budget) for account in accounts for budget in budgets if budget.applies_to(account)]

    async def check(self, applicable: Sequence[ApplicableBudget]) -> None:
        """Raise BudgetExceeded if spent and reserved amounts use up one of the budgets.

        Calls that are checked at the same time cannot exceed a budget together if each reserves its estimate after the
        check without awaiting anything in between.
        """
        # A call that ends while the rows are read counts as reserved, too: twice for a moment, but never zero times.
        before = [(reserved := self._reserved_amount(account), reserved.removed) for account, _ in applicable]
        spent, now = await self._spending.read(applicable)
        for (account, budget), (reserved, removed) in zip(applicable, before, strict=True):
            amount = spent[_spending_key(account, budget)]
            in_progress = reserved.added.minus(removed)
            if budget.remaining(amount.plus(in_progress)) <= 0:
                raise _exceeded(account, budget, is_spent=budget.remaining(amount) <= 0, now=now)

    def reserve(self, accounts: Iterable[BudgetAccount], amount: SpentAmount) -> BudgetReservation:
        """Add a call's estimate to the reserved amounts, until the reservation is released.

        Open calls count against budgets through these amounts, so that many at once cannot exceed one together.
        """
        return BudgetReservation([self._reserved_amount(account) for account in accounts], amount)

    async def remaining_dollars(
        self, accounts: Iterable[BudgetAccount], of_tasks: tuple[TaskBudget, ...]
    ) -> float | None:
        """Return the US dollars left in the tightest budget of the accounts; None without a budget in US dollars.

        Raises StoreUnavailable.
        """
        applicable = [
            (account, budget) for account, budget in self.find_applicable(accounts, of_tasks) if budget.unit == "usd"
        ]
        if not applicable:
            return None
        spent, _ = await self._spending.read(applicable)
        left = min(budget.remaining(spent[_spending_key(account, budget)]) for account, budget in applicable)
        return left / NANOS_PER_DOLLAR

    def _reserved_amount(self, account: BudgetAccount) -> _ReservedAmount:
        reserved = self._reserved.get(account)
        if reserved is None:
            reserved = self._reserved[account] = _ReservedAmount()
        return reserved


class _ReservedAmount:
    """What the calls of an account have reserved: all of it since the first of them, and what was removed again."""

    __slots__ = ("__weakref__", "added", "removed")

    def __init__(self) -> None:
        self.added = self.removed = SpentAmount()


class BudgetReservation:
    """The estimate of a call in progress."""

    def __init__(self, reserved: list[_ReservedAmount], amount: SpentAmount) -> None:
        self._reserved, self._amount = reserved, amount
        for one in reserved:
            one.added = one.added.plus(amount)

    def release(self) -> None:
        """Remove the estimate, after what the call really cost is stored. Must be called once."""
        for one in self._reserved:
            one.removed = one.removed.plus(self._amount)


SpendingKey = tuple[BudgetAccount, BudgetPeriod | None]
"""An account and the current day or month; None for a task, whose spending is never reset."""


class SpendingReader:
    """Reads what accounts have spent. Callers that arrive during a read share the next one."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._wanted: set[SpendingKey] = set()
        self._next: asyncio.Task[tuple[dict[SpendingKey, SpentAmount], int]] | None = None
        self._reading = asyncio.Lock()

    async def read(self, applicable: Iterable[ApplicableBudget]) -> tuple[Mapping[SpendingKey, SpentAmount], int]:
        """Return what was spent at some moment after this call began, and the time. Raises StoreUnavailable."""
        self._wanted.update(_spending_key(account, budget) for account, budget in applicable)
        if self._next is None:
            self._next = asyncio.create_task(self._read_wanted())
        # Shielded, because others wait for it as well.
        return await asyncio.shield(self._next)

    async def _read_wanted(self) -> tuple[dict[SpendingKey, SpentAmount], int]:
        async with self._reading:
            wanted, self._wanted, self._next = self._wanted, set(), None
            return await self._db.read(lambda tx: ({one: _read_spent(tx, *one) for one in wanted}, tx.now))


def _spending_key(account: BudgetAccount, budget: Budget | TaskBudget) -> SpendingKey:
    return account, None if isinstance(budget, TaskBudget) else budget.period


def _exceeded(account: BudgetAccount, budget: Budget | TaskBudget, *, is_spent: bool, now: int) -> BudgetExceeded:
    name = _describe_budget(account, budget)
    if not is_spent:
        wait_s, message = RESERVED_RETRY_SECONDS, f"What is left of the {name} is reserved by calls in progress."
    elif isinstance(budget, TaskBudget):
        wait_s, message = TASK_RETRY_SECONDS, f"The {name} is used up."
    else:
        wait_s = costs.seconds_until_reset(budget.period, now)
        message = f"The {name} is used up. It resets in {format_duration(wait_s * 1000)}."
    error = BudgetExceeded(message)
    error.retry_after = wait_s
    error.is_outage = is_spent and account[1] not in ("key", "team", "task")
    return error


def _describe_budget(account: BudgetAccount, budget: Budget | TaskBudget) -> str:
    _, kind, subject = account
    if isinstance(budget, TaskBudget):
        return f"cost budget of {budget.max_cost_usd:g} US dollars of task {subject!r} and its subtasks"
    unit = "token" if budget.unit == "tokens" else "cost"
    return f"{_PERIOD_ADJECTIVES[budget.period]} {unit} budget of {kind} {subject!r}"


def _read_spent(tx: Tx, account: BudgetAccount, period: BudgetPeriod | None) -> SpentAmount:
    if period is None:
        tenant, _, task_id = account
        return SpentAmount(cost=store.read_spent_by_task(tx, tenant, task_id))
    return store.read_spent(tx, account, costs.first_day_of_period(period, tx.now))
