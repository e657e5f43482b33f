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
from stentor.domains.atp.model import Message, shown
from stentor.domains.llm import report
from stentor.domains.llm.catalogue import Listing
from stentor.domains.llm.directory import ProviderDraft, shown_url
from stentor.domains.llm.gate import Caller
from stentor.domains.llm.model import Usage
from stentor.domains.llm.prices import Prices
from stentor.domains.llm.providers import Provider
from stentor.domains.llm.service import Done, Gateway
from stentor.domains.llm.talk import Answering, Talk
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
    left_out,
)
from stentor.web.cancel_on_disconnect import cancel_on_disconnect
from stentor.web.routes import requires_permission
from stentor.web.sse import HEARTBEAT_COMMENT, RawStreamResponse, StreamLimit
from stentor.web.wire import Caller as CallerOf
from stentor.web.wire import Enveloped, JsonResponse, api_router, enveloped_response, error_responses

DONE = b"data: [DONE]\n\n"
HEARTBEAT = b'event: heartbeat\ndata: {"delta":""}\n\n'
"""An event of its own; a client that reads every data line as a piece of the answer reads an empty one."""
SSE: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}, "description": "Lines `data: {delta}`"}
}
FAILURES = error_responses(404, 502, 504)
TALKING = error_responses(404, 409, 422, 502, 504)
Speaker = Callable[[Principal, Message, str | None], tuple[str, str | None]]
"""Who sends a message, and which agent that is, given the agent that the caller names beside it. Raises NotFound or
Forbidden for one that the caller may not speak for."""


@dataclass(frozen=True)
class About:
    """What the settings say, for the config route; times in seconds."""

    total: float
    idle: float
    retries: int
    local: bool
    budgets: tuple[str, ...]


def caller_for(principal: Principal) -> Caller:
    return Caller(principal.tenant, principal.name)


def router(
    gateway: Gateway, talk: Talk, speaker: Speaker, prices: Prices, about: About, streams: StreamLimit
) -> APIRouter:
    api = api_router("/llm", tags=["llm"])

    @api.post("/chat", response_model=Enveloped[ChatOut], responses=TALKING)
    async def chat(http: HttpRequest, caller: CallerOf, body: ChatBody) -> JsonResponse:
        """The next message of a conversation, by a provider's model."""
        work = talk.chat(caller, body.request())
        return enveloped_response(_done(await cancel_on_disconnect(http, work)))

    @api.post("/complete", response_model=Enveloped[ChatOut], responses=TALKING)
    async def complete(http: HttpRequest, caller: CallerOf, body: CompleteBody) -> JsonResponse:
        """What a provider's model makes of a prompt."""
        work = talk.chat(caller, body.request())
        return enveloped_response(_done(await cancel_on_disconnect(http, work)))

    @api.post("/embed", response_model=Enveloped[EmbedOut], responses=FAILURES)
    async def embed(http: HttpRequest, caller: CallerOf, body: EmbedBody) -> JsonResponse:
        """The vector of a text, by a provider's model."""
        work = gateway.embed(caller_for(caller), body.model, [body.text])
        made = await cancel_on_disconnect(http, work)
        vector = made.found.vectors[0]
        out = {"model": made.found.model, "embedding": vector, "dimensions": len(vector)}
        rest = {"usage": _usage(made.usage), "provenance_id": made.provenance_id}
        return enveloped_response(out | rest | _degraded(degraded=made.found.degraded))

    @api.post("/stream", response_class=Response, responses={**TALKING, **SSE})
    async def stream(http: HttpRequest, caller: CallerOf, body: ChatBody) -> RawStreamResponse:
        """The same as chat, as server-sent events: a line `data: {delta}` per piece, at the end `data: [DONE]`."""
        streams.check(stream_key(caller))
        found = await cancel_on_disconnect(http, talk.stream(caller, body.request()))
        return await streaming(found, _pieces(found), streams, caller, _failed, HEARTBEAT)

    @api.post("/atp", response_model=Enveloped[AtpOut], responses=TALKING)
    async def atp(http: HttpRequest, caller: CallerOf, body: AtpBody) -> JsonResponse:
        """A model's answer to an ATP message, with the message's own header. `agentId` is who it is for."""
        message = body.message()
        sender, agent_id = speaker(caller, message, body.agentId)
        work = talk.chat(caller, body.request(message), agent_id)
        header = {**shown(message.header), "senderId": sender}
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
        return enveloped_response(_shown(await gateway.directory.register(caller.tenant, draft, caller.name)))

    @api.delete(
        "/provider/{name}",
        response_model=Enveloped[RemovedOut],
        responses=error_responses(404),
        openapi_extra=requires_permission("admin"),
    )
    async def remove(caller: CallerOf, name: ProviderName) -> JsonResponse:
        """Forget a provider that was registered at runtime, and its key."""
        await gateway.directory.remove(caller.tenant, name, caller.name)
        return enveloped_response({"name": name, "removed": True})

    @api.get("/usage", response_model=Enveloped[UsageReport])
    async def usage(
        caller: CallerOf,
        startDate: Day = None,  # noqa: N803
        endDate: Day = None,  # noqa: N803
        provider: Annotated[str, StringConstraints(max_length=63, pattern=r"^[a-z0-9._-]*$"), Query()] = "",
    ) -> JsonResponse:
        """Tokens and estimated cost in US dollars, both days included, by provider, model and day."""
        start, end = report.bounds(startDate, endDate)
        return enveloped_response(report.report(await gateway.usage(caller.tenant, start, end, provider)))

    @api.get("/config", response_model=Enveloped[ConfigOut])
    async def config(caller: CallerOf) -> JsonResponse:
        """How the gateway is set up, with the state of each provider asked live."""
        listings = await gateway.listings(caller.tenant, live=True)
        return enveloped_response(_config(gateway, about, listings))

    return api


async def streaming(
    found: Answering,
    frames: AsyncIterator[bytes],
    streams: StreamLimit,
    caller: Principal,
    failed: Any,
    heartbeat: bytes = HEARTBEAT_COMMENT,
) -> RawStreamResponse:
    """The streaming answer; the provider's work ends with it."""
    try:
        return RawStreamResponse(frames, streams, stream_key(caller), failed, found.close, heartbeat)
    except BaseException:
        await found.close()
        raise


def broke_off(error: Exception) -> str:
    """What the last frame of a stream says that ended before its time; never in a provider's words."""
    if isinstance(error, ProviderFault):
        return "The stream broke off: the provider failed."
    return f"The stream broke off. {error.message if isinstance(error, StentorError) else 'The service failed.'}"


def stream_key(caller: Principal) -> str:
    """Under which the open streams of a caller are counted."""
    return f"{caller.tenant}/{caller.name}"


async def _pieces(found: Answering) -> AsyncIterator[bytes]:
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
    yield DONE


def _failed(error: Exception) -> bytes:
    code = error.code if isinstance(error, StentorError) else StentorError.code
    return b"event: error\ndata: " + jsontext.encode_line({"error": broke_off(error), "code": code}) + b"\n\n"


def _done(done: Done) -> dict[str, Any]:
    reply = done.reply
    out = {"model": reply.model, "content": reply.content, "usage": _usage(done.usage)}
    rest = {"finish_reason": reply.finish, "provenance_id": done.provenance_id}
    task = {"task_id": done.work.task_id} if done.work else {}
    routing = {"routing": msgspec.to_builtins(done.choice)} if done.choice else {}
    return out | rest | task | routing | _degraded(degraded=reply.degraded)


def _usage(usage: Usage) -> dict[str, Any]:
    out: dict[str, Any] = {"input_tokens": usage.input_tokens, "output_tokens": usage.output_tokens}
    return out | ({"estimated": True} if usage.estimated else {})


def _degraded(*, degraded: bool) -> dict[str, Any]:
    return {"degraded": True} if degraded else {}


def _models(listing: Listing, prices: Prices) -> list[dict[str, Any]]:
    found = []
    for model in listing.models or ():
        price = prices.of(listing.provider.name, model)
        known = {"id": f"{listing.provider.name}/{model}", "provider": listing.provider.name}
        limits = {"contextWindow": price.context_window, "maxOutputTokens": price.max_output}
        costs = {"inputCost": price.input, "outputCost": price.output}
        found.append(known | left_out(limits | costs))
    return found


def _shown(provider: Provider) -> dict[str, Any]:
    return {
        "name": provider.name,
        "format": provider.format,
        "baseUrl": shown_url(provider.base_url),
        "apiKeyConfigured": bool(provider.key),
        "apiKey": MASK if provider.key else None,
        "default_model": provider.default_model or None,
    }


def _state(listing: Listing) -> dict[str, Any]:
    return {"reachable": listing.reachable, "latency_ms": listing.latency_ms}


def _config(gateway: Gateway, about: About, listings: list[Listing]) -> dict[str, Any]:
    states = [{"name": v.provider.name, **_state(v), "models": len(v.models or ())} for v in listings]
    return {
        "defaultProvider": gateway.default_provider or None,
        "defaultModel": gateway.default_model or None,
        "timeouts": {
            "total_seconds": about.total,
            "stream_idle_seconds": about.idle,
            "retries": about.retries,
        },
        "fallbacks": gateway.routes.fallbacks,
        "groups": gateway.routes.groups,
        "budgets": list(about.budgets),
        "localBaseline": about.local,
        "providers": states,
    }
