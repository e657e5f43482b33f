"""Use cases of the gateway: chat, stream, embed, and what may be asked about them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

import msgspec

from stentor.core.db import Database
from stentor.core.errors import InvalidRequest, ModelNotFound, ProviderFault
from stentor.domains.llm import model, routes, store
from stentor.domains.llm.backends import Backend, Deltas
from stentor.domains.llm.catalogue import Catalogue, Listing
from stentor.domains.llm.directory import LOCAL, LOCAL_MODELS, Directory
from stentor.domains.llm.gate import Caller, Gate, Passage
from stentor.domains.llm.model import Delta, Embedded, EmbeddingInput, Gathered, Reply, Request, Usage
from stentor.domains.llm.providers import Provider
from stentor.domains.llm.routes import Routes, Target
from stentor.domains.llm.store import UsageRow

EXPECTED_OUTPUT = 256
"""Tokens that a call without a limit is expected to give, until it has given them."""
AGENT = "agent:"
WRONG = (400, 413, 422)
"""A provider's statuses that say that the request itself is wrong."""
AUTO, AUTO_GROUP = "auto", "auto:"
T = TypeVar("T")


class Work(msgspec.Struct, frozen=True):
    """The task of an agent that answered as a model."""

    task_id: str
    agent_id: str
    agent_name: str


class Choice(msgspec.Struct, frozen=True):
    """Why a request to `auto` went to the model that answered; the event `decision_id` of the run log has all of it."""

    kind: str
    prefer: str
    why: str
    decision_id: str


class Done(msgspec.Struct, frozen=True):
    """`provenance_id` is the event of the run log that records the call, or where the task of an agent begins."""

    reply: Reply
    usage: Usage
    name: str
    provenance_id: str
    work: Work | None = None
    choice: Choice | None = None


class Vectors(msgspec.Struct, frozen=True):
    found: Embedded
    usage: Usage
    target: Target
    provenance_id: str


After = Callable[[BaseException | None, Usage], Awaitable[None]]
"""Told once how a stream ended: with its usage, before its last part is read, or with what broke it off."""


class Stream:
    """A stream that has begun, to be read once: deltas, the last of them with the usage. `close` gives it up."""

    choice: Choice | None = None
    after: After | None = None

    def __init__(self, request: Request, passage: Passage, source: Deltas, *, degraded: bool) -> None:
        self._request, self._passage, self._source = request, passage, source
        self._gathered = Gathered()
        self._ended = False
        self.name = passage.target.name
        self.work: Work | None = None
        self.provenance_id = passage.evidence.call_id
        self.degraded = degraded

    async def __aiter__(self) -> AsyncIterator[Delta]:
        """Raises ProviderFault in the middle, StoreUnavailable at the end when it cannot be recorded."""
        try:
            async for delta in self._source:
                self._gathered.add(delta)
                if delta.content or delta.reasoning or delta.tool_calls:
                    yield msgspec.structs.replace(delta, finish=None, usage=None, last=False)
        except BaseException as error:
            await self._gave_up(error)
            raise
        self._ended = True
        self._source.close()
        reply = self._gathered.reply(self.name)
        usage = model.counted(self._request, reply)
        try:
            await self._passage.done(usage)
        except BaseException as error:
            await self._tell(error, usage)
            raise
        await self._tell(None, usage)
        if (whole := model.answered(reply)) is not reply:
            yield Delta(content=whole.content)
        yield Delta(finish=reply.finish, usage=usage, id=reply.id, last=True)

    async def close(self) -> None:
        """Give it up, wherever it is; nothing after its end."""
        await self._gave_up(GeneratorExit())

    async def _gave_up(self, error: BaseException) -> None:
        if not self._ended:
            self._ended = True
            self._source.close()
            usage = model.counted(self._request, self._gathered.reply(self.name))
            await self._passage.failed(error, usage)
            await self._tell(error, usage)

    async def _tell(self, error: BaseException | None, usage: Usage) -> None:
        if self.after is not None:
            await self.after(error, usage)


class Auto(Protocol):
    """Picks the model of a request to `auto` or `auto:<group>`; above this domain, because it ranks as routing does."""

    async def chat(self, caller: Caller, request: Request) -> Done: ...
    async def stream(self, caller: Caller, request: Request) -> Stream: ...
    async def names(self, tenant: str) -> list[str]: ...


class Gateway:
    """`default_model` is for requests that name none: a bare name of the default provider, or `provider/model`."""

    def __init__(
        self,
        db: Database,
        directory: Directory,
        catalogue: Catalogue,
        gate: Gate,
        routes: Routes,
        remote: Backend,
        local: Backend | None = None,
        default_provider: str = "",
        default_model: str = "",
    ) -> None:
        self._db = db
        self.directory = directory
        self._catalogue = catalogue
        self._gate = gate
        self.calls = gate.calls
        self.routes = routes
        self._remote = remote
        self._local = local
        self.default_provider = default_provider
        self.default_model = default_model
        self.auto: Auto | None = None
        """Set once it is there, which needs the gateway itself."""

    async def chat(self, caller: Caller, request: Request) -> Done:
        """Raises ModelNotFound, BudgetSpent, ProviderFault."""
        if (auto := self._auto_for(request.model)) is not None:
            return await auto.chat(caller, request)
        return await self._first(caller, request.model, lambda target: self.chat_with(caller, target, request))

    async def stream(self, caller: Caller, request: Request) -> Stream:
        """Returns when the provider has begun to answer. Raises like `chat`."""
        if (auto := self._auto_for(request.model)) is not None:
            return await auto.stream(caller, request)
        return await self._first(caller, request.model, lambda target: self.stream_with(caller, target, request))

    async def chat_with(self, caller: Caller, target: Target, request: Request) -> Done:
        """The answer of this model and of no other. Raises BudgetSpent, ProviderFault."""
        passage = await self._gate.admit(caller, target, "chat", lambda: expected(request))
        asked = msgspec.structs.replace(request, model=target.model)
        reply = await _passing(passage, self._backend(target).chat(target, asked, passage.evidence))
        usage = model.counted(request, reply)
        await passage.done(usage)
        return Done(model.answered(reply), usage, target.name, passage.evidence.call_id)

    async def stream_with(self, caller: Caller, target: Target, request: Request) -> Stream:
        """The same, begun."""
        passage = await self._gate.admit(caller, target, "chat", lambda: expected(request))
        asked = msgspec.structs.replace(request, model=target.model)
        source = await _passing(passage, self._backend(target).stream(target, asked, passage.evidence))
        return Stream(request, passage, source, degraded=target.provider == LOCAL)

    def _auto_for(self, name: str) -> Auto | None:
        name = name or self.default_model
        return self.auto if name == AUTO or name.startswith(AUTO_GROUP) else None

    async def embed(
        self, caller: Caller, name: str, inputs: Sequence[EmbeddingInput], dimensions: int | None = None
    ) -> Vectors:
        """One vector per input, in their order. Raises like `chat`, and InvalidRequest for tokens where texts go."""

        async def once(target: Target) -> Vectors:
            passage = await self._gate.admit(caller, target, "embed", lambda: model.embedding_estimate(inputs))
            work = self._backend(target).embed(target, inputs, dimensions, passage.evidence)
            found = await _passing(passage, work)
            usage = found.usage or model.embedding_estimate(inputs)
            await passage.done(usage)
            return Vectors(found, usage, target, passage.evidence.call_id)

        return await self._first(caller, name, once)

    async def listings(self, tenant: str, *, live: bool = False) -> list[Listing]:
        """Every provider with its models and whether it answers."""
        providers = await self.directory.of(tenant)
        return await self._catalogue.listings(providers.values(), live=live)

    async def auto_names(self, tenant: str) -> list[str]:
        """The names under which a model is picked."""
        return await self.auto.names(tenant) if self.auto is not None else []

    async def usage(self, tenant: str, start: int, end: int, provider: str) -> list[UsageRow]:
        """Calls from `start` on and before `end` (microseconds); an empty provider means all."""
        return await self._db.read(lambda tx: store.usage(tx, tenant, start, end, provider))

    async def close(self) -> None:
        await self._gate.close()

    def _backend(self, target: Target) -> Backend:
        return self._local if self._local is not None and target.provider == LOCAL else self._remote

    async def _first(self, caller: Caller, name: str, once: Callable[[Target], Awaitable[T]]) -> T:
        """The first of the targets that answers; the failure of the first one, when none does.

        They are looked up as they are needed; a name that is nowhere is passed over. Raises ModelNotFound.
        """
        if name.startswith(AGENT):
            raise InvalidRequest(f"{AGENT}<capability> answers conversations; it embeds nothing, and no agent uses it.")
        if name == AUTO or name.startswith(AUTO_GROUP):
            raise InvalidRequest(f"{name} answers conversations; vectors of different models cannot be compared.")
        providers = await self.directory.of(caller.tenant)
        asked = name or self._default(providers)
        failure: ProviderFault | None = None
        for wanted in self.routes.names(asked):
            target = await self.target(wanted, providers)
            if target is None:
                continue
            try:
                return await once(target)
            except ProviderFault as fault:
                say_whose(fault, target)
                if fault.upstream_status in WRONG:
                    raise  # the request itself is wrong, and would be wrong elsewhere
                failure = failure or fault
        raise failure or ModelNotFound(_missing(asked, providers))

    async def target(self, name: str, providers: dict[str, Provider]) -> Target | None:
        """Other providers may have models that they do not list; the baseline has none but its own."""
        found = await self._named(name, providers)
        return None if found and found.provider == LOCAL and found.model not in LOCAL_MODELS else found

    async def _named(self, name: str, providers: dict[str, Provider]) -> Target | None:
        if direct := routes.named(name, providers):
            return direct
        listings = await self._catalogue.listings(providers.values())
        pairs = [(listing.provider, listing.models or ()) for listing in listings]
        if found := routes.listed(name, pairs, self.default_provider):
            return found
        default = providers.get(self.default_provider)
        return Target(default, name) if default else None

    def _default(self, providers: dict[str, Provider]) -> str:
        """The model of a request that names none. Raises InvalidRequest."""
        provider = providers.get(self.default_provider)
        name = self.default_model or (provider.default_model if provider else "")
        if not name:
            raise InvalidRequest("Name a model, or have the operator set SERVICE_LLM_DEFAULT_MODEL.")
        return name


def say_whose(fault: ProviderFault, target: Target) -> None:
    """Tell the caller which provider failed."""
    fault.details = {"provider_failure": True, "provider": target.provider.name, **(fault.details or {})}


async def _passing(passage: Passage, work: Awaitable[T]) -> T:
    try:
        return await work
    except BaseException as error:
        await passage.failed(error)
        raise


def expected(request: Request) -> Usage:
    return Usage(model.input_estimate(request), request.max_tokens or EXPECTED_OUTPUT, estimated=True)


def _missing(name: str, providers: dict[str, Provider]) -> str:
    if not providers:
        return (
            "No provider of language models is configured: set OPENAI_API_KEY, ANTHROPIC_API_KEY, GEMINI_API_KEY or "
            "OLLAMA_HOST, or register one with POST /api/v1/llm/provider."
        )
    return f"No configured provider has the model {name!r}. GET /api/v1/llm/models lists those that there are."
