"""Implements `auto` for the gateway: finds the candidates, decides, calls, and has the outcome learned.

What a request is (kinds.py), who is best (model.py) and what an outcome teaches (learning.py) is decided beside this.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, cast, get_args

import msgspec

from stentor.core.clock import SECOND, Clock
from stentor.core.db import Database, Tx
from stentor.core.errors import InvalidRequest, ModelNotFound, ProviderBusy, ProviderFault
from stentor.core.runlog import EventDraft, RunLog
from stentor.domains.llm.call_guard import CallGuard, LlmCaller
from stentor.domains.llm.costs import PriceList
from stentor.domains.llm.model import ChatRequest, ImagePart, TokenUsage
from stentor.domains.llm.model_routes import ModelTarget
from stentor.domains.llm.providers import Provider
from stentor.domains.llm.providers.registry import LOCAL_PROVIDER
from stentor.domains.llm.service import (
    AGENT_PREFIX,
    AUTO_GROUP_PREFIX,
    AUTO_MODEL,
    CLIENT_ERROR_STATUSES,
    ChatResult,
    ChatStream,
    LlmGateway,
    ModelChoice,
    add_provider_details,
    expected_usage,
)
from stentor.domains.modelrouting import model
from stentor.domains.modelrouting.learning import ModelOutcome, ModelOutcomeRecorder, ModelRecords
from stentor.domains.modelrouting.model import ModelOption, classify_request
from stentor.domains.routing.model import DeniedCandidate
from stentor.domains.routing.ranking import Preference

MAX_MODELS_TRIED = 3
"""Models that are tried for one request, at most."""
MAX_CLIENT_ERRORS = 2
"""Models that have to call a request wrong until it is believed."""
NANOS_PER_DOLLAR = 1e9
T = TypeVar("T")
ResolvedTargets = tuple[list[ModelTarget], list[DeniedCandidate]]


class AutoRun(msgspec.Struct, frozen=True):
    """One request to `auto` after its decision: whom to try, best first."""

    caller: LlmCaller
    request: ChatRequest
    targets: list[ModelTarget]
    choice: ModelChoice
    record: dict[str, Any]

    def choice_of(self, target: ModelTarget) -> ModelChoice:
        """What the caller reads: also that another model failed first."""
        return msgspec.structs.replace(self.choice, why=model.explain_choice(self.record, target.name))


class AutoModelRouter:
    """`alpha` is the share that the first outcome has, as in routing."""

    def __init__(
        self,
        db: Database,
        clock: Clock,
        runlog: RunLog,
        gateway: LlmGateway,
        gate: CallGuard,
        prices: PriceList,
        records: ModelRecords,
        teacher: ModelOutcomeRecorder,
        alpha: float,
    ) -> None:
        self._db = db
        self._clock = clock
        self._runlog = runlog
        self._gateway = gateway
        self._gate = gate
        self._prices = prices
        self.records = records
        self._teacher = teacher
        self._alpha = alpha
        self._ahead = Counter[tuple[str, str]]()
        self._busy_until: dict[tuple[str, str], int] = {}

    async def model_names(self, tenant: str) -> list[str]:
        """`auto`, where there is a model to choose, and `auto:<group>` for each group."""
        targets, _ = await self._candidates(tenant, AUTO_MODEL)
        groups = [AUTO_GROUP_PREFIX + group for group in self._gateway.routes.groups if group != AUTO_MODEL]
        return ([AUTO_MODEL] if targets else []) + groups

    async def chat(self, caller: LlmCaller, request: ChatRequest) -> ChatResult:
        """Raises InvalidRequest, ModelNotFound, BudgetSpent, ProviderFault."""
        return await self._first(await self._begin(caller, request), self._chat)

    async def stream(self, caller: LlmCaller, request: ChatRequest) -> ChatStream:
        """Returns when a model has begun to answer. Raises like `chat`."""
        return await self._first(await self._begin(caller, request), self._stream)

    async def _begin(self, caller: LlmCaller, request: ChatRequest) -> AutoRun:
        """Decide, and record the decision before anybody is called."""
        started = time.perf_counter_ns()
        name = request.model or self._gateway.default_model
        prefer, request = _preference(request)
        targets, denied = await self._candidates(caller.tenant, name)
        able = [target for target in targets if _can(target, request)]
        denied += [DeniedCandidate(t.name, t.name, model.TEXT_ONLY) for t in targets if t not in able]
        if not able:
            raise ModelNotFound(_nothing(name), {"denied": _told(denied)})
        kind, now = classify_request(request), self._clock.now()
        entries = await self._entries(caller, able, request)
        ranked = model.build_candidates(
            entries, self.records.view_of(caller.tenant), caller.tenant, kind, self._alpha, now
        )
        decision = model.choose_model(ranked, kind, prefer, self._alpha, denied)
        took = (time.perf_counter_ns() - started) // 1000
        record = msgspec.to_builtins(msgspec.structs.replace(decision, duration_us=took))
        why = model.explain_choice(record)
        draft = EventDraft("model_chosen", "modelrouting", why, {"requested": name, "kind": kind, "routing": record})

        by_name = {target.name: target for target in able}
        order = [by_name[each.name] for each in decision.candidates[:MAX_MODELS_TRIED]]

        def write(tx: Tx) -> None:
            self._runlog.append(tx, caller.tenant, [draft], task_id=caller.task_id, parent=caller.parent)

        # Counted before anything is awaited, so that many requests at once do not all take the same untried model.
        self._take(caller, order[0])
        try:
            await self._db.write(write, ())
        except BaseException:
            self._left(caller, order[0])
            raise
        choice = ModelChoice(kind, prefer, why, draft.event_id)
        return AutoRun(msgspec.structs.replace(caller, parent=draft.event_id), request, order, choice, record)

    async def _candidates(self, tenant: str, name: str) -> ResolvedTargets:
        """The models that a name stands for, and those of them that are none. Raises ModelNotFound."""
        providers = await self._gateway.provider_registry.providers_of(tenant)
        targets: dict[str, ModelTarget] = {}
        denied: list[DeniedCandidate] = []
        for wanted in self._wanted(name, providers):
            target = None if wanted.startswith(AGENT_PREFIX) else await self._gateway.resolve_target(wanted, providers)
            if target is not None:
                targets[target.name] = target
            else:
                denied.append(
                    DeniedCandidate(
                        wanted,
                        wanted,
                        model.AGENT_IS_NO_MODEL if wanted.startswith(AGENT_PREFIX) else model.MODEL_NOT_FOUND,
                    )
                )
        return list(targets.values()), denied

    def _wanted(self, name: str, providers: dict[str, Provider]) -> list[str]:
        """Names of models. `auto` has those of the group `auto` where there is one, else every provider's default, and
        every model of a group; never the local baseline, which would win by answering everything for nothing.
        """
        routes = self._gateway.routes
        group = AUTO_MODEL if name == AUTO_MODEL else name.removeprefix(AUTO_GROUP_PREFIX)
        members = routes.group_members(group)
        if members is not None:
            return members
        if name != AUTO_MODEL:
            known = ", ".join(AUTO_GROUP_PREFIX + each for each in routes.groups) or "none"
            raise ModelNotFound(
                f"No group of models is called {group!r}. Known: {known}. SERVICE_LLM_GROUPS names them."
            )
        found = [f"{p.name}/{p.default_model}" for p in providers.values() if p.default_model and p != LOCAL_PROVIDER]
        found += [each for one in routes.groups for each in routes.group_members(one) or ()]
        return [each for each in dict.fromkeys([self._gateway.default_model, *found]) if _is_model(each)]

    async def _entries(self, caller: LlmCaller, targets: list[ModelTarget], request: ChatRequest) -> list[ModelOption]:
        await self._prices.load()
        usage, left = expected_usage(request), await self._gate.remaining_dollars(caller)
        entries = []
        for target in targets:
            at = (caller.tenant, target.name)
            cost = self._cost(target, usage)
            affordable = left is None or cost is None or cost <= left
            free = not self._gate.is_circuit_open(caller.tenant, target.provider) and not self._is_busy(at)
            entries.append(ModelOption(target.name, cost, self._ahead[at], free and affordable))
        return entries

    def _is_busy(self, at: tuple[str, str]) -> bool:
        """Whether the provider said that it takes nothing for this model until later."""
        until = self._busy_until.get(at)
        if until is not None and until <= self._clock.now():
            del self._busy_until[at]
            until = None
        return until is not None

    def _cost(self, target: ModelTarget, usage: TokenUsage) -> float | None:
        nano = self._prices.cost_nanos(target.provider.name, target.model, usage)
        return None if nano is None else nano / NANOS_PER_DOLLAR

    async def _first(self, run: AutoRun, call: Callable[[AutoRun, ModelTarget], Awaitable[T]]) -> T:
        """The answer of the best that gives one. What fails on the way is evidence, and so is a refusal of what another
        one then takes; a request that two call wrong is the caller's mistake, and nobody's evidence.
        """
        failure: ProviderFault | None = None
        refused: list[ModelOutcome] = []
        for number, target in enumerate(run.targets):
            if number:
                self._take(run.caller, target)
            started = time.monotonic()
            try:
                answer = await call(run, target)
            except ProviderFault as fault:
                add_provider_details(fault, target)
                failure = failure or fault
                outcome = self._outcome(run, target, started, 0.0)
                if fault.upstream_status in CLIENT_ERROR_STATUSES:
                    refused.append(outcome)
                    if len(refused) == MAX_CLIENT_ERRORS:
                        raise
                elif isinstance(fault, ProviderBusy):
                    wait = (fault.retry_after or 1) * SECOND
                    self._busy_until[run.caller.tenant, target.name] = self._clock.now() + wait
                elif fault.was_called:
                    await self._teacher.record(run.caller, outcome)
            else:
                for outcome in refused:
                    await self._teacher.record(run.caller, outcome)
                return answer
        assert failure is not None  # there is at least one target
        raise failure

    async def _chat(self, run: AutoRun, target: ModelTarget) -> ChatResult:
        started = time.monotonic()
        try:
            done = await self._gateway.chat_with(run.caller, target, run.request)
        finally:
            self._left(run.caller, target)
        await self._succeeded(run, target, started, done.usage, done.provenance_id)
        return msgspec.structs.replace(done, choice=run.choice_of(target))

    async def _stream(self, run: AutoRun, target: ModelTarget) -> ChatStream:
        started = time.monotonic()
        try:
            stream = await self._gateway.stream_with(run.caller, target, run.request)
        except BaseException:
            self._left(run.caller, target)
            raise

        async def ended(error: BaseException | None, usage: TokenUsage) -> None:
            self._left(run.caller, target)
            if error is None:
                await self._succeeded(run, target, started, usage, stream.provenance_id)
            elif isinstance(error, ProviderFault):
                await self._teacher.record(run.caller, self._outcome(run, target, started, 0.0))

        stream.choice, stream.on_end = run.choice_of(target), ended
        return stream

    def _take(self, caller: LlmCaller, target: ModelTarget) -> None:
        self._ahead[caller.tenant, target.name] += 1

    def _left(self, caller: LlmCaller, target: ModelTarget) -> None:
        at = (caller.tenant, target.name)
        self._ahead[at] -= 1
        if not self._ahead[at]:
            del self._ahead[at]

    async def _succeeded(
        self, run: AutoRun, target: ModelTarget, started: float, usage: TokenUsage, answer_id: str
    ) -> None:
        outcome = self._outcome(run, target, started, 1.0)
        cost = self._cost(target, usage)
        await self._teacher.record(run.caller, msgspec.structs.replace(outcome, cost=cost, answer_id=answer_id))

    def _outcome(self, run: AutoRun, target: ModelTarget, started: float, reward: float) -> ModelOutcome:
        took = round((time.monotonic() - started) * 1000)
        return ModelOutcome(target.name, run.choice.kind, run.choice.decision_id, took, reward)


def _preference(request: ChatRequest) -> tuple[Preference, ChatRequest]:
    """What the caller prefers, and the request without saying so: no provider knows the word. Raises InvalidRequest."""
    metadata = request.extra.get("metadata")
    word: object = request.prefer or "balanced"
    if isinstance(metadata, dict) and "prefer" in metadata:
        word = metadata["prefer"]
        rest = {name: value for name, value in metadata.items() if name != "prefer"}
        extra = {name: value for name, value in request.extra.items() if name != "metadata"}
        request = msgspec.structs.replace(request, extra=extra | ({"metadata": rest} if rest else {}))
    if word not in get_args(Preference):
        told = f"must be one of {', '.join(get_args(Preference))}"
        raise InvalidRequest(f"metadata.prefer {told}.", {"fields": {"metadata.prefer": told}})
    return cast(Preference, word), request


def _can(target: ModelTarget, request: ChatRequest) -> bool:
    """Whether the model takes what the request holds, as far as that is known: the local baseline reads texts alone."""
    if target.provider != LOCAL_PROVIDER:
        return True
    has_images = any(isinstance(part, ImagePart) for message in request.messages for part in message.content)
    return not (request.tools or request.response_format or has_images)


def _is_model(name: str) -> bool:
    return (
        bool(name) and name.rpartition("/")[2] != AUTO_MODEL and not name.startswith((AUTO_GROUP_PREFIX, AGENT_PREFIX))
    )


def _nothing(name: str) -> str:
    return (
        f"{name} has no model to choose from for this request. Register a provider with a default_model, or have the "
        "operator name models: SERVICE_LLM_GROUPS='auto=openai/gpt-5-mini|anthropic/claude-sonnet-4-5'."
    )


def _told(denied: list[DeniedCandidate]) -> list[dict[str, str]]:
    return [{"model": each.name, "code": each.code} for each in denied]
