"""Routes of the LLM gateway. Source: core contract, "LLM gateway"."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query
from pydantic import StringConstraints
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from stentor.auth.principal import Principal
from stentor.core import jsontext
from stentor.core.errors import ProviderFault, StentorError
from stentor.core.security.redaction import MASK
from stentor.domains.atp.model import AtpMessage, header_to_json
from stentor.domains.llm import wire
from stentor.domains.llm.call_guard import LlmCaller
from stentor.domains.llm.costs import PriceList
from stentor.domains.llm.model import TokenUsage
from stentor.domains.llm.providers import Provider
from stentor.domains.llm.providers.registry import ProviderDraft, ProviderListing, redact_url
from stentor.domains.llm.service import AnswerStream, ChatResult, ChatRouter, LlmGateway
from stentor.domains.llm.wire import (
    AtpBody,
    AtpOut,
    ChatBody,
    ChatOut,
    CompleteBody,
    ConfigOut,
    Day,
    EmbedBody,
    EmbedOut,
    ModelOut,
    ProviderBody,
    ProviderName,
    ProviderOut,
    ProviderState,
    RemovedOut,
    UsageReport,
    omit_none,
)
from stentor.web.cancel_on_disconnect import cancel_on_disconnect
from stentor.web.routes import requires_permission
from stentor.web.sse import HEARTBEAT_COMMENT, RawStreamResponse, StreamLimit
from stentor.web.wire import Caller as CallerOf
from stentor.web.wire import Enveloped, JsonResponse, api_router, enveloped_response, error_responses

DONE_FRAME = b"data: [DONE]\n\n"
HEARTBEAT_FRAME = b'event: heartbeat\ndata: {"delta":""}\n\n'
"""An event of its own; a client that reads every data line as a piece of the answer reads an empty one."""
SSE: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}, "description": "Lines `data: {delta}`"}
}
FAILURES = error_responses(404, 502, 504)
TALKING = error_responses(404, 409, 422, 502, 504)
ResolveSpeaker = Callable[[Principal, AtpMessage, str | None], tuple[str, str | None]]
"""Who sends a message, and which agent that is, given the agent that the caller names beside it. Raises NotFound or
Forbidden for one that the caller may not speak for."""


@dataclass(frozen=True)
class GatewayConfig:
    """What the settings say, for the config route; times in seconds."""

    timeout_seconds: float
    stream_idle_seconds: float
    retries: int
    has_local_baseline: bool
    budgets: tuple[str, ...]


def llm_caller(principal: Principal) -> LlmCaller:
    return LlmCaller(principal.tenant, principal.name)


def router(
    gateway: LlmGateway,
    talk: ChatRouter,
    speaker: ResolveSpeaker,
    prices: PriceList,
    about: GatewayConfig,
    streams: StreamLimit,
) -> APIRouter:
    api = api_router("/llm", tags=["llm"])

    @api.post("/chat", response_model=Enveloped[ChatOut], responses=TALKING)
    async def chat(http: HttpRequest, caller: CallerOf, body: ChatBody) -> JsonResponse:
        """The next message of a conversation, by a provider's model."""
        work = talk.chat(caller, body.to_request())
        return enveloped_response(_done(await cancel_on_disconnect(http, work)))

    @api.post("/complete", response_model=Enveloped[ChatOut], responses=TALKING)
    async def complete(http: HttpRequest, caller: CallerOf, body: CompleteBody) -> JsonResponse:
        """What a provider's model makes of a prompt."""
        work = talk.chat(caller, body.to_request())
        return enveloped_response(_done(await cancel_on_disconnect(http, work)))

    @api.post("/embed", response_model=Enveloped[EmbedOut], responses=FAILURES)
    async def embed(http: HttpRequest, caller: CallerOf, body: EmbedBody) -> JsonResponse:
        """The vector of a text, by a provider's model."""
        work = gateway.embed(llm_caller(caller), body.model, [body.text])
        made = await cancel_on_disconnect(http, work)
        vector = made.reply.vectors[0]
        out = {"model": made.reply.model, "embedding": vector, "dimensions": len(vector)}
        rest = {"usage": _usage(made.usage), "provenance_id": made.provenance_id}
        return enveloped_response(out | rest | _degraded(degraded=made.reply.degraded))

    @api.post("/stream", response_class=Response, responses={**TALKING, **SSE})
    async def stream(http: HttpRequest, caller: CallerOf, body: ChatBody) -> RawStreamResponse:
        """The same as chat, as server-sent events: a line `data: {delta}` per piece, at the end `data: [DONE]`."""
        streams.check(stream_limit_key(caller))
        found = await cancel_on_disconnect(http, talk.stream(caller, body.to_request()))
        return await stream_response(found, _pieces(found), streams, caller, _failed, HEARTBEAT_FRAME)

    @api.post("/atp", response_model=Enveloped[AtpOut], responses=TALKING)
    async def atp(http: HttpRequest, caller: CallerOf, body: AtpBody) -> JsonResponse:
        """A model's answer to an ATP message, with the message's own header. `agentId` is who it is for."""
        message = body.to_message()
        sender, agent_id = speaker(caller, message, body.agentId)
        work = talk.chat(caller, body.to_request(message), agent_id)
        header = {**header_to_json(message.header), "senderId": sender}
        return enveloped_response(_done(await cancel_on_disconnect(http, work)) | {"atp": {**header, "header": header}})

    @api.get("/models", response_model=Enveloped[list[ModelOut]])
    async def models(caller: CallerOf) -> JsonResponse:
        """The models that can be routed to; prices in US dollars per million tokens."""
        listings = await gateway.listings(caller.tenant)
        found = await asyncio.to_thread(lambda: [m for listing in listings for m in _models(listing, prices)])
        return enveloped_response(found)

    @api.get("/providers", response_model=Enveloped[list[ProviderState]], openapi_extra=requires_permission("admin"))
    async def providers(caller: CallerOf) -> JsonResponse:
        """The configured providers, and whether each can be reached now."""
        listings = await gateway.listings(caller.tenant, live=True)
        return enveloped_response([_shown(listing.provider) | _state(listing) for listing in listings])

    @api.post(
        "/provider",
        response_model=Enveloped[ProviderOut],
        responses=error_responses(409),
        openapi_extra=requires_permission("admin"),
    )
    async def provider(caller: CallerOf, body: ProviderBody) -> JsonResponse:
        """Register or change a provider. Another base address drops the key unless a new one comes with it."""
        default = body.options.default_model if body.options else None
        draft = ProviderDraft(body.provider, body.apiKey, body.baseUrl, default, body.format)
        return enveloped_response(_shown(await gateway.provider_registry.register(caller.tenant, draft, caller.name)))

    @api.delete(
        "/provider/{name}",
        response_model=Enveloped[RemovedOut],
        responses=error_responses(404),
        openapi_extra=requires_permission("admin"),
    )
    async def remove(caller: CallerOf, name: ProviderName) -> JsonResponse:
        """Forget a provider that was registered at runtime, and its key."""
        await gateway.provider_registry.remove(caller.tenant, name, caller.name)
        return enveloped_response({"name": name, "removed": True})

    @api.get("/usage", response_model=Enveloped[UsageReport])
    async def usage(
        caller: CallerOf,
        startDate: Day = None,  # noqa: N803
        endDate: Day = None,  # noqa: N803
        provider: Annotated[str, StringConstraints(max_length=63, pattern=r"^[a-z0-9._-]*$"), Query()] = "",
    ) -> JsonResponse:
        """Tokens and estimated cost in US dollars, both days included, by provider, model and day."""
        start, end = wire.date_bounds_micros(startDate, endDate)
        return enveloped_response(wire.build_usage_report(await gateway.usage(caller.tenant, start, end, provider)))

    @api.get("/config", response_model=Enveloped[ConfigOut])
    async def config(caller: CallerOf) -> JsonResponse:
        """How the gateway is set up, with the state of each provider asked live."""
        listings = await gateway.listings(caller.tenant, live=True)
        return enveloped_response(_config(gateway, about, listings))

    return api


async def stream_response(
    found: AnswerStream,
    frames: AsyncIterator[bytes],
    streams: StreamLimit,
    caller: Principal,
    failed: Any,
    heartbeat: bytes = HEARTBEAT_COMMENT,
) -> RawStreamResponse:
    """The streaming answer; the provider's work ends with it."""
    try:
        return RawStreamResponse(frames, streams, stream_limit_key(caller), failed, found.close, heartbeat)
    except BaseException:
        await found.close()
        raise


def stream_error_message(error: Exception) -> str:
    """What the last frame of a stream says that ended before its time; never in a provider's words."""
    if isinstance(error, ProviderFault):
        return "The stream broke off: the provider failed."
    return f"The stream broke off. {error.message if isinstance(error, StentorError) else 'The service failed.'}"


def stream_limit_key(caller: Principal) -> str:
    """Under which the open streams of a caller are counted."""
    return f"{caller.tenant}/{caller.name}"


async def _pieces(found: AnswerStream) -> AsyncIterator[bytes]:
    if found.choice:
        # Only who asked for `auto` reads it; without it nobody could tell the model, or grade the answer.
        told = {"delta": "", "model": found.name, "provenance_id": found.provenance_id}
        yield (
            b"event: routing\ndata: "
            + jsontext.encode_line(told | {"routing": msgspec.to_builtins(found.choice)})
            + b"\n\n"
        )
    async for delta in found:
        if delta.content:
            yield (
                b"data: "
                + jsontext.encode_line({"delta": delta.content} | _degraded(degraded=found.degraded))
                + b"\n\n"
            )
    yield DONE_FRAME


def _failed(error: Exception) -> bytes:
    code = error.code if isinstance(error, StentorError) else StentorError.code
    return (
        b"event: error\ndata: " + jsontext.encode_line({"error": stream_error_message(error), "code": code}) + b"\n\n"
    )


def _done(done: ChatResult) -> dict[str, Any]:
    reply = done.reply
    out = {"model": reply.model, "content": reply.content, "usage": _usage(done.usage)}
    rest = {"finish_reason": reply.finish, "provenance_id": done.provenance_id}
    task = {"task_id": done.agent_task.task_id} if done.agent_task else {}
    routing = {"routing": msgspec.to_builtins(done.choice)} if done.choice else {}
    return out | rest | task | routing | _degraded(degraded=reply.degraded)


def _usage(usage: TokenUsage) -> dict[str, Any]:
    out: dict[str, Any] = {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
    return out | ({"estimated": True} if usage.estimated else {})


def _degraded(*, degraded: bool) -> dict[str, Any]:
    return {"degraded": True} if degraded else {}


def _models(listing: ProviderListing, prices: PriceList) -> list[dict[str, Any]]:
    found = []
    for model in listing.models or ():
        price = prices.price_of(listing.provider.name, model)
        known = {"id": f"{listing.provider.name}/{model}", "provider": listing.provider.name}
        limits = {"contextWindow": price.context_window, "maxOutputTokens": price.max_output}
        costs = {"inputCost": price.input, "outputCost": price.output}
        found.append(known | omit_none(limits | costs))
    return found


def _shown(provider: Provider) -> dict[str, Any]:
    return {
        "name": provider.name,
        "format": provider.format,
        "baseUrl": redact_url(provider.base_url),
        "apiKeyConfigured": bool(provider.key),
        "apiKey": MASK if provider.key else None,
        "default_model": provider.default_model or None,
    }


def _state(listing: ProviderListing) -> dict[str, Any]:
    return {"reachable": listing.is_reachable, "latency_ms": listing.latency_ms}


def _config(gateway: LlmGateway, about: GatewayConfig, listings: list[ProviderListing]) -> dict[str, Any]:
    states = [{"name": v.provider.name, **_state(v), "models": len(v.models or ())} for v in listings]
    return {
        "defaultProvider": gateway.default_provider or None,
        "defaultModel": gateway.default_model or None,
        "timeouts": {
            "total_seconds": about.timeout_seconds,
            "stream_idle_seconds": about.stream_idle_seconds,
            "retries": about.retries,
        },
        "fallbacks": gateway.routes.fallbacks,
        "groups": gateway.routes.groups,
        "budgets": list(about.budgets),
        "localBaseline": about.has_local_baseline,
        "providers": states,
    }
