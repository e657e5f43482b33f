"""The call guard: every provider call starts here and is recorded here, with its budgets, span, event and metrics.

Fails closed twice: no call if its budgets cannot be read, and no reply if the call cannot be recorded. Retries and
connections are in `providers.transport`, budgets and circuit breaker in `limits`, prices in `costs`, SQL in `store`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Sequence

import msgspec
from prometheus_client.core import Metric

from stentor.core import trace_context
from stentor.core.clock import Clock
from stentor.core.db import NO_LOCKS, Database, Tx
from stentor.core.errors import BudgetExceeded, InvalidRequest, ProviderFault, ProviderUnreachable, StentorError
from stentor.core.metrics import (
    LONG_BUCKETS_S,
    Counter,
    CounterSeries,
    Histogram,
    HistogramSeries,
    gauge_family,
)
from stentor.core.runlog import EventDraft, RunLog
from stentor.domains.llm import store
from stentor.domains.llm.calls.budget_ledger import ApplicableBudget, BudgetLedger, BudgetReservation
from stentor.domains.llm.calls.circuit_breaker import CircuitBreaker
from stentor.domains.llm.calls.tracing import CallSpan, CallStart, CallTracer
from stentor.domains.llm.contents.service import ContentKeeper
from stentor.domains.llm.contents.store import insert_content
from stentor.domains.llm.costs import NANOS_PER_DOLLAR, BudgetAccount, FindTeam, PriceList, SpentAmount, TaskBudget
from stentor.domains.llm.model import LlmOperation, TokenUsage
from stentor.domains.llm.model_routes import ModelTarget
from stentor.domains.llm.providers import Provider
from stentor.domains.llm.providers.transport import CallEvidence
from stentor.domains.llm.store import CallRow
from stentor.domains.llm.token_estimates import limit_counts

LABELS = ("provider", "outcome")
REGISTERED_LABEL = "registered"
"""The provider label of all providers that tenants registered."""
BUDGET_EXCEEDED, CIRCUIT_OPEN = "budget", "resting"
UsageEstimate = Callable[[], TokenUsage]
log = logging.getLogger(__name__)


class LlmCaller(msgspec.Struct, frozen=True):
    """On whose behalf a call is made. `parent` is the event of the run log that caused it.

    `traceparent` is the trace context of the task, for a request that brings none; `budgets` are those of the task and
    of the tasks above it, the topmost first. `models` are the patterns of the caller's key, empty for all models.
    `CallGuard.with_team` sets `team`, the key's team.
    """

    tenant: str
    key: str
    agent_id: str | None = None
    task_id: str | None = None
    parent: str | None = None
    traceparent: str | None = None
    budgets: tuple[TaskBudget, ...] = ()
    models: tuple[str, ...] = ()
    team: str = ""

    @property
    def accounts(self) -> list[BudgetAccount]:
        """Whose budgets count: the key, its team and the agent if there are any, the tenant, tasks that have one."""
        team: list[BudgetAccount] = [(self.tenant, "team", self.team)] if self.team else []
        agent: list[BudgetAccount] = [(self.tenant, "agent", self.agent_id)] if self.agent_id else []
        tasks: list[BudgetAccount] = [(self.tenant, "task", budget.task_id) for budget in self.budgets]
        return [(self.tenant, "key", self.key), *team, *agent, (self.tenant, "tenant", self.tenant), *tasks]


class LlmCall:
    """A started call; exactly one of `complete` and `fail` must end it."""

    def __init__(self, guard: CallGuard, caller: LlmCaller, target: ModelTarget, operation: LlmOperation) -> None:
        self._guard = guard
        self.caller, self.target, self.operation = caller, target, operation
        self.reservation: BudgetReservation | None = None
        self.cost: int | None = None
        """In billionths of a US dollar, once the call is recorded; None if the price is unknown."""
        self.failure = ""
        """The message of the error that ended the call."""
        self.evidence = CallEvidence(keep_content=guard.contents is not None, tenant=caller.tenant)
        self._span: CallSpan | None = None

    def start_span(self, tracer: CallTracer | None, now: int) -> None:
        """Start the span of the call; without a tracer the provider gets the caller's own trace context."""
        if tracer is None:
            self.evidence.traceparent = trace_context.current_traceparent()
            return
        caller, call_id = self.caller, self.evidence.call_id
        start = CallStart(
            self.operation,
            self.target,
            now,
            call_id,
            caller.tenant,
            caller.agent_id,
            caller.task_id,
            caller.traceparent,
        )
        self._span = tracer.start_span(start)
        self.evidence.traceparent = self._span.traceparent

    async def complete(self, usage: TokenUsage) -> None:
        """Record a successful call. Raises StoreUnavailable; then the caller must not get the reply."""
        # First: the provider's success counts even if the call cannot be recorded.
        self._guard.breaker.after_call(self.caller.tenant, self.target.provider, None)
        usage = limit_counts(usage)
        self._end_span(usage)
        await self._guard.record_success(self, usage)

    async def fail(self, error: BaseException, usage: TokenUsage | None = None) -> None:
        """Record a failed or cancelled call. Fails open: without a database the caller still gets the error.

        What the provider reported with its error counts before `usage`.
        """
        self._guard.breaker.after_call(self.caller.tenant, self.target.provider, error)
        is_cancelled = isinstance(error, asyncio.CancelledError | GeneratorExit)
        outcome = error.code if isinstance(error, StentorError) else "CANCELLED" if is_cancelled else "FAILED"
        if isinstance(error, ProviderFault):
            usage = error.usage or usage
        usage = usage and limit_counts(usage)
        self._end_span(usage, outcome)
        if isinstance(error, StentorError):
            self.failure = error.message
        recording = self._guard.record_failure(self, usage or TokenUsage(), outcome)
        # A cancelled coroutine must end at once; the record is written without it.
        if not is_cancelled:
            await recording

    def _end_span(self, usage: TokenUsage | None, error_type: str | None = None) -> None:
        if self._span is not None:
            self._span.end(usage, response_id=self.evidence.response_id, error_type=error_type)


class CallGuard:
    """Starts calls within budgets and circuit breaker, and records their end."""

    def __init__(
        self,
        db: Database,
        clock: Clock,
        runlog: RunLog,
        breaker: CircuitBreaker,
        prices: PriceList,
        ledger: BudgetLedger,
        find_team: FindTeam,
        tracer: CallTracer | None = None,
        contents: ContentKeeper | None = None,
    ) -> None:
        self._db = db
        self._clock = clock
        self._runlog = runlog
        self._prices = prices
        self.breaker, self.ledger = breaker, ledger
        self._find_team, self._tracer = find_team, tracer
        self._recordings: set[asyncio.Task[None]] = set()
        self.contents = contents
        """What redacts requests and responses that are kept; None if they are not."""
        self.call_metrics = CallMetrics(breaker)

    def with_team(self, caller: LlmCaller) -> LlmCaller:
        """Return the caller with the team that its key has now."""
        team = self._find_team(caller.tenant, caller.key)
        return msgspec.structs.replace(caller, team=team) if team else caller

    async def start_call(
        self, caller: LlmCaller, target: ModelTarget, operation: LlmOperation, estimate_usage: UsageEstimate
    ) -> LlmCall:
        """Start a call. Raises BudgetExceeded, and ProviderUnreachable while the provider's circuit is open.

        Raises InvalidRequest for a model without a known price if the cost of the task is limited.
        """
        if not self._prices.is_loaded:
            await self._prices.load()
        # Once: a call counts to one team from its check to its record, even if the key gets another one meanwhile.
        caller = self.with_team(caller)
        call = LlmCall(self, caller, target, operation)
        try:
            if applicable := self.ledger.find_applicable(caller.accounts, caller.budgets):
                # Estimating reads the whole request, so calls without budgets skip it.
                await self._reserve_within(applicable, call, estimate_usage())
            else:
                self.breaker.before_call(caller.tenant, target.provider)
        except (BudgetExceeded, ProviderUnreachable) as error:
            self.call_metrics.count_rejected(error)
            raise
        # Last: a rejected call has no span that would have to be ended.
        call.start_span(self._tracer, self._clock.now())
        return call

    async def _reserve_within(
        self, applicable: Sequence[ApplicableBudget], call: LlmCall, estimate: TokenUsage
    ) -> None:
        """Check the budgets that apply to a call, then its circuit; reserve the estimate. Raises like `start_call`."""
        if call.caller.budgets:
            self._require_price(call.target)
        await self.ledger.check(applicable)
        # Before the reservation, which a call that is rejected here must not leave behind.
        self.breaker.before_call(call.caller.tenant, call.target.provider)
        # Nothing is awaited since the check: otherwise concurrent calls would all pass it.
        self._reserve(call, estimate)

    def _require_price(self, target: ModelTarget) -> None:
        if self._prices.cost_nanos(target.provider.name, target.model, TokenUsage()) is None:
            raise InvalidRequest(f"max_cost_usd of the task needs a price of {target.name}: set SERVICE_LLM_PRICES.")

    async def close(self) -> None:
        """Wait for the records of failed calls and, for a short time, for the last spans."""
        await asyncio.gather(*self._recordings, return_exceptions=True)
        if self._tracer is not None:
            await self._tracer.close()
        if self.contents is not None:
            await self.contents.close()

    async def record_success(self, call: LlmCall, usage: TokenUsage) -> None:
        """Record a successful call and wait until it is committed. Raises StoreUnavailable."""
        work = self._record(call, usage, "ok")
        # The redaction takes time. A caller who hangs up meanwhile must not leave a call without a record.
        await (work if self.contents is None else asyncio.shield(self._in_background(work)))

    async def _record(self, call: LlmCall, usage: TokenUsage, outcome: str) -> None:
        """Write the call's row, event and content in one transaction, then release its reservation."""
        caller, target = call.caller, call.target
        try:
            content = None
            if self.contents is not None:
                # The vectors of an embedding are no text.
                response = call.evidence.response if call.operation == "chat" else b""
                # May quote the prompt, so it is kept like one, and not in the event, which nobody can delete.
                response = response or call.failure.encode(errors="replace")
                content = await self.contents.redact(call.evidence.request, response)
            row = CallRow(
                call_id=call.evidence.call_id,
                tenant=caller.tenant,
                key_name=caller.key,
                agent_id=caller.agent_id,
                task_id=caller.task_id,
                operation=call.operation,
                provider=target.provider.name,
                model=target.model,
                outcome=outcome,
                input_tokens=usage.input_tokens,
                output_tokens=usage.output_tokens,
                estimated=int(usage.estimated),
                cost=self._prices.cost_nanos(target.provider.name, target.model, usage),
                latency_ms=call.evidence.latency_ms,
                cached_tokens=usage.cached_tokens,
                team=caller.team,
            )
            call.cost = row.cost
            # Its id is the call's id, so the row and the event find each other without a column.
            event = _call_event(call, row, usage)
            self.call_metrics.record_call(target.provider, row)

            def write(tx: Tx) -> None:
                store.insert_call(tx, row, caller.budgets)
                if content is not None:
                    insert_content(tx, row.call_id, row.tenant, row.key_name, content)
                self._runlog.append(tx, caller.tenant, [event], task_id=caller.task_id, parent=caller.parent)

            await self._db.write(write, NO_LOCKS)
        finally:
            # After the commit: a call that is in neither sum would let others exceed the budget.
            if call.reservation is not None:
                call.reservation.release()

    def record_failure(self, call: LlmCall, usage: TokenUsage, outcome: str) -> asyncio.Task[None]:
        """Record the call in a task that outlives a cancelled caller; an error of the database is only logged."""

        async def record() -> None:
            try:
                await self._record(call, usage, outcome)
            # The caller already gets the provider's error; a second one about the record would hide it.
            except StentorError as error:
                log.warning("llm: failed call not recorded reason=%s", error.message)

        return self._in_background(record())

    def _in_background(self, work: Coroutine[None, None, None]) -> asyncio.Task[None]:
        recording = asyncio.create_task(work)
        self._recordings.add(recording)
        recording.add_done_callback(self._recordings.discard)
        return recording

    def _reserve(self, call: LlmCall, estimate: TokenUsage) -> None:
        target = call.target
        cost = self._prices.cost_nanos(target.provider.name, target.model, estimate) or 0
        amount = SpentAmount(estimate.input_tokens + estimate.output_tokens, cost)
        call.reservation = self.ledger.reserve(call.caller.accounts, amount)


def _call_event(call: LlmCall, row: CallRow, usage: TokenUsage) -> EventDraft:
    metadata = {
        **call.evidence.to_metadata(),
        "provider": row.provider,
        "model": row.model,
        "operation": row.operation,
        "outcome": row.outcome,
        "key": row.key_name,
        "usage": msgspec.to_builtins(usage),
    }
    message = f"Called {call.target.name}: {row.outcome}."
    return EventDraft("llm_called", "llm", message, metadata, row.agent_id, row.latency_ms, event_id=row.call_id)


class CallMetrics:
    """Metrics of provider calls in this process.

    Providers that tenants registered share one label: their names belong to the tenants, and there may be many.
    """

    def __init__(self, breaker: CircuitBreaker) -> None:
        self._breaker = breaker
        text = "Duration of provider calls including retries, by outcome: ok or the error code."
        self._durations = Histogram("stentor_llm_call_duration_seconds", text, LONG_BUCKETS_S, *LABELS)
        text = "Tokens of provider calls, reported by the provider or else estimated."
        self._tokens = Counter("stentor_llm_tokens", text, *LABELS, "kind")
        text = "Cost of provider calls in US dollars, where the price is known."
        self._costs = Counter("stentor_llm_cost_dollars", text, *LABELS)
        text = "Calls rejected before they reached a provider: budget exceeded or circuit open."
        reasons = (BUDGET_EXCEEDED,), (CIRCUIT_OPEN,)
        self._series: dict[tuple[str, str], tuple[HistogramSeries, CounterSeries, CounterSeries, CounterSeries]] = {}
        self._rejected = Counter("stentor_llm_refusals", text, "reason", known=reasons)

    def count_rejected(self, error: BudgetExceeded | ProviderUnreachable) -> None:
        """Count a call that was rejected before it reached its provider."""
        self._rejected.labels(BUDGET_EXCEEDED if isinstance(error, BudgetExceeded) else CIRCUIT_OPEN).inc()

    def record_call(self, provider: Provider, call: CallRow) -> None:
        """Record the duration, tokens and cost of an ended call."""
        labels = provider.name if provider.is_operator_owned else REGISTERED_LABEL, call.outcome
        durations, input_tokens, output_tokens, costs = self._series.get(labels) or self._find_series(labels)
        durations.observe(call.latency_ms / 1000)
        input_tokens.inc(call.input_tokens)
        output_tokens.inc(call.output_tokens)
        costs.inc((call.cost or 0) / NANOS_PER_DOLLAR)

    def _find_series(
        self, labels: tuple[str, str]
    ) -> tuple[HistogramSeries, CounterSeries, CounterSeries, CounterSeries]:
        # Kept: to look each one up takes longer than the counting.
        series = self._series[labels] = (
            self._durations.labels(*labels),
            self._tokens.labels(*labels, "input"),
            self._tokens.labels(*labels, "output"),
            self._costs.labels(*labels),
        )
        return series

    def collect_metrics(self) -> Iterable[Metric]:
        """Yield the metrics for the Prometheus endpoint."""
        for metric in (self._durations, self._tokens, self._costs, self._rejected):
            yield from metric.collect()
        text = "Providers whose circuit is open."
        yield gauge_family("stentor_llm_providers_resting", text, self._breaker.count_open())
