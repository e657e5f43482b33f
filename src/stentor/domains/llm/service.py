"""The LLM gateway's use cases: chat, stream and embed with fallbacks, and lists of providers and usage.

Every provider call goes through `call_guard`; names are resolved in `model_routes`; the model `auto` is in
`domains/modelrouting`, and requests to agents as models are in `chat_router`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Protocol, TypeVar

import msgspec

from stentor.core.db import Database
from stentor.core.errors import Forbidden, InvalidRequest, ModelNotFound, ProviderFault
from stentor.domains.llm import model, model_routes, token_estimates
from stentor.domains.llm.calls.call_guard import CallGuard, LlmCall, LlmCaller, UsageEstimate
from stentor.domains.llm.model import ChatRequest, EmbeddingInput, TokenUsage
from stentor.domains.llm.model_routes import ModelTarget, TenantRoutes
from stentor.domains.llm.providers import Provider
from stentor.domains.llm.providers.backends import LlmBackend
from stentor.domains.llm.providers.registry import (
    LOCAL_MODELS,
    LOCAL_PROVIDER,
    ModelCatalog,
    ProviderListing,
    ProviderRegistry,
)
from stentor.domains.llm.results import ChatResult, ChatStream, EmbeddingResult
from stentor.domains.llm.usage import store as usage_store
from stentor.domains.llm.usage.store import UsageRow

EXPECTED_OUTPUT_TOKENS = 256
"""Output tokens that budgets reserve, and a caller pays who gives up, for a call without max_tokens."""
MAX_LEFT_OUTPUT_TOKENS = 32_000
"""The most output tokens that a caller pays who gives up: hardly a model writes more before a call times out."""
AGENT_PREFIX = "agent:"
MODELS_HINT = (
    "`stentor call llm.models` or GET /api/v1/llm/models lists the available ones: name one of them, or configure the "
    "provider that has it."
)
MODEL_CHECK_SECONDS = 3.0
"""Longest time for which a registration waits for the providers' lists of models."""
CLIENT_ERROR_STATUSES = (400, 413, 422)
"""A provider's statuses for an invalid request; fallbacks would only repeat the error."""
AUTO_MODEL, AUTO_GROUP_PREFIX = "auto", "auto:"
T = TypeVar("T")


class AutoModelPort(Protocol):
    """Chooses the model for `auto` and `auto:<group>`. A port: the ranking is in a domain above this one."""

    async def chat(self, caller: LlmCaller, request: ChatRequest) -> ChatResult: ...
    async def stream(self, caller: LlmCaller, request: ChatRequest) -> ChatStream: ...
    async def model_names(self, tenant: str, allowed: Sequence[str]) -> list[str]: ...


class LlmGateway:
    """Calls of models, with fallbacks. `default_model` is used by requests that name none: any valid model name."""

    def __init__(
        self,
        db: Database,
        provider_registry: ProviderRegistry,
        catalog: ModelCatalog,
        guard: CallGuard,
        routes: TenantRoutes,
        remote: LlmBackend,
        local: LlmBackend | None = None,
        default_provider: str = "",
        default_model: str = "",
    ) -> None:
        self._db = db
        self.provider_registry = provider_registry
        self._catalog = catalog
        self._guard = guard
        self.call_metrics = guard.call_metrics
        self.routes = routes
        self._remote = remote
        self._local = local
        self.default_provider = default_provider
        self.default_model = default_model
        self.auto_router: AutoModelPort | None = None
        """Set after construction, because the router itself needs the gateway."""

    async def chat(self, caller: LlmCaller, request: ChatRequest) -> ChatResult:
        """Return the reply of the first model that succeeds. Raises ModelNotFound, BudgetExceeded, ProviderFault."""
        if (auto := self._auto_for(request.model)) is not None:
            return await auto.chat(caller, request)
        return await self._try_models(caller, request.model, lambda target: self.chat_with(caller, target, request))

    async def stream(self, caller: LlmCaller, request: ChatRequest) -> ChatStream:
        """Return a stream once a provider has started to respond. Raises like `chat`."""
        if (auto := self._auto_for(request.model)) is not None:
            return await auto.stream(caller, request)
        return await self._try_models(caller, request.model, lambda target: self.stream_with(caller, target, request))

    async def chat_with(self, caller: LlmCaller, target: ModelTarget, request: ChatRequest) -> ChatResult:
        """Return the reply of exactly this model. Raises BudgetExceeded, ProviderFault."""
        call = await self._guard.start_call(caller, target, "chat", lambda: expected_usage(request))
        provider_request = msgspec.structs.replace(request, model=target.model)
        work = self._backend(target).chat(target, provider_request, call.evidence)
        reply = await _fail_on_error(
            call, work, lambda: token_estimates.estimate_input_usage(request), lambda: _usage_if_left(request)
        )
        usage = token_estimates.usage_or_estimate(request, reply)
        await call.complete(usage)
        return ChatResult(model.with_reasoning_fallback(reply), usage, target.name, call.evidence.call_id)

    async def stream_with(self, caller: LlmCaller, target: ModelTarget, request: ChatRequest) -> ChatStream:
        """Return a stream of exactly this model. Raises like `chat_with`."""
        call = await self._guard.start_call(caller, target, "chat", lambda: expected_usage(request))
        provider_request = msgspec.structs.replace(request, model=target.model)
        work = self._backend(target).stream(target, provider_request, call.evidence)
        source = await _fail_on_error(call, work, lambda: token_estimates.estimate_input_usage(request))
        return ChatStream(request, call, source, degraded=target.provider == LOCAL_PROVIDER)

    async def embed(
        self, caller: LlmCaller, name: str, inputs: Sequence[EmbeddingInput], dimensions: int | None = None
    ) -> EmbeddingResult:
        """Return one vector per input, in the same order.

        Raises like `chat`, and InvalidRequest for token ids if the provider accepts only texts.
        """

        estimate = partial(token_estimates.estimate_embedding_usage, inputs)

        async def embed_with(target: ModelTarget) -> EmbeddingResult:
            call = await self._guard.start_call(caller, target, "embed", estimate)
            work = self._backend(target).embed(target, inputs, dimensions, call.evidence)
            reply = await _fail_on_error(call, work, estimate)
            usage = reply.usage or estimate()
            await call.complete(usage)
            return EmbeddingResult(reply, usage, call.evidence.call_id)

        return await self._try_models(caller, name, embed_with)

    async def listings(self, tenant: str, *, live: bool = False, allowed: Sequence[str] = ()) -> list[ProviderListing]:
        """Return every provider with its models and whether it is reachable; `live` skips the cache.

        Leaves out models that a key with the patterns `allowed` may not use.
        """
        providers = await self.provider_registry.providers_of(tenant)
        listings = await self._catalog.listings(providers.values(), live=live)
        if not allowed:
            return listings
        is_allowed = self.routes.of(tenant).limit_to(allowed, providers)

        def select(listing: ProviderListing) -> ProviderListing:
            usable = (name for name in listing.models or () if is_allowed(ModelTarget(listing.provider, name)))
            return msgspec.structs.replace(listing, models=tuple(usable))

        return [select(listing) if listing.models else listing for listing in listings]

    async def usable_groups(self, tenant: str, allowed: Sequence[str]) -> list[str]:
        """Return the groups of which a key with the patterns `allowed` may use a model; all without patterns."""
        routes = self.routes.of(tenant)
        if not allowed:
            return routes.groups
        providers = await self.provider_registry.providers_of(tenant)
        is_allowed = routes.limit_to(allowed, providers)
        return [
            group
            for group in routes.groups
            if any(map(is_allowed, await self._resolve_all(routes.group_members(group) or (), providers)))
        ]

    async def auto_model_names(self, tenant: str, allowed: Sequence[str]) -> list[str]:
        """Return the names `auto` and `auto:<group>` that a key with the patterns `allowed` can use."""
        return await self.auto_router.model_names(tenant, allowed) if self.auto_router is not None else []

    async def usage(self, tenant: str, start: int, end: int, provider: str) -> list[UsageRow]:
        """Return usage by provider, model and day from `start` (included) to `end` (excluded), both starts of days.

        In microseconds. An empty provider means all. A model may have two rows for a day.
        """
        return await self._db.read(lambda tx: usage_store.read_usage(tx, tenant, start, end, provider))

    async def close(self) -> None:
        await self._catalog.close()
        await self._guard.close()

    def _auto_for(self, name: str) -> AutoModelPort | None:
        name = name or self.default_model
        return self.auto_router if name == AUTO_MODEL or name.startswith(AUTO_GROUP_PREFIX) else None

    def _backend(self, target: ModelTarget) -> LlmBackend:
        return self._local if self._local is not None and target.provider == LOCAL_PROVIDER else self._remote

    async def _try_models(self, caller: LlmCaller, name: str, call: Callable[[ModelTarget], Awaitable[T]]) -> T:
        """Call the model and then its fallbacks until one succeeds; if none does, raise the first one's fault.

        Ignores a fallback that no provider has or that the caller may not use. Raises ModelNotFound if no name can be
        resolved, Forbidden for a model or group that the caller may not use, and InvalidRequest if no model's API
        format can express the request.
        """
        if name.startswith(AGENT_PREFIX):
            raise InvalidRequest(
                f"{AGENT_PREFIX}<capability> is only for chat requests of users; name a provider's model here."
            )
        if name == AUTO_MODEL or name.startswith(AUTO_GROUP_PREFIX):
            raise InvalidRequest(
                f"{name} is only for chat: vectors of different models cannot be compared. Name a provider's model."
            )
        providers = await self.provider_registry.providers_of(caller.tenant)
        name = name or self._default_model(providers)
        routes = self.routes.of(caller.tenant)
        if caller.models:
            # Before the fallbacks: they are for a model that fails, not for one that is refused.
            await self._require_allowed(caller, name, providers)
        is_allowed = routes.limit_to(caller.models, providers)
        first_fault: ProviderFault | None = None
        mismatch: InvalidRequest | None = None
        for candidate in routes.candidate_names(name):
            # One by one and not all at first: the list of models of a provider that is not needed is not fetched.
            target = await self.resolve_target(candidate, providers)
            if target is None or not is_allowed(target):
                continue
            try:
                return await call(target)
            except InvalidRequest as error:
                mismatch = mismatch or error
            except ProviderFault as fault:
                add_provider_details(fault, target)
                first_fault = first_fault or fault
                # A retry would be billed again by each provider that may have answered.
                first_fault.is_repeatable &= fault.is_repeatable
                if fault.upstream_status in CLIENT_ERROR_STATUSES:
                    break
        raise first_fault or mismatch or ModelNotFound(_not_found_message(name, providers))

    async def _require_allowed(self, caller: LlmCaller, name: str, providers: dict[str, Provider]) -> None:
        """Raise Forbidden if the caller may not use the model, or no model of the group."""
        routes = self.routes.of(caller.tenant)
        names = routes.group_members(name) or [name]
        targets = await self._resolve_all(names, providers)
        if targets and not any(map(routes.limit_to(caller.models, providers), targets)):
            raise not_allowed(caller, f"the model {targets[0].name!r}" if names == [name] else f"the group {name!r}")

    async def _resolve_all(self, names: Iterable[str], providers: dict[str, Provider]) -> list[ModelTarget]:
        """Return what those of the names that a provider has stand for."""
        return [target for name in names if (target := await self.resolve_target(name, providers))]

    async def resolve_target(self, name: str, providers: dict[str, Provider]) -> ModelTarget | None:
        """Return the provider and model of a name, None if there is none.

        Providers may have models that they do not list; the local baseline has only the listed ones.
        """
        target = model_routes.resolve_qualified_name(name, providers) or await self._resolve_bare_name(name, providers)
        return None if target and target.provider == LOCAL_PROVIDER and target.model not in LOCAL_MODELS else target

    async def _resolve_bare_name(self, name: str, providers: dict[str, Provider]) -> ModelTarget | None:
        listings = await self._catalog.listings(providers.values())
        pairs = [(listing.provider, listing.models or ()) for listing in listings]
        if target := model_routes.resolve_listed_name(name, pairs, self.default_provider):
            return target
        default = providers.get(self.default_provider)
        # The default provider may have models that it does not list; it then reports an unknown name itself.
        return ModelTarget(default, name) if default else None

    async def find_model_problem(self, tenant: str, name: str) -> str | None:
        """Return why a request for this model would fail, empty for the default one; None if it would not.

        Asks the providers for their lists. One that does not answer within some seconds may serve any model.
        """
        providers = await self.provider_registry.providers_of(tenant)
        if not providers:
            return _not_found_message(name, providers)
        try:
            name = name or self._default_model(providers)
        except InvalidRequest as error:
            return error.message
        if name == AUTO_MODEL or name.startswith(AUTO_GROUP_PREFIX):
            return None
        routes = self.routes.of(tenant)
        fallbacks = [*routes.fallbacks.get(name, ()), *routes.fallbacks.get("*", ())]
        try:
            async with asyncio.timeout(MODEL_CHECK_SECONDS):
                for candidate in (*(routes.group_members(name) or [name]), *fallbacks):
                    if await self._may_be_served(candidate, providers):
                        return None
        except TimeoutError:
            return None
        return f"model {name!r} is not served by any provider. {MODELS_HINT}"

    async def _may_be_served(self, name: str, providers: dict[str, Provider]) -> bool:
        """Return whether a provider has the model, or does not say which models it has."""
        target = await self.resolve_target(name, providers)
        if target is None:
            return False
        (listing,) = await self._catalog.listings([target.provider])
        models = listing.models or ()
        return not models or target.model in models or f"{target.model}:latest" in models

    def _default_model(self, providers: dict[str, Provider]) -> str:
        """Return the model for a request that names none. Raises InvalidRequest."""
        provider = providers.get(self.default_provider)
        name = self.default_model or (provider.default_model if provider else "")
        if not name:
            raise InvalidRequest(
                "The request names no model, and no default is set. Name one, or set SERVICE_LLM_DEFAULT_MODEL."
            )
        return name


def not_allowed(caller: LlmCaller, what: str) -> Forbidden:
    """Return the error for models that the caller's key may not use."""
    return Forbidden(f"The key {caller.key!r} may not use {what}. It may use: {', '.join(caller.models)}.")


def add_provider_details(fault: ProviderFault, target: ModelTarget) -> None:
    """Add to an error which provider failed; the mark `provider_failure` spares the agent's track record."""
    fault.details = {"provider_failure": True, "provider": target.provider.name, **(fault.details or {})}


async def _fail_on_error(
    call: LlmCall, response: Awaitable[T], estimate_sent: UsageEstimate, estimate_left: UsageEstimate | None = None
) -> T:
    """Return the response; record a failure with the first estimate, or the second if the caller has left."""
    # Cancellation too: a call that is not ended would keep its reservation.
    try:
        return await response
    except BaseException as error:
        is_billed = call.evidence.may_be_billed(error)
        if is_billed and isinstance(error, ProviderFault):
            error.is_repeatable = False
        has_left = isinstance(error, asyncio.CancelledError)
        estimate = estimate_left if has_left and estimate_left else estimate_sent
        await call.fail(error, estimate() if is_billed else None)
        raise


def _usage_if_left(request: ChatRequest) -> TokenUsage:
    """Estimate the usage of a request whose caller did not wait for the reply: the provider may complete and bill it.

    If only the request counted, callers that always leave early would spend without a limit.
    """
    usage = expected_usage(request)
    return msgspec.structs.replace(usage, output_tokens=min(usage.output_tokens, MAX_LEFT_OUTPUT_TOKENS))


def expected_usage(request: ChatRequest) -> TokenUsage:
    """Estimate the usage of a request before it is sent; its `max_tokens` may all be used."""
    return TokenUsage(
        token_estimates.estimate_input_tokens(request), request.max_tokens or EXPECTED_OUTPUT_TOKENS, estimated=True
    )


def _not_found_message(name: str, providers: dict[str, Provider]) -> str:
    if not providers:
        wanted = f" for the model {name!r}" if name else ""
        return (
            f"No LLM provider is configured{wanted}: set OPENAI_API_KEY, ANTHROPIC_API_KEY, GEMINI_API_KEY or "
            "OLLAMA_HOST, or register one with POST /api/v1/llm/provider."
        )
    return f"No configured provider has the model {name!r}. {MODELS_HINT}"
