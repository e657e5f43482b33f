"""Implements the model `auto` for the LLM gateway: finds candidates, decides, calls models, and records the outcomes.

`model.py` classifies requests and ranks models, `learning.py` learns from outcomes.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar, cast, get_args

import msgspec

from stentor.core.clock import SECOND, Clock
from stentor.core.db import NO_LOCKS, Database, Tx
from stentor.core.errors import InvalidRequest, ModelNotFound, ProviderBusy, ProviderFault
from stentor.core.jsontext import JsonObject
from stentor.core.runlog import EventDraft, RunLog
from stentor.domains.llm.calls.call_guard import CallGuard, LlmCaller
from stentor.domains.llm.costs import NANOS_PER_DOLLAR, PriceList
from stentor.domains.llm.model import ChatRequest, ImagePart, TokenUsage
from stentor.domains.llm.model_routes import ModelTarget
from stentor.domains.llm.providers import Provider
from stentor.domains.llm.providers.registry import LOCAL_PROVIDER
from stentor.domains.llm.results import ChatResult, ChatStream, ModelChoice
from stentor.domains.llm.service import (
    AGENT_PREFIX,
    AUTO_GROUP_PREFIX,
    AUTO_MODEL,
    CLIENT_ERROR_STATUSES,
    EXPECTED_OUTPUT_TOKENS,
    LlmGateway,
    add_provider_details,
    expected_usage,
    not_allowed,
)
from stentor.domains.modelrouting import model
from stentor.domains.modelrouting.learning import ModelOutcome, ModelOutcomeRecorder, ModelRecords
from stentor.domains.modelrouting.model import ModelOption, classify_request
from stentor.domains.routing.model import DeniedCandidate
from stentor.domains.routing.penalties import Preference

MAX_MODELS_TRIED = 3
"""Maximum number of models that are tried for one request."""
MAX_CLIENT_ERRORS = 2
"""After this many models rejected a request as invalid, it counts as invalid."""
T = TypeVar("T")
ResolvedTargets = tuple[list[ModelTarget], list[DeniedCandidate]]


class AutoRun(msgspec.Struct, frozen=True):
    """A request to `auto` after its decision. `targets` are the models to try, best first."""

    caller: LlmCaller
    request: ChatRequest
    targets: list[ModelTarget]
    choice: ModelChoice
    record: JsonObject
    """The decision as JSON, as its event stores it."""

    def choice_of(self, target: ModelTarget) -> ModelChoice:
        """Return the choice for the caller; its explanation mentions a model that failed before."""
        return msgspec.structs.replace(self.choice, why=model.explain_choice(self.record, target.name))


class AutoModelRouter:
    """Chooses models. `alpha` is the weight of the first outcome against the prior, as in routing."""

    def __init__(
        self,
        db: Database,
        clock: Clock,
        runlog: RunLog,
        gateway: LlmGateway,
        guard: CallGuard,
        prices: PriceList,
        records: ModelRecords,
        outcomes: ModelOutcomeRecorder,
        alpha: float,
    ) -> None:
        self._db = db
        self._clock = clock
        self._runlog = runlog
        self._gateway = gateway
        self._guard = guard
        self._prices = prices
        self.records = records
        self._outcomes = outcomes
        self._alpha = alpha
        self._open_requests = Counter[tuple[str, str]]()
        self._busy_until: dict[tuple[str, str], int] = {}

    async def model_names(self, tenant: str, allowed: Sequence[str]) -> list[str]:
        """Return `auto` and `auto:<group>` for each group, of what has a model that `allowed` allows."""
        targets, _ = await self._candidates(tenant, AUTO_MODEL, allowed)
        groups = await self._gateway.usable_groups(tenant, allowed)
        names = [AUTO_GROUP_PREFIX + group for group in groups if group != AUTO_MODEL]
        return ([AUTO_MODEL] if targets else []) + names

    async def chat(self, caller: LlmCaller, request: ChatRequest) -> ChatResult:
        """Return a complete reply. Raises InvalidRequest, ModelNotFound, BudgetExceeded, ProviderFault."""
        return await self._try_models(await self._begin(caller, request), self._chat)

    async def stream(self, caller: LlmCaller, request: ChatRequest) -> ChatStream:
        """Return the stream of the first model that begins to reply. Raises like `chat`."""
        return await self._try_models(await self._begin(caller, request), self._stream)

    async def _begin(self, caller: LlmCaller, request: ChatRequest) -> AutoRun:
        """Decide, and record the decision before a model is called."""
        started = time.perf_counter_ns()
        name = request.model or self._gateway.default_model
        prefer, request = _preference(request)
        targets, denied = await self._candidates(caller.tenant, name, caller.models)
        # Before the ranking: a model that cannot answer would fail and be counted as bad.
        able = [target for target in targets if _supports(target, request)]
        unable = [target.name for target in targets if target not in able]
        denied += [DeniedCandidate(model_name, model_name, model.TEXT_ONLY) for model_name in unable]
        if not able and not targets and any(candidate.code == model.MODEL_NOT_ALLOWED for candidate in denied):
            raise not_allowed(caller, f"any model of {name!r}")
        if not able:
            raise ModelNotFound(
                f"{name} has no candidate for this request. Register a provider with a default_model, or have the "
                "operator define a group of models: "
                "SERVICE_LLM_GROUPS='auto=openai/gpt-5-mini|anthropic/claude-sonnet-4-5'.",
                {"denied": [{"model": candidate.name, "code": candidate.code} for candidate in denied]},
            )
        kind, now = classify_request(request), self._clock.now()
        options = await self._options(caller, able, request)
        view = self.records.view_of(caller.tenant)
        candidates = model.build_candidates(options, view, caller.tenant, kind, self._alpha, now)
        decision = model.choose_model(candidates, kind, prefer, self._alpha, denied)
        duration_us = (time.perf_counter_ns() - started) // 1000
        record = msgspec.to_builtins(msgspec.structs.replace(decision, duration_us=duration_us))
        why = model.explain_choice(record)
        draft = EventDraft("model_chosen", "modelrouting", why, {"requested": name, "kind": kind, "routing": record})

        by_name = {target.name: target for target in able}
        order = [by_name[candidate.name] for candidate in decision.candidates[:MAX_MODELS_TRIED]]

        def write(tx: Tx) -> None:
            self._runlog.append(tx, caller.tenant, [draft], task_id=caller.task_id, parent=caller.parent)

        # Counted before the next await, so that concurrent requests do not all choose the same untried model.
        self._begin_request(caller, order[0])
        try:
            await self._db.write(write, NO_LOCKS)
        except BaseException:
            self._end_request(caller, order[0])
            raise
        choice = ModelChoice(kind, prefer, why, draft.event_id)
        return AutoRun(msgspec.structs.replace(caller, parent=draft.event_id), request, order, choice, record)

    async def _candidates(self, tenant: str, name: str, allowed: Sequence[str]) -> ResolvedTargets:
        """Return the models that a name stands for, and those that cannot be used. Raises ModelNotFound.

        `allowed` are the patterns of the models that the caller may use, empty for all.
        """
        providers = await self._gateway.provider_registry.providers_of(tenant)
        is_allowed = self._gateway.routes.of(tenant).limit_to(allowed, providers)
        targets: dict[str, ModelTarget] = {}
        denied: list[DeniedCandidate] = []
        for member in self._member_names(tenant, name, providers):
            if member.startswith(AGENT_PREFIX):
                denied.append(DeniedCandidate(member, member, model.AGENT_IS_NO_MODEL))
                continue
            target = await self._gateway.resolve_target(member, providers)
            if target is None:
                denied.append(DeniedCandidate(member, member, model.MODEL_NOT_FOUND))
            elif not is_allowed(target):
                denied.append(DeniedCandidate(member, member, model.MODEL_NOT_ALLOWED))
            else:
                targets[target.name] = target
        return list(targets.values()), denied

    def _member_names(self, tenant: str, name: str, providers: dict[str, Provider]) -> list[str]:
        """Return the names of the models of a group. Raises ModelNotFound.

        `auto` has the models of the group `auto` if it exists, else every provider's default and the models of all
        groups. It never has the local baseline, which would always win because it costs nothing.
        """
        routes = self._gateway.routes.of(tenant)
        group = AUTO_MODEL if name == AUTO_MODEL else name.removeprefix(AUTO_GROUP_PREFIX)
        members = routes.group_members(group)
        if members is not None:
            return members
        if name != AUTO_MODEL:
            known = ", ".join(AUTO_GROUP_PREFIX + existing for existing in routes.groups) or "none"
            raise ModelNotFound(
                f"No group of models is called {group!r}. Known: {known}. Admins add it on the page Models & cost."
            )
        names = [f"{p.name}/{p.default_model}" for p in providers.values() if p.default_model and p != LOCAL_PROVIDER]
        names += [member for existing in routes.groups for member in routes.group_members(existing) or ()]
        return [member for member in dict.fromkeys([self._gateway.default_model, *names]) if _is_model(member)]

    async def _options(self, caller: LlmCaller, targets: list[ModelTarget], request: ChatRequest) -> list[ModelOption]:
        await self._prices.load()
        usage = expected_usage(request)
        # Assuming all of `max_tokens` would make an untried model look expensive compared with models whose answers are
        # known.
        likely = msgspec.structs.replace(usage, output_tokens=min(usage.output_tokens, EXPECTED_OUTPUT_TOKENS))
        accounts = self._guard.with_team(caller).accounts
        remaining = await self._guard.ledger.remaining_dollars(accounts, caller.budgets)
        options = []
        for target in targets:
            key = (caller.tenant, target.name)
            cost = self._cost(target, usage)
            # A model that is too expensive is paused, not removed: if there is no other, the budget's own error
            # explains the rejection.
            is_affordable = remaining is None or cost is None or cost <= remaining
            is_free = not self._guard.breaker.is_open(caller.tenant, target.provider) and not self._is_busy(key)
            open_requests, is_online = self._open_requests[key], is_free and is_affordable
            likely_cost, usual_cost = self._cost(target, likely), self._usual_cost(target, request)
            options.append(ModelOption(target.name, likely_cost, usual_cost, open_requests, is_online))
        return options

    def _is_busy(self, key: tuple[str, str]) -> bool:
        """Return whether the provider's last response asked to wait with this model."""
        until = self._busy_until.get(key)
        if until is not None and until <= self._clock.monotonic():
            del self._busy_until[key]
            until = None
        return until is not None

    def _usual_cost(self, target: ModelTarget, request: ChatRequest) -> float | None:
        """Return what a reply of the usual length costs now, whatever `max_tokens` is."""
        usage = msgspec.structs.replace(expected_usage(request), output_tokens=EXPECTED_OUTPUT_TOKENS)
        return self._cost(target, usage)

    def _cost(self, target: ModelTarget, usage: TokenUsage) -> float | None:
        nano = self._prices.cost_nanos(target.provider.name, target.model, usage)
        return None if nano is None else nano / NANOS_PER_DOLLAR

    async def _try_models(self, run: AutoRun, call: Callable[[AutoRun, ModelTarget], Awaitable[T]]) -> T:
        """Return the reply of the first model that gives one. Raises ProviderFault if none does.

        A failure on the way counts as evidence, and so does a rejection of a request that another model then accepts.
        A request that two models reject is the caller's mistake and counts for none of them. A model whose API format
        cannot express the request was not called.
        """
        failure: ProviderFault | None = None
        mismatch: InvalidRequest | None = None
        rejections: list[ModelOutcome] = []
        for number, target in enumerate(run.targets):
            # The first one was counted in `_begin`.
            if number:
                self._begin_request(run.caller, target)
            started = time.monotonic()
            try:
                reply = await call(run, target)
            except InvalidRequest as error:
                mismatch = mismatch or error
            except ProviderFault as fault:
                add_provider_details(fault, target)
                failure = failure or fault
                failure.is_repeatable &= fault.is_repeatable
                outcome = self._outcome(run, target, started, 0.0)
                if fault.upstream_status in CLIENT_ERROR_STATUSES:
                    rejections.append(outcome)
                    if len(rejections) == MAX_CLIENT_ERRORS:
                        raise
                else:
                    await self._record_failure(run.caller, fault, outcome)
            else:
                for outcome in rejections:
                    await self._outcomes.record(run.caller, outcome)
                return reply
        error = failure or mismatch
        assert error is not None  # there is at least one target
        raise error

    async def _record_failure(self, caller: LlmCaller, fault: ProviderFault, outcome: ModelOutcome) -> None:
        if isinstance(fault, ProviderBusy):
            wait = (fault.retry_after or 1) * SECOND
            self._busy_until[caller.tenant, outcome.model] = self._clock.monotonic() + wait
        # An open circuit rejects without a call, which says nothing new about the model.
        elif fault.was_called:
            await self._outcomes.record(caller, outcome)

    async def _chat(self, run: AutoRun, target: ModelTarget) -> ChatResult:
        started = time.monotonic()
        try:
            result = await self._gateway.chat_with(run.caller, target, run.request)
        finally:
            self._end_request(run.caller, target)
        await self._succeeded(run, target, started, result.usage, result.provenance_id)
        return msgspec.structs.replace(result, choice=run.choice_of(target))

    async def _stream(self, run: AutoRun, target: ModelTarget) -> ChatStream:
        started = time.monotonic()
        try:
            stream = await self._gateway.stream_with(run.caller, target, run.request)
        # A stream that did not open has no end that would count it down.
        except BaseException:
            self._end_request(run.caller, target)
            raise

        async def on_end(error: BaseException | None, usage: TokenUsage) -> None:
            self._end_request(run.caller, target)
            if error is None:
                await self._succeeded(run, target, started, usage, stream.provenance_id)
            elif isinstance(error, ProviderFault):
                await self._outcomes.record(run.caller, self._outcome(run, target, started, 0.0))

        stream.choice, stream.on_end = run.choice_of(target), on_end
        return stream

    def _begin_request(self, caller: LlmCaller, target: ModelTarget) -> None:
        self._open_requests[caller.tenant, target.name] += 1

    def _end_request(self, caller: LlmCaller, target: ModelTarget) -> None:
        key = (caller.tenant, target.name)
        self._open_requests[key] -= 1
        if not self._open_requests[key]:
            del self._open_requests[key]

    async def _succeeded(
        self, run: AutoRun, target: ModelTarget, started: float, usage: TokenUsage, answer_id: str
    ) -> None:
        outcome = self._outcome(run, target, started, 1.0)
        cost, usual_cost = self._cost(target, usage), self._usual_cost(target, run.request)
        changes = {"cost": cost, "usual_cost": usual_cost, "answer_id": answer_id}
        await self._outcomes.record(run.caller, msgspec.structs.replace(outcome, **changes))

    def _outcome(self, run: AutoRun, target: ModelTarget, started: float, reward: float) -> ModelOutcome:
        duration_ms = round((time.monotonic() - started) * 1000)
        return ModelOutcome(target.name, run.choice.kind, run.choice.decision_id, duration_ms, reward)


def _preference(request: ChatRequest) -> tuple[Preference, ChatRequest]:
    """Return the preference, and the request without it: providers do not know the field. Raises InvalidRequest."""
    metadata = request.extra.get("metadata")
    preference: object = request.prefer or "balanced"
    if isinstance(metadata, dict) and "prefer" in metadata:
        preference = metadata["prefer"]
        rest = {name: value for name, value in metadata.items() if name != "prefer"}
        extra = {name: value for name, value in request.extra.items() if name != "metadata"}
        request = msgspec.structs.replace(request, extra=extra | ({"metadata": rest} if rest else {}))
    if preference not in get_args(Preference):
        problem = f"must be one of {', '.join(get_args(Preference))}"
        raise InvalidRequest(f"metadata.prefer {problem}.", {"fields": {"metadata.prefer": problem}})
    return cast(Preference, preference), request


def _supports(target: ModelTarget, request: ChatRequest) -> bool:
    """Return whether a model supports the request as far as is known: the local baseline supports only text."""
    if target.provider != LOCAL_PROVIDER:
        return True
    has_images = any(isinstance(part, ImagePart) for message in request.messages for part in message.content)
    return not (request.tools or request.response_format or has_images)


def _is_model(name: str) -> bool:
    return (
        bool(name) and name.rpartition("/")[2] != AUTO_MODEL and not name.startswith((AUTO_GROUP_PREFIX, AGENT_PREFIX))
    )
