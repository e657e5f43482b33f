"""The one choke point: nothing reaches a provider but through `admit`, and nothing comes back unrecorded.

Budgets fail closed: when what was spent cannot be read, nothing is spent. So does the record: when it cannot be
written, the caller reads that instead of the answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack

import msgspec

from stentor.core.clock import Clock
from stentor.core.db import Database, Tx
from stentor.core.errors import BudgetExceeded, ProviderUnreachable, StentorError
from stentor.core.runlog import EventDraft, RunLog
from stentor.domains.llm import budgets, store
from stentor.domains.llm.breaker import Breaker
from stentor.domains.llm.budgets import NANO, Budget, Kind, Spent
from stentor.domains.llm.evidence import Evidence
from stentor.domains.llm.figures import Calls
from stentor.domains.llm.model import Operation, Usage
from stentor.domains.llm.prices import Prices
from stentor.domains.llm.providers import Provider
from stentor.domains.llm.routes import Target
from stentor.domains.llm.spans import NO_SPAN, CallStart, NoSpans, Span, Spans
from stentor.domains.llm.store import CallRow

MOST_TOKENS = 2**40
"""What a provider counts beyond is its error, and no reason to lose the record."""
log = logging.getLogger(__name__)
Estimate = Callable[[], Usage]


class Caller(msgspec.Struct, frozen=True):
    """For whom a call is made. `parent` is the event of the run log that led to it."""

    tenant: str
    key: str
    agent_id: str | None = None
    task_id: str | None = None
    parent: str | None = None

    @property
    def subjects(self) -> list[tuple[Kind, str]]:
        found: list[tuple[Kind, str]] = [("key", self.key)]
        return [*found, ("agent", self.agent_id)] if self.agent_id else found


class Passage:
    """One call that was let through; exactly one of `done` and `failed` ends it."""

    def __init__(self, gate: Gate, caller: Caller, target: Target, operation: Operation) -> None:
        self._gate = gate
        self.caller, self.target, self.operation = caller, target, operation
        self.reserved: Spent | None = None
        self.evidence = Evidence(content=gate.keep_content, tenant=caller.tenant)
        self._span: Span = NO_SPAN

    def begin(self, spans: Spans, now: int) -> None:
        caller, call_id = self.caller, self.evidence.call_id
        call = CallStart(self.operation, self.target, now, call_id, caller.tenant, caller.agent_id, caller.task_id)
        self._span = spans.begin(call)
        self.evidence.traceparent = self._span.traceparent

    async def done(self, usage: Usage) -> None:
        """Raises StoreUnavailable when the record cannot be written."""
        self._gate.ended(self, None)
        self._span.end(_bounded(usage), response_id=self.evidence.response_id)
        await self._gate.settle(self, usage, "ok")

    async def failed(self, error: BaseException, usage: Usage | None = None) -> None:
        """Recorded as well as it can be: the failure itself goes on. A cancelled caller waits for nothing."""
        self._gate.ended(self, error)
        outcome = error.code if isinstance(error, StentorError) else "CANCELLED" if _given_up(error) else "FAILED"
        counted = usage and _bounded(usage)
        self._span.end(counted, response_id=self.evidence.response_id, error_type=outcome)
        work = self._gate.keep(self, usage or Usage(), outcome)
        if not _given_up(error):
            await work


def _given_up(error: BaseException) -> bool:
    return isinstance(error, asyncio.CancelledError | GeneratorExit)


class Gate:
    def __init__(
        self,
        db: Database,
        clock: Clock,
        runlog: RunLog,
        breaker: Breaker,
        prices: Prices,
        limits: tuple[Budget, ...] = (),
        spans: Spans | None = None,
        *,
        keep_content: bool = False,
    ) -> None:
        self._db = db
        self._clock = clock
        self._runlog = runlog
        self._breaker = breaker
        self._prices = prices
        self._budgets = limits
        self._spans = spans or NoSpans()
        self._reserved: dict[tuple[str, Kind, str], Spent] = {}
        self._accounts: dict[tuple[str, Kind, str], asyncio.Lock] = {}
        self._records: set[asyncio.Task[None]] = set()
        self.keep_content = keep_content
        self.calls = Calls(breaker)

    async def admit(self, caller: Caller, target: Target, operation: Operation, expected: Estimate) -> Passage:
        """`expected` is asked for only where a budget is. Raises BudgetSpent, or ProviderUnreachable while it rests."""
        await self._prices.ready()
        passage = Passage(self, caller, target, operation)
        try:
            if self._budgets:
                await self._let_in_within_budgets(passage, expected())
            else:
                self._let_in(passage)
        except (BudgetExceeded, ProviderUnreachable) as error:
            self.calls.refused(error)
            raise
        passage.begin(self._spans, self._clock.now())
        return passage

    async def _let_in_within_budgets(self, passage: Passage, expected: Usage) -> None:
        caller, target = passage.caller, passage.target
        cost = self._prices.cost(target.provider.name, target.model, expected) or 0
        async with AsyncExitStack() as accounts:
            for kind, subject in caller.subjects:
                await self._check_account(accounts, caller.tenant, kind, subject)
            self._let_in(passage)
            passage.reserved = Spent(_total(expected), cost)
            self._reserve(passage, 1)

    def _let_in(self, passage: Passage) -> None:
        self._breaker.enter(passage.caller.tenant, passage.target.provider)

    async def _check_account(self, accounts: AsyncExitStack, tenant: str, kind: Kind, subject: str) -> None:
        """One call at a time looks at an account, from the look to what it reserves."""
        applying = [budget for budget in self._budgets if budget.applies(kind, subject)]
        if applying:
            await accounts.enter_async_context(self._accounts.setdefault((tenant, kind, subject), asyncio.Lock()))
        for budget in applying:
            await self._check(tenant, budget, kind, subject)

    async def _check(self, tenant: str, budget: Budget, kind: Kind, subject: str) -> None:
        # Before the look at the rows: what is settled meanwhile counts twice for a moment, never not at all.
        open_ = self._reserved.get((tenant, kind, subject), Spent())

        def read(tx: Tx) -> tuple[Spent, int]:
            first = budgets.first_day(budget.period, tx.now)
            return store.spent(tx, tenant, kind, subject, first), budgets.seconds_left(budget.period, tx.now)

        known, wait = await self._db.read(read)
        if budget.left(Spent(known.tokens + open_.tokens, known.cost + open_.cost)) <= 0:
            unit = "tokens" if budget.unit == "tokens" else "money"
            raise _spent(f"The {unit} that {kind} {subject!r} may spend in a {budget.period} are spent.", wait)

    def rests(self, tenant: str, provider: Provider) -> bool:
        """Whether the provider is left alone now."""
        return self._breaker.rests(tenant, provider)

    async def money_left(self, caller: Caller) -> float | None:
        """US dollars that the caller may still spend, of the budget that has least; None where no budget is of money.

        Raises StoreUnavailable.
        """
        accounts = [
            (kind, subject, budget)
            for kind, subject in caller.subjects
            for budget in self._budgets
            if budget.unit == "usd" and budget.applies(kind, subject)
        ]
        if not accounts:
            return None

        def read(tx: Tx) -> int:
            left = []
            for kind, subject, budget in accounts:
                first = budgets.first_day(budget.period, tx.now)
                left.append(budget.left(store.spent(tx, caller.tenant, kind, subject, first)))
            return min(left)

        return await self._db.read(read) / NANO

    def ended(self, passage: Passage, error: BaseException | None) -> None:
        self._breaker.left(passage.caller.tenant, passage.target.provider, error)

    def _reserve(self, passage: Passage, sign: int) -> None:
        """What calls that are under way will probably spend, so that many at once do not pass a budget together."""
        if passage.reserved is None:
            return
        tokens, cost = passage.reserved.tokens * sign, passage.reserved.cost * sign
        for kind, subject in passage.caller.subjects:
            at = (passage.caller.tenant, kind, subject)
            known = self._reserved.get(at, Spent())
            self._reserved[at] = Spent(known.tokens + tokens, known.cost + cost)
            if self._reserved[at] == Spent():
                del self._reserved[at]

    async def settle(self, passage: Passage, usage: Usage, outcome: str) -> None:
        """The call's row and its evidence, in one transaction; then nothing is reserved for it any more."""
        try:
            await self._record(passage, usage, outcome)
        finally:
            self._reserve(passage, -1)

    async def _record(self, passage: Passage, usage: Usage, outcome: str) -> None:
        usage = _bounded(usage)
        row, draft = self._row(passage, usage, outcome), _draft(passage, usage, outcome)
        caller = passage.caller
        self.calls.ended(passage.target.provider, row)

        def work(tx: Tx) -> None:
            store.record(tx, row)
            self._runlog.append(tx, caller.tenant, [draft], task_id=caller.task_id, parent=caller.parent)

        await self._db.write(work, ())

    def keep(self, passage: Passage, usage: Usage, outcome: str) -> asyncio.Task[None]:
        """`settle` in the background, whoever leaves; it only logs when it cannot be written."""

        async def work() -> None:
            try:
                await self.settle(passage, usage, outcome)
            except StentorError as error:
                log.warning("a call of a provider that failed could not be recorded: %s", error.message)

        task = asyncio.create_task(work())
        self._records.add(task)
        task.add_done_callback(self._records.discard)
        return task

    async def close(self) -> None:
        """Wait for what is still being recorded, and for a moment for the last spans."""
        await asyncio.gather(*self._records, return_exceptions=True)
        await self._spans.close()

    def _row(self, passage: Passage, usage: Usage, outcome: str) -> CallRow:
        caller, target = passage.caller, passage.target
        return CallRow(
            call_id=passage.evidence.call_id,
            tenant=caller.tenant,
            key_name=caller.key,
            agent_id=caller.agent_id,
            task_id=caller.task_id,
            operation=passage.operation,
            provider=target.provider.name,
            model=target.model,
            outcome=outcome,
            input_tokens=usage.input_tokens,
            output_tokens=usage.output_tokens,
            estimated=int(usage.estimated),
            cost=self._prices.cost(target.provider.name, target.model, usage),
            latency_ms=passage.evidence.latency_ms,
        )


def _draft(passage: Passage, usage: Usage, outcome: str) -> EventDraft:
    target, evidence = passage.target, passage.evidence
    meta = {
        **evidence.redacted(),
        "provider": target.provider.name,
        "model": target.model,
        "operation": passage.operation,
        "outcome": outcome,
        "key": passage.caller.key,
        "usage": msgspec.to_builtins(usage),
    }
    message = f"Called {target.name}: {outcome}."
    agent, latency = passage.caller.agent_id, evidence.latency_ms
    return EventDraft("llm_called", "llm", message, meta, agent, latency, event_id=evidence.call_id)


def _total(usage: Usage) -> int:
    return usage.input_tokens + usage.output_tokens


def _bounded(usage: Usage) -> Usage:
    most = {
        "input_tokens": min(usage.input_tokens, MOST_TOKENS),
        "output_tokens": min(usage.output_tokens, MOST_TOKENS),
    }
    return msgspec.structs.replace(usage, **most)


def _spent(message: str, wait: int) -> BudgetExceeded:
    error = BudgetExceeded(message)
    error.retry_after = wait
    return error
