"""Operations of the LLM gateway. Source: core contract, "LLM gateway".

The streaming route is in `streaming`, the routes under /v1 in `openai_api`, request and response models in `wire`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Query
from pydantic import StringConstraints

from stentor.auth.principal import Principal
from stentor.core.security.redaction import MASK
from stentor.domains.atp.model import AtpMessage, header_to_json
from stentor.domains.llm import wire
from stentor.domains.llm.costs import PriceList
from stentor.domains.llm.providers import Provider
from stentor.domains.llm.providers.registry import ProviderDraft, ProviderListing, redact_url
from stentor.domains.llm.results import ChatResult
from stentor.domains.llm.routes.chat_router import ChatRouter
from stentor.domains.llm.service import LlmGateway
from stentor.web.operations import operation
from stentor.web.wire import Caller, TaskHeader

ResolveSender = Callable[[Principal, AtpMessage, str | None], tuple[str, str | None]]
"""Resolves the sender of a message and its agent, if any; the last argument is the request's `agentId`.

Raises NotFound, and Forbidden for an agent that the caller may not act for.
"""


@dataclass(frozen=True)
class GatewayConfig:
    """The settings that GET /llm/config returns; times in seconds."""

    timeout_seconds: float
    stream_idle_seconds: float
    retries: int
    has_local_baseline: bool
    budgets: tuple[str, ...]


_CHAT_ERRORS = (404, 409, 422, 502, 504)
_PROVIDER_ERRORS = (404, 502, 504)


class LlmOperations:
    """Operations on models and providers."""

    def __init__(
        self,
        gateway: LlmGateway,
        chats: ChatRouter,
        resolve_sender: ResolveSender,
        prices: PriceList,
        config: GatewayConfig,
    ) -> None:
        self._gateway, self._chats, self._resolve_sender = gateway, chats, resolve_sender
        self._prices, self._config = prices, config

    @operation("llm.chat", "write", "POST /llm/chat", 200, _CHAT_ERRORS, envelope=True, cancellable=True)
    async def chat(self, caller: Caller, body: wire.ChatBody, task: TaskHeader = None) -> wire.ChatOut:
        """Return a model's reply to a conversation."""
        return _chat_out(await self._chats.chat(caller, body.to_request(), task_id=task))

    @operation("llm.complete", "write", "POST /llm/complete", 200, _CHAT_ERRORS, envelope=True, cancellable=True)
    async def complete(self, caller: Caller, body: wire.CompleteBody, task: TaskHeader = None) -> wire.ChatOut:
        """Return a model's reply to a prompt."""
        return _chat_out(await self._chats.chat(caller, body.to_request(), task_id=task))

    @operation("llm.embed", "write", "POST /llm/embed", 200, _PROVIDER_ERRORS, envelope=True, cancellable=True)
    async def embed(self, caller: Caller, body: wire.EmbedBody, task: TaskHeader = None) -> wire.EmbedOut:
        """Return the embedding of a text."""
        llm_caller = await self._chats.find_caller(caller, task_id=task)
        result = await self._gateway.embed(llm_caller, body.model, [body.text])
        vector = result.reply.vectors[0]
        return wire.EmbedOut.of(
            result,
            model=result.reply.model,
            embedding=vector,
            dimensions=len(vector),
            degraded=result.reply.degraded,
        )

    @operation("llm.atp", "write", "POST /llm/atp", 200, _CHAT_ERRORS, envelope=True, cancellable=True)
    async def atp(self, caller: Caller, body: wire.AtpBody) -> wire.AtpOut:
        """Return a model's reply to an ATP message, with the header of the message.

        `agentId` is the agent that the call is made for; its budgets apply too.
        """
        message = body.to_message()
        sender, agent_id = self._resolve_sender(caller, message, body.agentId)
        result = await self._chats.chat(caller, body.to_request(message), agent_id)
        header = {**header_to_json(message.header), "senderId": sender}
        return wire.AtpOut(**dict(_chat_out(result)), atp=wire.AtpContext.model_validate({**header, "header": header}))

    @operation("llm.models", "read", "GET /llm/models", envelope=True)
    async def models(self, caller: Caller) -> list[wire.ModelOut]:
        """List the models that the caller's key may use; prices in US dollars per million tokens."""
        listings = await self._gateway.listings(caller.tenant, allowed=caller.models)
        # In a thread: loading the prices on first use would block the event loop.
        return await asyncio.to_thread(
            lambda: [model for listing in listings for model in _models(listing, self._prices)]
        )

    @operation("llm.providers", "admin", "GET /llm/providers", envelope=True)
    async def providers(self, caller: Caller) -> list[wire.ProviderState]:
        """List the configured providers and whether each is reachable now."""
        listings = await self._gateway.listings(caller.tenant, live=True)
        return [wire.ProviderState.of(listing, **_provider_fields(listing.provider)) for listing in listings]

    @operation("llm.set_provider", "admin", "POST /llm/provider", 200, (409,), envelope=True)
    async def set_provider(self, caller: Caller, body: wire.ProviderBody) -> wire.ProviderOut:
        """Register or update a provider. A changed base URL drops the stored key unless a new one is given."""
        default = body.options.default_model if body.options else None
        draft = ProviderDraft(body.provider, body.apiKey, body.baseUrl, default, body.format)
        provider = await self._gateway.provider_registry.register(caller.tenant, draft, caller.name)
        return wire.ProviderOut(**_provider_fields(provider))

    @operation("llm.remove_provider", "admin", "DELETE /llm/provider/{name}", 200, (404,), envelope=True)
    async def remove_provider(self, caller: Caller, name: wire.ProviderName) -> wire.RemovedOut:
        """Delete a provider that was registered at runtime, and its key."""
        await self._gateway.provider_registry.remove(caller.tenant, name, caller.name)
        return wire.RemovedOut(name=name, removed=True)

    @operation("llm.usage", "read", "GET /llm/usage", envelope=True)
    async def usage(
        self,
        caller: Caller,
        startDate: wire.Day = None,  # noqa: N803
        endDate: wire.Day = None,  # noqa: N803
        provider: Annotated[str, StringConstraints(max_length=63, pattern=r"^[a-z0-9._-]*$"), Query()] = "",
    ) -> wire.UsageReport:
        """Return tokens and estimated cost in US dollars by provider, model and day; both dates are included."""
        start, end = wire.date_bounds_micros(startDate, endDate)
        rows = await self._gateway.usage(caller.tenant, start, end, provider)
        return wire.build_usage_report(rows)

    @operation("llm.config", "read", "GET /llm/config", envelope=True)
    async def config(self, caller: Caller) -> wire.ConfigOut:
        """Return the configuration of the gateway and the current state of each provider."""
        gateway, routes = self._gateway, self._gateway.routes.of(caller.tenant)
        listings = await gateway.listings(caller.tenant, live=True)
        return wire.ConfigOut.of(
            self._config,
            default_provider=gateway.default_provider or None,
            default_model=gateway.default_model or None,
            timeouts=wire.TimeoutsOut.of(self._config, total_seconds=self._config.timeout_seconds),
            fallbacks=routes.fallbacks,
            groups=routes.groups,
            local_baseline=self._config.has_local_baseline,
            providers=[
                wire.StateOut.of(listing, name=listing.provider.name, models=len(listing.models or ()))
                for listing in listings
            ],
        )


def _chat_out(result: ChatResult) -> wire.ChatOut:
    reply, usage = result.reply, result.usage
    return wire.ChatOut(
        model=reply.model,
        content=reply.content,
        usage=wire.UsageOut(
            input_tokens=usage.input_tokens, output_tokens=usage.output_tokens, estimated=usage.estimated
        ),
        finish_reason=reply.finish,
        provenance_id=result.provenance_id,
        degraded=reply.degraded,
        task_id=result.agent_task.task_id if result.agent_task else None,
        routing=wire.ChoiceOut.model_validate(result.choice) if result.choice else None,
    )


def _models(listing: ProviderListing, prices: PriceList) -> list[wire.ModelOut]:
    provider, models = listing.provider.name, []
    for model in listing.models or ():
        price = prices.price_of(provider, model)
        models.append(
            wire.ModelOut(
                id=f"{provider}/{model}",
                provider=provider,
                context_window=price.context_window,
                max_output_tokens=price.max_output,
                input_cost=price.input,
                output_cost=price.output,
            )
        )
    return models


def _provider_fields(provider: Provider) -> dict[str, Any]:
    return {
        "name": provider.name,
        "format": provider.format,
        "base_url": redact_url(provider.base_url),
        "api_key_configured": bool(provider.key),
        "api_key": MASK if provider.key else None,
        "default_model": provider.default_model or None,
    }
