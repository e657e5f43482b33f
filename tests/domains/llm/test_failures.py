"""A provider that misbehaves in every way we know: a clear answer each time."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
from aiohttp import web

from stentor.core.errors import ProviderBusy, ProviderError
from stentor.domains.llm.calls.call_guard import LlmCaller
from stentor.domains.llm.formats import anthropic, gemini
from stentor.domains.llm.formats import openai as openai_format
from stentor.domains.llm.model import ChatRequest, LlmMessage, TextPart, TokenUsage
from stentor.domains.llm.providers import Provider, backends, transport
from stentor.domains.llm.providers.failures import fault_from_response
from stentor.domains.llm.token_estimates import usage_or_estimate
from tests.conftest import World
from tests.domains.llm import upstream as moods
from tests.domains.llm.conftest import KEY, Gate, asking, chat
from tests.domains.llm.test_chat import pieces
from tests.domains.llm.upstream import ANSWER, Mood, Upstream
from tests.patience import soon
from tests.requirements import requirement

ASKED = ChatRequest("openai/sea-large", (LlmMessage("user", (TextPart("Why is the sea salty?"),)),))
TOO_LONG = moods.sse({"id": "x", "choices": [{"delta": {"content": "x"}}]})
NO_ANSWERS: dict[str, Mood] = {
    "500": moods.status(500),
    "418": moods.status(418),
    "401": moods.status(401, {"error": {"message": f"Incorrect API key provided: {KEY}"}}),
    "400": moods.status(400, {"error": {"message": f"no such thing, {KEY}; sk-proj-abcdefgh1234"}}),
    "404 as text": moods.raw(b"not here", "text/plain", 404),
    "HTML": moods.raw(b"<html>maintenance</html>", "text/html"),
    "HTML with an error": moods.raw(b"<html>502</html>", "text/html", 500),
    "nothing": moods.raw(b""),
    "null": moods.raw(b"null"),
    "an array": moods.raw(b"[]"),
    "an empty object": moods.raw(b"{}"),
    "no choice": moods.raw(b'{"choices": []}'),
    "a choice of the wrong type": moods.raw(b'{"choices": [1]}'),
    "invalid UTF-8": moods.raw(b'{"choices": [{"message": {"content": "\xff\xfe"}}]}'),
    "a lone surrogate": moods.raw(rb'{"choices": [{"message": {"content": "\ud800"}}]}'),
    "5,000 arrays": moods.raw(b'{"choices": ' + b"[" * 5000 + b"]" * 5000 + b"}"),
    "an open text": moods.raw(b'{"choices": [{"message": {"content": "x'),
    "100 MB": moods.endless,
    "a cut connection": moods.dead,
    "a redirect inside": moods.redirecting("http://169.254.169.254/latest/meta-data/"),
    "a permanent redirect": moods.redirecting("http://127.0.0.1:1/"),
}
WORD = moods.sse({"id": "x", "choices": [{"index": 0, "delta": {"content": "The sea "}}]})
BROKEN_STREAMS: dict[str, Mood] = {
    "stops": moods.stopping,
    "is cut": moods.hanging_up,
    "says an error": moods.raw(WORD + b'data: {"error": {"message": "overloaded"}}\n\n', "text/event-stream"),
}
STREAMS_WITHOUT_OUTPUT: dict[str, Mood] = {
    "says what is no JSON": moods.raw(b"data: {\n\n", "text/event-stream"),
    "says invalid UTF-8": moods.raw(b'data: {"choices": [{"delta": {"content": "\xff"}}]}\n\n', "text/event-stream"),
    "says an error": moods.raw(b'data: {"error": {"message": "overloaded"}}\n\n', "text/event-stream"),
    "is empty": moods.raw(b"", "text/event-stream"),
    "has no choice": moods.raw(b'data: {"choices": []}\n\ndata: [DONE]\n\n', "text/event-stream"),
    "is only comments": moods.raw(b": a\n\n: b\n\n", "text/event-stream"),
}


def error_of(answer: Any, status: int, code: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["code"] == code
    assert KEY not in answer.text
    return dict(answer.json()["error"])


@requirement("llm.provider-error-502", "llm.no-synthetic-success")
@pytest.mark.parametrize("mood", NO_ANSWERS.values(), ids=NO_ANSWERS)
async def test_what_is_no_answer_is_502_without_the_body_or_the_key(
    world: World, upstream: Upstream, mood: Mood
) -> None:
    upstream.mood = mood
    error = error_of(await chat(world), 502, "PROVIDER_ERROR")
    assert "sk-proj" not in error["message"]
    assert "<html>" not in error["message"]
    upstream.mood = None
    assert (await chat(world)).json()["data"]["content"] == ANSWER


FORMATS = {
    "openai": (
        openai_format,
        '{"choices": [{"message": {"content": "Yes."}, "finish_reason": "stop"}], "usage": %s}',
        "prompt_tokens",
        "completion_tokens",
    ),
    "anthropic": (
        anthropic,
        '{"content": [{"type": "text", "text": "Yes."}], "stop_reason": "end_turn", "usage": %s}',
        "input_tokens",
        "output_tokens",
    ),
    "gemini": (
        gemini,
        '{"candidates": [{"content": {"parts": [{"text": "Yes."}]}, "finishReason": "STOP"}], "usageMetadata": %s}',
        "promptTokenCount",
        "candidatesTokenCount",
    ),
}
WRONG_COUNTS = {count[:9]: count for count in ('"many"', "5.5", "1e400", "null", "true", "[1]", "-3", "9" * 5000)}


@requirement("llm.usage")
@pytest.mark.parametrize("count", WRONG_COUNTS.values(), ids=WRONG_COUNTS)
@pytest.mark.parametrize(("form", "body", "sent", "received"), FORMATS.values(), ids=FORMATS)
def test_a_wrong_count_of_tokens_is_estimated_and_loses_no_reply(
    form: Any, body: str, sent: str, received: str, count: str
) -> None:
    for usage in (f'{{"{sent}": {count}, "{received}": 7}}', f'{{"{sent}": 9, "{received}": {count}}}', count):
        reply = form.parse_reply((body % usage).encode(), "m")
        assert reply.content == "Yes."
        counted = usage_or_estimate(ASKED, reply)
        assert counted.estimated
        assert 0 < counted.input_tokens < 100
        assert 0 < counted.output_tokens < 100
    reply = form.parse_reply((body % f'{{"{sent}": 9.0, "{received}": 7}}').encode(), "m")
    assert usage_or_estimate(ASKED, reply) == TokenUsage(9, 7)


@requirement("llm.usage")
async def test_a_reply_with_wrong_counts_is_answered_and_counts_against_budgets(
    make_llm: Gate, upstream: Upstream
) -> None:
    world = await make_llm(SERVICE_LLM_BUDGETS="key:*:tokens/day=20")
    counts = b'{"prompt_tokens": "many", "completion_tokens": 1e400, "completion_tokens_details": "none"}'
    message = b'{"%s": {"content": "It is."}, "finish_reason": "stop"}'
    upstream.mood = moods.raw(b'{"choices": [' + message % b"message" + b'], "usage": ' + counts + b"}")
    answer = (await chat(world)).json()["data"]
    assert (answer["content"], answer["usage"]["estimated"]) == ("It is.", True)
    chunk = b'data: {"choices": [' + message % b"delta" + b'], "usage": ' + counts + b"}"
    upstream.mood = moods.raw(chunk + b"\n\ndata: [DONE]\n\n", "text/event-stream")
    streamed = pieces((await world.admin.post("/api/v1/llm/stream", json=asking())).text)
    assert streamed[0]["delta"] == "It is."
    assert "error" not in streamed[-1]
    used = (await world.admin.get("/api/v1/llm/usage")).json()["data"]
    assert (used["totalRequests"], used["estimatedRequests"]) == (2, 2)
    assert used["totalTokens"] > 2
    upstream.mood = None
    while (answer := await chat(world)).status_code == 200:
        assert len(upstream.asked) < 10
    assert answer.json()["code"] == "BUDGET_EXCEEDED"


@requirement("llm.usage")
async def test_a_message_with_wrong_counts_is_passed_on_in_anthropics_format(world: World, upstream: Upstream) -> None:
    counts = '{"input_tokens": 9, "output_tokens": 1e400}'
    asked = {"model": "anthropic/sea", "max_tokens": 9, "messages": asking()["messages"]}
    upstream.mood = moods.raw((FORMATS["anthropic"][1] % counts).encode())
    answer = await world.admin.post("/v1/messages", json=asked)
    assert answer.json()["content"] == [{"type": "text", "text": "Yes."}]
    events = (
        b'data: {"type": "message_start", "message": {"usage": {"input_tokens": 9, "output_tokens": 1}}}\n\n'
        b'data: {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "Yes."}}\n\n'
        b'data: {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 1e400}}\n\n'
        b'data: {"type": "message_stop"}\n\n'
    )
    upstream.mood = moods.raw(events, "text/event-stream")
    streamed = await world.admin.post("/v1/messages", json={**asked, "stream": True})
    assert [piece["type"] for piece in pieces(streamed.text)][-2:] == ["message_delta", "message_stop"]


BROKEN_OFF: list[tuple[Any, str]] = [
    (openai_format, f'{{"choices": [{{"%s": {{}}, "finish_reason": "{reason}"}}], "usage": {{"prompt_tokens": 9}}}}')
    for reason in ("error", "network_error", "insufficient_system_resource")
] + [
    (gemini, f'{{"candidates": [{{"finishReason": "{reason}"}}], "usageMetadata": {{"promptTokenCount": 9}}}}')
    for reason in (
        "MALFORMED_FUNCTION_CALL",
        "UNEXPECTED_TOOL_CALL",
        "TOO_MANY_TOOL_CALLS",
        "MALFORMED_RESPONSE",
        "OTHER",
    )
]


@requirement("llm.no-synthetic-success")
@pytest.mark.parametrize(("form", "body"), BROKEN_OFF)
def test_a_reply_that_the_provider_broke_off_is_a_failure(form: Any, body: str) -> None:
    for read in (
        lambda: form.parse_reply(body.replace("%s", "message").encode(), "m"),
        lambda: form.stream_reader().read("", body.replace("%s", "delta").encode()),
    ):
        with pytest.raises(ProviderError, match="ended the reply early") as failed:
            read()
        assert failed.value.usage == TokenUsage(9), "it is billed"
        # What the model does wrong is no outage of its provider.
        assert (failed.value.upstream_status is None) is (form is openai_format)


def test_a_reply_that_fills_the_context_of_the_model_was_cut() -> None:
    body = b'{"choices": [{"message": {"content": "half an ans"}, "finish_reason": "%s"}]}'
    finishes = [openai_format.parse_reply(body % reason, "m").finish for reason in (b"model_length", b"new_reason")]
    assert finishes == ["length", "stop"]


async def test_the_message_of_the_provider_is_told_when_there_is_one(world: World, upstream: Upstream) -> None:
    upstream.mood = moods.status(400, {"error": {"message": "max_tokens is\ntoo large " + "x" * 900}})
    error = error_of(await chat(world), 502, "PROVIDER_ERROR")
    assert "max_tokens is too large xxx" in error["message"]
    assert len(error["message"]) < 600
    assert error["details"] == {"provider_failure": True, "provider": "openai", "status": 400}


@requirement("llm.fallbacks", "llm.provider-error-502")
@pytest.mark.parametrize(
    "error",
    [
        {"message": "API key not valid.", "details": [{"reason": "API_KEY_INVALID"}]},
        {"message": "Your credit balance is too low to access the Anthropic API."},
    ],
)
async def test_a_400_about_the_operators_account_is_not_the_callers_mistake(
    make_llm: Gate, upstream: Upstream, error: dict[str, Any]
) -> None:
    world = await make_llm(SERVICE_LLM_FALLBACKS="openai/sea-large=anthropic/sea-small")
    body = {"model": "openai/sea-large", "messages": asking()["messages"]}
    upstream.mood = moods.status(400, {"error": error})
    answer = await world.admin.post("/v1/chat/completions", json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (502, "provider_error")
    assert error["message"] in answer.json()["error"]["message"]
    upstream.mood = moods.first(upstream.mood, None, upstream)
    answer = await world.admin.post("/v1/chat/completions", json=body)
    assert (answer.status_code, answer.json()["model"]) == (200, "anthropic/sea-small")


@pytest.mark.parametrize("code", [401, 403, 429])
def test_a_refusal_says_what_the_provider_says_of_it(code: int) -> None:
    provider = Provider("one", "openai", "https://one.example.com/v1", KEY)
    body = b'{"error": {"message": "You exceeded your quota with %s."}}' % KEY.encode()
    message = fault_from_response(provider, code, "", body).message
    assert message.endswith(f"({code}): You exceeded your quota with [redacted].")
    assert fault_from_response(provider, code, "", b"").message.endswith(".")


REPORTED: list[tuple[Any, bytes, bytes, int]] = [
    (openai_format, b"", b'{"choices": null, "error": {"message": "Too much", "code": 429}}', 429),
    (openai_format, b"", b'{"error": {"message": "Too much", "code": 502}}', 502),
    (openai_format, b"", b'{"error": {"message": "Too much", "code": "busy"}}', 500),
    (openai_format, b"", b'{"error": "Too much"}', 500),
    (gemini, b"", b'{"error": {"message": "Too much", "code": 400, "status": "INVALID_ARGUMENT"}}', 400),
    (anthropic, b"error", b'{"type": "error", "error": {"type": "overloaded_error", "message": "Too much"}}', 529),
]


@requirement("llm.provider-error-502")
@pytest.mark.parametrize(("form", "event", "body", "status"), REPORTED)
def test_an_error_with_status_200_has_the_status_that_it_names(
    form: Any, event: bytes, body: bytes, status: int
) -> None:
    with pytest.raises(ProviderError) as failed:
        form.stream_reader().read(event.decode(), body)
    assert failed.value.upstream_status == status
    if form is not anthropic:
        with pytest.raises(ProviderError) as failed:
            form.parse_reply(body, "m")
        assert failed.value.upstream_status == status


@requirement("llm.provider-error-502", "llm.circuit-breaker", "llm.usage")
async def test_an_error_with_status_200_is_told_and_counts_as_the_status_that_it_names(
    world: World, upstream: Upstream
) -> None:
    body = b'{"error": {"message": "Too much, %s.", "code": 429}}' % KEY.encode()
    upstream.mood = moods.raw(body)
    answer = await chat(world)
    assert (answer.status_code, answer.json()["code"]) == (429, "RATE_LIMITED")
    assert "Too much, [redacted]." in answer.json()["message"]
    upstream.mood = moods.raw(b"data: " + body + b"\n\n", "text/event-stream")
    caller = LlmCaller("default", "admin")
    for _ in range(5):
        with pytest.raises(ProviderBusy, match="Too much"):
            await (await world.kernel.llm.gateway.stream(caller, ASKED)).read_reply(lambda text: None)
    upstream.mood = moods.raw(body)  # not even a stream
    for _ in range(5):
        with pytest.raises(ProviderBusy, match="Too much"):
            await world.kernel.llm.gateway.stream(caller, ASKED)
    upstream.mood = None
    answer = await chat(world)
    assert answer.status_code == 200, "no outage"
    used = (await world.admin.get("/api/v1/llm/usage")).json()["data"]
    assert (used["totalRequests"], used["totalTokens"]) == (12, 18), "what is refused is not billed"


@requirement("llm.provider-rate-limit-429")
@pytest.mark.parametrize(("told", "wait"), [("7", "7"), ("", "5"), ("soon", "5"), ("0.2", "1"), ("1e999", "86400")])
async def test_a_busy_provider_is_429_with_retry_after(world: World, upstream: Upstream, told: str, wait: str) -> None:
    upstream.mood = moods.status(429, **({"Retry-After": told} if told else {}))
    answer = await chat(world)
    assert (answer.status_code, answer.json()["code"]) == (429, "RATE_LIMITED")
    assert answer.headers["Retry-After"] == wait


async def test_a_retry_after_may_be_a_date(world: World, upstream: Upstream) -> None:
    upstream.mood = moods.status(429, **{"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"})
    assert (await chat(world)).headers["Retry-After"] == "1"


@requirement("llm.provider-timeout-and-unreachable")
async def test_a_provider_that_does_not_answer_in_time_is_504(make_llm: Gate, upstream: Upstream) -> None:
    world = await make_llm(SERVICE_LLM_TIMEOUT_SECONDS="0.2", SERVICE_LLM_STREAM_IDLE_SECONDS="0.2")
    upstream.mood = moods.silent
    for answer, setting in (
        (await chat(world), "SERVICE_LLM_TIMEOUT_SECONDS"),
        (await world.admin.post("/api/v1/llm/stream", json=asking()), "SERVICE_LLM_STREAM_IDLE_SECONDS"),
        (await world.admin.post("/v1/chat/completions", json=asking()), "SERVICE_LLM_TIMEOUT_SECONDS"),
    ):
        assert f"did not respond within 0.2 s ({setting})" in answer.text
        assert (answer.status_code, answer.headers["X-Should-Retry"]) == (504, "false"), "it may be billed"


@requirement("llm.provider-timeout-and-unreachable")
@pytest.mark.parametrize("code", [502, 503, 529])
async def test_a_provider_that_is_down_is_503_with_retry_after(world: World, upstream: Upstream, code: int) -> None:
    upstream.mood = moods.status(code)
    answer = await chat(world)
    error_of(answer, 503, "SERVICE_UNAVAILABLE")
    assert answer.headers["Retry-After"] == "1"


@requirement("llm.provider-timeout-and-unreachable")
async def test_a_provider_that_nobody_listens_for_is_503(make_llm: Gate) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        world = await make_llm(OPENAI_BASE_URL=f"http://127.0.0.1:{taken.getsockname()[1]}/v1")
        error_of(await chat(world), 503, "SERVICE_UNAVAILABLE")


@requirement("llm.provider-timeout-and-unreachable")
async def test_a_provider_whose_name_is_not_known_is_503(make_llm: Gate) -> None:
    world = await make_llm(OPENAI_BASE_URL="http://nobody.invalid/v1")
    error = error_of(await chat(world), 503, "SERVICE_UNAVAILABLE")
    assert error["details"] == {"provider_failure": True, "provider": "openai"}


@requirement("llm.provider-failures-say-so")
async def test_a_providers_failure_says_that_it_was_the_provider(make_llm: Gate, upstream: Upstream) -> None:
    world = await make_llm(SERVICE_LLM_BUDGETS="key:*:tokens/day=100000")
    for status, named in ((429, 429), (503, 503), (504, 504), (500, 502)):
        upstream.mood = moods.status(status)
        answer = await chat(world)
        assert answer.status_code == named
        body = answer.json()
        details = body["details"] if status == 429 else body["error"]["details"]
        assert details == {"provider_failure": True, "provider": "openai", "status": status}
    assert body["error"]["code"] == "PROVIDER_ERROR"
    upstream.mood = moods.status(429)
    body = (await chat(world)).json()
    assert (body["code"], body["error"]) == ("RATE_LIMITED", "Provider rate limit exceeded")


@requirement("llm.provider-failures-say-so")
async def test_the_gateways_own_throttle_names_no_provider(make_llm: Gate, upstream: Upstream) -> None:
    world = await make_llm(SERVICE_LLM_BUDGETS="key:*:tokens/day=1")
    assert (await chat(world)).status_code == 200
    body = (await chat(world)).json()
    assert (body["code"], body["error"]) == ("BUDGET_EXCEEDED", "Rate limit exceeded")
    assert "provider_failure" not in body.get("details", {})


@requirement("llm.stream-failure-closes")
@pytest.mark.parametrize("mood", BROKEN_STREAMS.values(), ids=BROKEN_STREAMS)
async def test_a_stream_that_breaks_off_ends_with_a_generic_error_and_without_done(
    world: World, upstream: Upstream, mood: Mood
) -> None:
    upstream.mood = mood
    answer = await world.admin.post("/api/v1/llm/stream", json=asking())
    assert answer.status_code == 200
    last = pieces(answer.text)[-1]
    assert last == {"error": "The stream was interrupted: the provider failed.", "code": "PROVIDER_ERROR"}
    assert "[DONE]" not in answer.text
    assert "overloaded" not in answer.text


@requirement("llm.stream-failure-closes", "llm.openai-errors")
async def test_a_service_that_stops_ends_each_stream_in_its_own_form_of_error(world: World, upstream: Upstream) -> None:
    upstream.halting = True
    upstream.go.clear()
    told: dict[str, Any] = {"model": "openai/sea-large", "stream": True}
    asked = {
        "/api/v1/llm/stream": asking(),
        "/v1/chat/completions": {**told, "messages": asking()["messages"]},
        "/v1/completions": {**told, "prompt": "Why?"},
        "/v1/responses": {**told, "input": "Why?"},
    }
    answers = [asyncio.create_task(world.admin.post(path, json=body)) for path, body in asked.items()]
    await soon(lambda: len(upstream.asked) == len(asked))
    world.kernel.infra.hub.closing.set()
    plain, chat, completion, responses = [pieces((await answer).text)[-1] for answer in answers]
    upstream.go.set()
    words = "The stream was interrupted. The service is stopping. Send the request again."
    assert plain == {"error": words, "code": "SERVICE_UNAVAILABLE"}
    for one in (chat, completion):
        assert (one["error"]["message"], one["error"]["code"]) == (words, "service_unavailable")
    assert (responses["type"], responses["message"], responses["code"]) == ("error", words, "service_unavailable")


@requirement("llm.stream-failure-closes")
@pytest.mark.parametrize("path", ["/api/v1/llm/stream", "/v1/chat/completions"])
@pytest.mark.parametrize("mood", STREAMS_WITHOUT_OUTPUT.values(), ids=STREAMS_WITHOUT_OUTPUT)
async def test_a_stream_that_fails_before_its_first_output_has_the_status_of_its_failure(
    world: World, upstream: Upstream, mood: Mood, path: str
) -> None:
    upstream.mood = mood
    body = {"messages": asking()["messages"], "model": "openai/sea-large"}
    answer = await world.admin.post(path, json=body | ({"stream": True} if path.startswith("/v1") else {}))
    assert (answer.status_code, answer.headers["content-type"]) == (502, "application/json")


@requirement("llm.stream-failure-closes")
async def test_a_stream_whose_first_event_is_an_error_is_answered_by_a_fallback(
    make_llm: Gate, upstream: Upstream
) -> None:
    world = await make_llm(SERVICE_LLM_FALLBACKS="openai/sea-large=openai/sea-small")
    busy = b'data: {"error": {"message": "Too much.", "code": 429}}\n\n'
    role = moods.sse({"id": "x", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
    upstream.mood = moods.first(moods.raw(role + busy, "text/event-stream"), None, upstream)
    answer = await world.admin.post("/api/v1/llm/stream", json=asking())
    assert "".join(piece["delta"] for piece in pieces(answer.text)[:-1]) == ANSWER
    assert [call["body"]["model"] for call in upstream.asked] == ["sea-large", "sea-small"]
    upstream.mood = moods.raw(role + busy, "text/event-stream")
    assert (await world.admin.post("/api/v1/llm/stream", json=asking())).status_code == 429


async def test_a_stream_of_a_slow_provider_begins_before_its_first_output(
    world: World, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "OUTPUT_SECONDS", 0.0)

    async def slow(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        await upstream.go.wait()
        await answer.write(WORD + b"data: [DONE]\n\n")
        return answer

    upstream.mood = slow
    upstream.go.clear()
    caller = LlmCaller("default", "admin")
    abandoned, stream = [await world.kernel.llm.gateway.stream(caller, ASKED) for _ in range(2)]
    await abandoned.close()
    await upstream.broken_off.wait()
    upstream.go.set()
    assert (await stream.read_reply(lambda text: None)).content == "The sea "


async def test_a_stream_that_does_not_begin_has_the_status_of_its_failure(world: World, upstream: Upstream) -> None:
    upstream.mood = moods.status(500)
    error_of(await world.admin.post("/api/v1/llm/stream", json=asking()), 502, "PROVIDER_ERROR")
    upstream.mood = moods.raw(b'{"choices": []}')
    error_of(await world.admin.post("/api/v1/llm/stream", json=asking()), 502, "PROVIDER_ERROR")
    upstream.mood = moods.status(429)
    assert (await world.admin.post("/api/v1/llm/stream", json=asking())).status_code == 429


async def test_a_stream_that_falls_silent_ends_with_an_error(make_llm: Gate, upstream: Upstream) -> None:
    world = await make_llm(SERVICE_LLM_STREAM_IDLE_SECONDS="2")
    upstream.halting = True
    upstream.go.clear()
    answer = await world.admin.post("/api/v1/llm/stream", json=asking())
    assert pieces(answer.text)[-1]["code"] == "TIMEOUT"


async def test_a_stream_of_nothing_but_comments_is_disconnected_with_an_error(
    make_llm: Gate, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport, "MAX_SECONDS_WITHOUT_EVENT", 0.0)
    monkeypatch.setattr(backends, "OUTPUT_SECONDS", 60.0)
    world = await make_llm(SERVICE_LLM_STREAM_IDLE_SECONDS="0.2")

    async def beating(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        while True:
            await answer.write(b": beat\n\n")
            await asyncio.sleep(0.01)

    upstream.mood = beating
    error_of(await world.admin.post("/api/v1/llm/stream", json=asking()), 504, "TIMEOUT")
    await upstream.broken_off.wait()


@requirement("llm.retries")
async def test_only_what_the_provider_did_not_take_is_sent_again(make_llm: Gate, upstream: Upstream) -> None:
    world = await make_llm(SERVICE_LLM_RETRIES="1")
    upstream.mood = moods.first(moods.status(503, **{"Retry-After": "0"}), None, upstream)
    assert (await chat(world)).json()["data"]["content"] == ANSWER
    assert len(upstream.asked) == 2
    for mood in (moods.status(500), moods.dead, moods.status(429, **{"Retry-After": "60"})):
        before = len(upstream.asked)
        upstream.mood = mood
        assert (await chat(world)).status_code in (502, 429)
        assert len(upstream.asked) == before + 1


@requirement("llm.retries")
@pytest.mark.parametrize("code", [429, 503, 529])
@pytest.mark.parametrize("told", ["", "soon", "5"])
async def test_a_busy_provider_is_asked_again_only_at_a_time_of_its_own_that_the_call_has(
    make_llm: Gate, upstream: Upstream, code: int, told: str
) -> None:
    world = await make_llm(SERVICE_LLM_RETRIES="1", SERVICE_LLM_TIMEOUT_SECONDS="4.9")
    upstream.mood = moods.first(moods.status(code, **({"Retry-After": told} if told else {})), None, upstream)
    assert (await chat(world)).status_code == (429 if code == 429 else 503)
    assert len(upstream.asked) == 1


@requirement("llm.circuit-breaker")
async def test_a_provider_that_keeps_failing_is_left_alone_for_a_while(world: World, upstream: Upstream) -> None:
    upstream.mood = moods.status(500)
    for _ in range(5):
        assert (await chat(world)).status_code == 502
    answer = await chat(world)
    error_of(answer, 503, "SERVICE_UNAVAILABLE")
    assert 1 <= int(answer.headers["Retry-After"]) <= 30
    assert len(upstream.asked) == 5
    world.clock.advance(seconds=31)
    assert (await chat(world)).status_code == 502  # one is let through, and fails
    assert (await chat(world)).status_code == 503
    world.clock.advance(seconds=31)
    upstream.mood = None
    assert (await chat(world)).status_code == 200
    assert (await chat(world)).status_code == 200


@requirement("llm.circuit-breaker")
async def test_what_one_tenants_calls_run_into_keeps_no_other_from_the_provider(
    world: World, upstream: Upstream
) -> None:
    upstream.mood = moods.status(500)
    for _ in range(5):
        assert (await chat(world)).status_code == 502
    assert (await chat(world)).status_code == 503
    upstream.mood = None
    other = await world.clients["OTHER"].post("/api/v1/llm/chat", json=asking("openai/sea-large"))
    assert other.status_code == 200


async def test_what_is_wrong_with_a_request_or_a_key_does_not_open_the_circuit(
    world: World, upstream: Upstream
) -> None:
    for mood in (moods.status(400), moods.status(401), moods.status(429)) * 3:
        upstream.mood = mood
        assert (await chat(world)).status_code in (502, 429)
    upstream.mood = None
    assert (await chat(world)).status_code == 200


@requirement("llm.fallbacks")
async def test_a_fallback_answers_when_the_first_provider_fails(make_llm: Gate, upstream: Upstream) -> None:
    world = await make_llm(SERVICE_LLM_FALLBACKS="openai/sea-large=nowhere|anthropic/sea-small")
    upstream.mood = moods.first(moods.status(500), None, upstream)
    data = (await chat(world)).json()["data"]
    assert (data["model"], data["content"]) == ("anthropic/sea-small", ANSWER)
    upstream.mood = moods.first(moods.status(429), None, upstream)
    streamed = await world.admin.post("/api/v1/llm/stream", json=asking())
    assert pieces(streamed.text)[-1] == "[DONE]"
    upstream.mood = moods.status(400)
    before = len(upstream.asked)
    assert (await chat(world)).status_code == 502  # the request is wrong, and would be wrong elsewhere
    assert len(upstream.asked) == before + 1


@requirement("llm.fallbacks")
async def test_a_fallback_that_cannot_do_the_request_does_not_hide_the_outage(
    make_llm: Gate, upstream: Upstream
) -> None:
    world = await make_llm(SERVICE_LLM_FALLBACKS="*=anthropic/sea-small")
    upstream.mood = moods.first(moods.status(503), moods.status(400), upstream)
    assert (await chat(world)).status_code == 503
    upstream.mood = moods.status(503)
    answer = await world.admin.post("/v1/embeddings", json={"model": "openai/sea-vector", "input": "salt"})
    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")


@requirement("llm.fallbacks")
async def test_a_model_whose_api_has_no_such_request_passes_it_on(make_llm: Gate, upstream: Upstream) -> None:
    world = await make_llm(SERVICE_LLM_GROUPS="vectors=anthropic/sea-small|openai/sea-vector")
    for _ in range(2):
        answer = await world.admin.post("/v1/embeddings", json={"model": "vectors", "input": "salt"})
        assert (answer.status_code, answer.json()["model"]) == (200, "openai/sea-vector")
    alone = await world.admin.post("/v1/embeddings", json={"model": "anthropic/sea-small", "input": "salt"})
    assert (alone.status_code, alone.json()["error"]["code"]) == (400, "invalid_request")


@requirement("llm.balancing")
async def test_models_of_a_group_take_turns_by_their_weight(make_llm: Gate, upstream: Upstream) -> None:
    world = await make_llm(SERVICE_LLM_GROUPS="fast=openai/sea-large*3|anthropic/sea-small")
    used = [(await chat(world, "fast")).json()["data"]["model"] for _ in range(8)]
    assert used.count("openai/sea-large") == 6
    assert used.count("anthropic/sea-small") == 2
    assert len(set(used[:4])) == 2
