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
from stentor.domains.llm import costs, store
from stentor.domains.llm.costs import NANOS_PER_DOLLAR, Budget, BudgetKind, PriceList, SpentAmount
from stentor.domains.llm.metrics import CallMetrics
from stentor.domains.llm.model import LlmOperation, TokenUsage
from stentor.domains.llm.model_routes import ModelTarget
from stentor.domains.llm.providers import Provider
from stentor.domains.llm.providers.failures import CircuitBreaker
from stentor.domains.llm.providers.transport import CallEvidence
from stentor.domains.llm.store import CallRow
from stentor.domains.llm.tracing import NOOP_SPAN, CallSpan, CallStart, CallTracer, NoopTracer

MAX_COUNTED_TOKENS = 2**40
"""What a provider counts beyond is its error, and no reason to lose the record."""
log = logging.getLogger(__name__)
UsageEstimate = Callable[[], TokenUsage]


class LlmCaller(msgspec.Struct, frozen=True):
    """For whom a call is made. `parent` is the event of the run log that led to it."""

    tenant: str
    key: str
    agent_id: str | None = None
    task_id: str | None = None
    parent: str | None = None

    @property
    def budget_subjects(self) -> list[tuple[BudgetKind, str]]:
        found: list[tuple[BudgetKind, str]] = [("key", self.key)]
        return [*found, ("agent", self.agent_id)] if self.agent_id else found


class LlmCall:
    """One call that was let through; exactly one of `done` and `failed` ends it."""

    def __init__(self, gate: CallGuard, caller: LlmCaller, target: ModelTarget, operation: LlmOperation) -> None:
        self._gate = gate
        self.caller, self.target, self.operation = caller, target, operation
        self.reserved: SpentAmount | None = None
        self.evidence = CallEvidence(keep_content=gate.keep_content, tenant=caller.tenant)
        self._span: CallSpan = NOOP_SPAN

    def start_span(self, spans: CallTracer, now: int) -> None:
        caller, call_id = self.caller, self.evidence.call_id
        call = CallStart(self.operation, self.target, now, call_id, caller.tenant, caller.agent_id, caller.task_id)
        self._span = spans.start_span(call)
        self.evidence.traceparent = self._span.traceparent

    async def complete(self, usage: TokenUsage) -> None:
        """Raises StoreUnavailable when the record cannot be written."""
        self._gate.on_call_ended(self, None)
        self._span.end(_bounded(usage), response_id=self.evidence.response_id)
        await self._gate.record_and_release(self, usage, "ok")

    async def fail(self, error: BaseException, usage: TokenUsage | None = None) -> None:
        """Recorded as well as it can be: the failure itself goes on. A cancelled caller waits for nothing."""
        self._gate.on_call_ended(self, error)
        outcome = error.code if isinstance(error, StentorError) else "CANCELLED" if _given_up(error) else "FAILED"
        counted = usage and _bounded(usage)
        self._span.end(counted, response_id=self.evidence.response_id, error_type=outcome)
        work = self._gate.record_in_background(self, usage or TokenUsage(), outcome)
        if not _given_up(error):
            await work


def _given_up(error: BaseException) -> bool:
    return isinstance(error, asyncio.CancelledError | GeneratorExit)


class CallGuard:
    def __init__(
        self,
        db: Database,
        clock: Clock,
        runlog: RunLog,
        breaker: CircuitBreaker,
        prices: PriceList,
        limits: tuple[Budget, ...] = (),
        spans: CallTracer | None = None,
        *,
        keep_content: bool = False,
    ) -> None:
        self._db = db
        self._clock = clock
        self._runlog = runlog
        self._breaker = breaker
        self._prices = prices
        self._budgets = limits
        self._spans = spans or NoopTracer()
        self._reserved: dict[tuple[str, BudgetKind, str], SpentAmount] = {}
        self._accounts: dict[tuple[str, BudgetKind, str], asyncio.Lock] = {}
        self._records: set[asyncio.Task[None]] = set()
        self.keep_content = keep_content
        self.call_metrics = CallMetrics(breaker)

    async def start_call(
        self, caller: LlmCaller, target: ModelTarget, operation: LlmOperation, expected: UsageEstimate
    ) -> LlmCall:
        """`expected` is asked for only where a budget is. Raises BudgetSpent, or ProviderUnreachable while it rests."""
        await self._prices.load()
        passage = LlmCall(self, caller, target, operation)
        try:
            if self._budgets:
                await self._let_in_within_budgets(passage, expected())
            else:
                self._let_in(passage)
        except (BudgetExceeded, ProviderUnreachable) as error:
            self.call_metrics.count_rejected(error)
            raise
        passage.start_span(self._spans, self._clock.now())
        return passage

    async def _let_in_within_budgets(self, passage: LlmCall, expected: TokenUsage) -> None:
        caller, target = passage.caller, passage.target
        cost = self._prices.cost_nanos(target.provider.name, target.model, expected) or 0
        async with AsyncExitStack() as accounts:
            for kind, subject in caller.budget_subjects:
                await self._check_account(accounts, caller.tenant, kind, subject)
            self._let_in(passage)
            passage.reserved = SpentAmount(_total(expected), cost)
            self._reserve(passage, 1)

    def _let_in(self, passage: LlmCall) -> None:
        self._breaker.before_call(passage.caller.tenant, passage.target.provider)

    async def _check_account(self, accounts: AsyncExitStack, tenant: str, kind: BudgetKind, subject: str) -> None:
        """One call at a time looks at an account, from the look to what it reserves."""
        applying = [budget for budget in self._budgets if budget.applies_to(kind, subject)]
        if applying:
            await accounts.enter_async_context(self._accounts.setdefault((tenant, kind, subject), asyncio.Lock()))
        for budget in applying:
            await self._check(tenant, budget, kind, subject)

    async def _check(self, tenant: str, budget: Budget, kind: BudgetKind, subject: str) -> None:
        # Before the look at the rows: what is settled meanwhile counts twice for a moment, never not at all.
        open_ = self._reserved.get((tenant, kind, subject), SpentAmount())

        def read(tx: Tx) -> tuple[SpentAmount, int]:
            first = costs.first_day_of_period(budget.period, tx.now)
            return store.read_spent(tx, tenant, kind, subject, first), costs.seconds_until_reset(budget.period, tx.now)

        known, wait = await self._db.read(read)
        if budget.remaining(SpentAmount(known.tokens + open_.tokens, known.cost + open_.cost)) <= 0:
            unit = "tokens" if budget.unit == "tokens" else "money"
            raise _spent(f"The {unit} that {kind} {subject!r} may spend in a {budget.period} are spent.", wait)

    def is_circuit_open(self, tenant: str, provider: Provider) -> bool:
        """Whether the provider is left alone now."""
        return self._breaker.is_open(tenant, provider)

    async def remaining_dollars(self, caller: LlmCaller) -> float | None:
        """US dollars that the caller may still spend, of the budget that has least; None where no budget is of money.

        Raises StoreUnavailable.
        """
        accounts = [
            (kind, subject, budget)
            for kind, subject in caller.budget_subjects
            for budget in self._budgets
            if budget.unit == "usd" and budget.applies_to(kind, subject)
        ]
        if not accounts:
            return None

        def read(tx: Tx) -> int:
            left = []
            for kind, subject, budget in accounts:
                first = costs.first_day_of_period(budget.period, tx.now)
                left.append(budget.remaining(store.read_spent(tx, caller.tenant, kind, subject, first)))
            return min(left)

        return await self._db.read(read) / NANOS_PER_DOLLAR

    def on_call_ended(self, passage: LlmCall, error: BaseException | None) -> None:
        self._breaker.after_call(passage.caller.tenant, passage.target.provider, error)

    def _reserve(self, passage: LlmCall, sign: int) -> None:
        """What calls that are under way will probably spend, so that many at once do not pass a budget together."""
        if passage.reserved is None:
            return
        tokens, cost = passage.reserved.tokens * sign, passage.reserved.cost * sign
        for kind, subject in passage.caller.budget_subjects:
            at = (passage.caller.tenant, kind, subject)
            known = self._reserved.get(at, SpentAmount())
            self._reserved[at] = SpentAmount(known.tokens + tokens, known.cost + cost)
            if self._reserved[at] == SpentAmount():
                del self._reserved[at]

    async def record_and_release(self, passage: LlmCall, usage: TokenUsage, outcome: str) -> None:
        """The call's row and its evidence, in one transaction; then nothing is reserved for it any more."""
        try:
            await self._record(passage, usage, outcome)
        finally:
            self._reserve(passage, -1)

    async def _record(self, passage: LlmCall, usage: TokenUsage, outcome: str) -> None:
        usage = _bounded(usage)
        row, draft = self._row(passage, usage, outcome), _draft(passage, usage, outcome)
        caller = passage.caller
        self.call_metrics.record_call(passage.target.provider, row)

        def work(tx: Tx) -> None:
            store.insert_call(tx, row)
            self._runlog.append(tx, caller.tenant, [draft], task_id=caller.task_id, parent=caller.parent)

        await self._db.write(work, ())

    def record_in_background(self, passage: LlmCall, usage: TokenUsage, outcome: str) -> asyncio.Task[None]:
        """`settle` in the background, whoever leaves; it only logs when it cannot be written."""

        async def work() -> None:
            try:
                await self.record_and_release(passage, usage, outcome)
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

    def _row(self, passage: LlmCall, usage: TokenUsage, outcome: str) -> CallRow:
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
            cost=self._prices.cost_nanos(target.provider.name, target.model, usage),
            latency_ms=passage.evidence.latency_ms,
        )


def _draft(passage: LlmCall, usage: TokenUsage, outcome: str) -> EventDraft:
    target, evidence = passage.target, passage.evidence
    meta = {
        **evidence.to_metadata(),
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


def _total(usage: TokenUsage) -> int:
    return usage.input_tokens + usage.output_tokens


def _bounded(usage: TokenUsage) -> TokenUsage:
    most = {
        "input_tokens": min(usage.input_tokens, MAX_COUNTED_TOKENS),
        "output_tokens": min(usage.output_tokens, MAX_COUNTED_TOKENS),
    }
    return msgspec.structs.replace(usage, **most)


def _spent(message: str, wait: int) -> BudgetExceeded:
    error = BudgetExceeded(message)
    error.retry_after = wait
    return error
