"""Use cases of the gateway: chat, stream, embed, and what may be asked about them.

Who answers a request: a model of a provider, or an agent that is used as a model (`agent:<capability>`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

import msgspec

from stentor.auth.principal import Principal
from stentor.core.db import Database
from stentor.core.errors import InvalidRequest, ModelNotFound, ProviderFault
from stentor.domains.llm import model, model_routes, store
from stentor.domains.llm.call_guard import CallGuard, LlmCall, LlmCaller
from stentor.domains.llm.model import (
    ChatReply,
    ChatRequest,
    EmbeddingInput,
    EmbeddingReply,
    ReplyBuilder,
    ReplyDelta,
    TokenUsage,
)
from stentor.domains.llm.model_routes import ModelRoutes, ModelTarget
from stentor.domains.llm.providers import Provider
from stentor.domains.llm.providers.backends import DeltaSource, LlmBackend
from stentor.domains.llm.providers.registry import (
    LOCAL_MODELS,
    LOCAL_PROVIDER,
    ModelCatalog,
    ProviderListing,
    ProviderRegistry,
)
from stentor.domains.llm.store import UsageRow

EXPECTED_OUTPUT_TOKENS = 256
"""Tokens that a call without a limit is expected to give, until it has given them."""
AGENT_PREFIX = "agent:"
CLIENT_ERROR_STATUSES = (400, 413, 422)
"""A provider's statuses that say that the request itself is wrong."""
AUTO_MODEL, AUTO_GROUP_PREFIX = "auto", "auto:"
T = TypeVar("T")


class AgentTaskRef(msgspec.Struct, frozen=True):
    """The task of an agent that answered as a model."""

    task_id: str
    agent_id: str
    agent_name: str


class ModelChoice(msgspec.Struct, frozen=True):
    """Why a request to `auto` went to the model that answered; the event `decision_id` of the run log has all of it."""

    kind: str
    prefer: str
    why: str
    decision_id: str


class ChatResult(msgspec.Struct, frozen=True):
    """`provenance_id` is the event of the run log that records the call, or where the task of an agent begins."""

    reply: ChatReply
    usage: TokenUsage
    name: str
    provenance_id: str
    agent_task: AgentTaskRef | None = None
    choice: ModelChoice | None = None


class EmbeddingResult(msgspec.Struct, frozen=True):
    reply: EmbeddingReply
    usage: TokenUsage
    target: ModelTarget
    provenance_id: str


StreamEndHook = Callable[[BaseException | None, TokenUsage], Awaitable[None]]
"""Told once how a stream ended: with its usage, before its last part is read, or with what broke it off."""


class ChatStream:
    """A stream that has begun, to be read once: deltas, the last of them with the usage. `close` gives it up."""

    choice: ModelChoice | None = None
    on_end: StreamEndHook | None = None

    def __init__(self, request: ChatRequest, passage: LlmCall, source: DeltaSource, *, degraded: bool) -> None:
        self._request, self._passage, self._source = request, passage, source
        self._gathered = ReplyBuilder()
        self._ended = False
        self.name = passage.target.name
        self.agent_task: AgentTaskRef | None = None
        self.provenance_id = passage.evidence.call_id
        self.degraded = degraded

    async def __aiter__(self) -> AsyncIterator[ReplyDelta]:
        """Raises ProviderFault in the middle, StoreUnavailable at the end when it cannot be recorded."""
        try:
            async for delta in self._source:
                self._gathered.add(delta)
                if delta.content or delta.reasoning or delta.tool_calls:
                    yield msgspec.structs.replace(delta, finish=None, usage=None, is_last=False)
        except BaseException as error:
            await self._gave_up(error)
            raise
        self._ended = True
        self._source.close()
        reply = self._gathered.build(self.name)
        usage = model.usage_or_estimate(self._request, reply)
        try:
            await self._passage.complete(usage)
        except BaseException as error:
            await self._tell(error, usage)
            raise
        await self._tell(None, usage)
        if (whole := model.with_reasoning_fallback(reply)) is not reply:
            yield ReplyDelta(content=whole.content)
        yield ReplyDelta(finish=reply.finish, usage=usage, id=reply.id, is_last=True)

    async def close(self) -> None:
        """Give it up, wherever it is; nothing after its end."""
        await self._gave_up(GeneratorExit())

    async def _gave_up(self, error: BaseException) -> None:
        if not self._ended:
            self._ended = True
            self._source.close()
            usage = model.usage_or_estimate(self._request, self._gathered.build(self.name))
            await self._passage.fail(error, usage)
            await self._tell(error, usage)

    async def _tell(self, error: BaseException | None, usage: TokenUsage) -> None:
        if self.on_end is not None:
            await self.on_end(error, usage)


class AutoModelPort(Protocol):
    """Picks the model of a request to `auto` or `auto:<group>`; above this domain, because it ranks as routing does."""

    async def chat(self, caller: LlmCaller, request: ChatRequest) -> ChatResult: ...
    async def stream(self, caller: LlmCaller, request: ChatRequest) -> ChatStream: ...
    async def model_names(self, tenant: str) -> list[str]: ...


class LlmGateway:
    """`default_model` is for requests that name none: a bare name of the default provider, or `provider/model`."""

    def __init__(
        self,
        db: Database,
        directory: ProviderRegistry,
        catalogue: ModelCatalog,
        gate: CallGuard,
        routes: ModelRoutes,
        remote: LlmBackend,
        local: LlmBackend | None = None,
        default_provider: str = "",
        default_model: str = "",
    ) -> None:
        self._db = db
        self.provider_registry = directory
        self._catalogue = catalogue
        self._gate = gate
        self.call_metrics = gate.call_metrics
        self.routes = routes
        self._remote = remote
        self._local = local
        self.default_provider = default_provider
        self.default_model = default_model
        self.auto_router: AutoModelPort | None = None
        """Set once it is there, which needs the gateway itself."""

    async def chat(self, caller: LlmCaller, request: ChatRequest) -> ChatResult:
        """Raises ModelNotFound, BudgetSpent, ProviderFault."""
        if (auto := self._auto_for(request.model)) is not None:
            return await auto.chat(caller, request)
        return await self._first(caller, request.model, lambda target: self.chat_with(caller, target, request))

    async def stream(self, caller: LlmCaller, request: ChatRequest) -> ChatStream:
        """Returns when the provider has begun to answer. Raises like `chat`."""
        if (auto := self._auto_for(request.model)) is not None:
            return await auto.stream(caller, request)
        return await self._first(caller, request.model, lambda target: self.stream_with(caller, target, request))

    async def chat_with(self, caller: LlmCaller, target: ModelTarget, request: ChatRequest) -> ChatResult:
        """The answer of this model and of no other. Raises BudgetSpent, ProviderFault."""
        passage = await self._gate.start_call(caller, target, "chat", lambda: expected_usage(request))
        asked = msgspec.structs.replace(request, model=target.model)
        reply = await _passing(passage, self._backend(target).chat(target, asked, passage.evidence))
        usage = model.usage_or_estimate(request, reply)
        await passage.complete(usage)
        return ChatResult(model.with_reasoning_fallback(reply), usage, target.name, passage.evidence.call_id)

    async def stream_with(self, caller: LlmCaller, target: ModelTarget, request: ChatRequest) -> ChatStream:
        """The same, begun."""
        passage = await self._gate.start_call(caller, target, "chat", lambda: expected_usage(request))
        asked = msgspec.structs.replace(request, model=target.model)
        source = await _passing(passage, self._backend(target).stream(target, asked, passage.evidence))
        return ChatStream(request, passage, source, degraded=target.provider == LOCAL_PROVIDER)

    def _auto_for(self, name: str) -> AutoModelPort | None:
        name = name or self.default_model
        return self.auto_router if name == AUTO_MODEL or name.startswith(AUTO_GROUP_PREFIX) else None

    async def embed(
        self, caller: LlmCaller, name: str, inputs: Sequence[EmbeddingInput], dimensions: int | None = None
    ) -> EmbeddingResult:
        """One vector per input, in their order. Raises like `chat`, and InvalidRequest for tokens where texts go."""

        async def once(target: ModelTarget) -> EmbeddingResult:
            passage = await self._gate.start_call(
                caller, target, "embed", lambda: model.estimate_embedding_usage(inputs)
            )
            work = self._backend(target).embed(target, inputs, dimensions, passage.evidence)
            found = await _passing(passage, work)
            usage = found.usage or model.estimate_embedding_usage(inputs)
            await passage.complete(usage)
            return EmbeddingResult(found, usage, target, passage.evidence.call_id)

        return await self._first(caller, name, once)

    async def listings(self, tenant: str, *, live: bool = False) -> list[ProviderListing]:
        """Every provider with its models and whether it answers."""
        providers = await self.provider_registry.providers_of(tenant)
        return await self._catalogue.listings(providers.values(), live=live)

    async def auto_model_names(self, tenant: str) -> list[str]:
        """The names under which a model is picked."""
        return await self.auto_router.model_names(tenant) if self.auto_router is not None else []

    async def usage(self, tenant: str, start: int, end: int, provider: str) -> list[UsageRow]:
        """Calls from `start` on and before `end` (microseconds); an empty provider means all."""
        return await self._db.read(lambda tx: store.read_usage(tx, tenant, start, end, provider))

    async def close(self) -> None:
        await self._gate.close()

    def _backend(self, target: ModelTarget) -> LlmBackend:
        return self._local if self._local is not None and target.provider == LOCAL_PROVIDER else self._remote

    async def _first(self, caller: LlmCaller, name: str, once: Callable[[ModelTarget], Awaitable[T]]) -> T:
        """The first of the targets that answers; the failure of the first one, when none does.

        They are looked up as they are needed; a name that is nowhere is passed over. Raises ModelNotFound.
        """
        if name.startswith(AGENT_PREFIX):
            raise InvalidRequest(
                f"{AGENT_PREFIX}<capability> answers conversations; it embeds nothing, and no agent uses it."
            )
        if name == AUTO_MODEL or name.startswith(AUTO_GROUP_PREFIX):
            raise InvalidRequest(f"{name} answers conversations; vectors of different models cannot be compared.")
        providers = await self.provider_registry.providers_of(caller.tenant)
        asked = name or self._default(providers)
        failure: ProviderFault | None = None
        for wanted in self.routes.candidate_names(asked):
            target = await self.resolve_target(wanted, providers)
            if target is None:
                continue
            try:
                return await once(target)
            except ProviderFault as fault:
                add_provider_details(fault, target)
                if fault.upstream_status in CLIENT_ERROR_STATUSES:
                    raise  # the request itself is wrong, and would be wrong elsewhere
                failure = failure or fault
        raise failure or ModelNotFound(_missing(asked, providers))

    async def resolve_target(self, name: str, providers: dict[str, Provider]) -> ModelTarget | None:
        """Other providers may have models that they do not list; the baseline has none but its own."""
        found = await self._named(name, providers)
        return None if found and found.provider == LOCAL_PROVIDER and found.model not in LOCAL_MODELS else found

    async def _named(self, name: str, providers: dict[str, Provider]) -> ModelTarget | None:
        if direct := model_routes.resolve_qualified_name(name, providers):
            return direct
        listings = await self._catalogue.listings(providers.values())
        pairs = [(listing.provider, listing.models or ()) for listing in listings]
        if found := model_routes.resolve_listed_name(name, pairs, self.default_provider):
            return found
        default = providers.get(self.default_provider)
        return ModelTarget(default, name) if default else None

    def _default(self, providers: dict[str, Provider]) -> str:
        """The model of a request that names none. Raises InvalidRequest."""
        provider = providers.get(self.default_provider)
        name = self.default_model or (provider.default_model if provider else "")
        if not name:
            raise InvalidRequest("Name a model, or have the operator set SERVICE_LLM_DEFAULT_MODEL.")
        return name


def add_provider_details(fault: ProviderFault, target: ModelTarget) -> None:
    """Tell the caller which provider failed."""
    fault.details = {"provider_failure": True, "provider": target.provider.name, **(fault.details or {})}


async def _passing(passage: LlmCall, work: Awaitable[T]) -> T:
    try:
        return await work
    except BaseException as error:
        await passage.fail(error)
        raise


def expected_usage(request: ChatRequest) -> TokenUsage:
    return TokenUsage(
        model.estimate_input_tokens(request), request.max_tokens or EXPECTED_OUTPUT_TOKENS, estimated=True
    )


def _missing(name: str, providers: dict[str, Provider]) -> str:
    if not providers:
        return (
            "No provider of language models is configured: set OPENAI_API_KEY, ANTHROPIC_API_KEY, GEMINI_API_KEY or "
            "OLLAMA_HOST, or register one with POST /api/v1/llm/provider."
        )
    return f"No configured provider has the model {name!r}. GET /api/v1/llm/models lists those that there are."


class AnswerStream(Protocol):
    """An answer that has begun, to be read once: deltas, the last of them with the usage. `close` gives it up."""

    @property
    def name(self) -> str: ...
    @property
    def provenance_id(self) -> str: ...
    @property
    def degraded(self) -> bool: ...
    @property
    def agent_task(self) -> AgentTaskRef | None: ...
    @property
    def choice(self) -> ModelChoice | None: ...
    def __aiter__(self) -> AsyncIterator[ReplyDelta]: ...
    async def close(self) -> None: ...


class AgentChatPort(Protocol):
    """Agents as models; above this domain, because tasks are."""

    def capabilities(self, tenant: str) -> list[str]: ...
    async def chat(self, principal: Principal, request: ChatRequest) -> ChatResult: ...
    async def stream(self, principal: Principal, request: ChatRequest) -> AnswerStream: ...


class ChatRouter:
    def __init__(self, gateway: LlmGateway, agents: AgentChatPort) -> None:
        self._gateway = gateway
        self._agents = agents

    async def chat(self, principal: Principal, request: ChatRequest, agent_id: str | None = None) -> ChatResult:
        """`agent_id` is an agent of the caller's, whose account the call is on too. Raises like Gateway and Agents."""
        if is_agent_model(request):
            return await self._agents.chat(principal, request)
        return await self._gateway.chat(LlmCaller(principal.tenant, principal.name, agent_id), request)

    async def stream(self, principal: Principal, request: ChatRequest) -> AnswerStream:
        """Returns when somebody has begun to answer."""
        if is_agent_model(request):
            return await self._agents.stream(principal, request)
        return await self._gateway.stream(LlmCaller(principal.tenant, principal.name), request)

    def agent_model_names(self, tenant: str) -> list[str]:
        """The agents that may be asked now, as names of models."""
        return [AGENT_PREFIX + capability for capability in self._agents.capabilities(tenant)]


def is_agent_model(request: ChatRequest) -> bool:
    """Raises InvalidRequest for a name without a capability."""
    if not request.model.startswith(AGENT_PREFIX):
        return False
    if not request.model[len(AGENT_PREFIX) :].strip():
        raise InvalidRequest(
            f"Name a capability: {AGENT_PREFIX}<capability>.", {"fields": {"model": "has no capability"}}
        )
    return True
