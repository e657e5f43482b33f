"""What is kept of each call: its row, its evidence, its cost; and budgets that hold."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from datetime import UTC, date, datetime
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import msgspec
import pytest
from genai_prices import Usage
from genai_prices.data_snapshot import get_snapshot
from genai_prices.types import ModelPrice

from stentor.core.db import Database, Sql, Tx
from stentor.core.errors import BudgetExceeded, ProviderError, StartRefused
from stentor.domains.llm import costs
from stentor.domains.llm.calls.budget_ledger import RESERVED_RETRY_SECONDS, BudgetLedger
from stentor.domains.llm.calls.call_guard import LlmCaller
from stentor.domains.llm.costs import Budget, BudgetAccount, PriceList, SpentAmount
from stentor.domains.llm.formats import gemini
from stentor.domains.llm.formats import openai as openai_format
from stentor.domains.llm.model import ChatRequest, LlmMessage, TextPart, TokenUsage
from stentor.domains.llm.service import EXPECTED_OUTPUT_TOKENS, MAX_LEFT_OUTPUT_TOKENS
from stentor.domains.llm.wire import date_bounds_micros
from tests.conftest import World
from tests.domains.llm import upstream as moods
from tests.domains.llm.conftest import KEY, Gate, asking, chat
from tests.domains.llm.upstream import ANSWER, Mood, Upstream
from tests.patience import soon
from tests.requirements import requirement

T = TypeVar("T")
EVENTS = Sql("select event_id, metadata, duration_ms from events where event_type = 'llm_called' order by event_id")
SAID = ChatRequest("openai/sea-large", (LlmMessage("user", (TextPart("Why is the sea salty?"),)),))


async def evidence(world: World) -> list[dict[str, Any]]:
    rows = await world.kernel.infra.db.read(lambda tx: tx.rows(EVENTS))
    return [{"event_id": row[0], **json.loads(row[1]), "duration_ms": row[2]} for row in rows]


async def usage(world: World, key: str = "ADMIN", **query: str) -> dict[str, Any]:
    answer = await world.clients[key].get("/api/v1/llm/usage", params=query)
    assert answer.status_code == 200, answer.text
    return dict(answer.json()["data"])


def today(world: World) -> str:
    return datetime.fromtimestamp(world.clock.now() / 1e6, UTC).date().isoformat()


@requirement("llm.usage")
async def test_usage_adds_up_calls_by_provider_model_and_day(make_llm: Gate) -> None:
    world = await make_llm(SERVICE_LLM_PRICES="openai/*=1000/2000,anthropic/sea-small=0/1000000")
    first_day = today(world)
    await chat(world)
    await chat(world, "anthropic/sea-small")
    world.clock.advance(days=1)
    await chat(world)
    embedded = await world.admin.post("/api/v1/llm/embed", json={"text": "salt", "model": "openai/sea-vector"})
    assert embedded.status_code == 200
    found = await usage(world)
    assert (found["totalRequests"], found["inputTokens"], found["outputTokens"]) == (4, 38, 21)
    assert found["totalTokens"] == 59
    assert found["byProvider"]["openai"]["requests"] == 3
    assert found["byModel"]["anthropic/sea-small"]["estimatedCost"] == pytest.approx(7.0)
    assert found["estimatedCost"] == pytest.approx(2 * (0.011 + 0.014) + 0.005 + 7.0)
    assert {day: v["requests"] for day, v in found["byDay"].items()} == {first_day: 2, today(world): 2}
    assert (await usage(world, provider="anthropic"))["totalRequests"] == 1
    assert (await usage(world, startDate=today(world)))["totalRequests"] == 2
    assert (await usage(world, endDate=first_day))["totalRequests"] == 2
    assert (await usage(world, startDate=first_day, endDate=first_day, provider="openai"))["totalRequests"] == 1
    assert (await usage(world, "OTHER"))["totalRequests"] == 0


@requirement("llm.usage-sums")
async def test_usage_counts_a_call_once_whether_it_is_stored_in_the_sums_of_its_day_or_not(make_llm: Gate) -> None:
    world = await make_llm(SERVICE_LLM_PRICES="openai/*=1000/2000")
    totals, db = world.kernel.llm.usage_totals, world.kernel.infra.db
    found: list[dict[str, Any]] = []
    for minutes in (0, 5, 20, 24 * 60):
        world.clock.advance(seconds=60 * minutes)
        await asyncio.gather(chat(world), chat(world, "anthropic/sea-small"))
        found.append(await usage(world))
        await asyncio.gather(totals.add_all(), totals.add_all())
        assert await usage(world) == found[-1]
    assert [one["totalRequests"] for one in found] == [2, 4, 6, 8]
    assert (await usage(world, provider="openai"))["totalRequests"] == 4
    assert (await usage(world, startDate=today(world)))["totalRequests"] == 2
    assert (await usage(world, "OTHER"))["totalRequests"] == 0
    # Archives take calls out of the database, and usage keeps them.
    await db.write(lambda tx: tx.run(Sql("delete from llm_calls")))
    assert (await usage(world))["totalRequests"] == 6
    assert (await usage(world))["unpricedRequests"] == 3


@requirement("llm.usage-sums")
async def test_usage_counts_calls_after_the_clock_was_set_back(world: World) -> None:
    totals = world.kernel.llm.usage_totals
    # To the first hour of a day, so that no midnight lies between the calls of a day and their sums.
    world.clock.advance(seconds=86_400 - world.clock.now() // 1_000_000 % 86_400)
    await chat(world)
    world.clock.advance(days=3)
    await chat(world)
    world.clock.advance(seconds=3600)
    await totals.add_all()
    world.clock.advance(days=-2)
    for number in (3, 4):
        await chat(world)
        world.clock.advance(seconds=3600)
        await totals.add_all()
        assert (await usage(world))["totalRequests"] == number


@pytest.mark.parametrize(
    "query",
    [
        "startDate=yesterday",
        "endDate=2026-13-01",
        "startDate=5",
        "startDate=2026-11-20&endDate=2026-11-19",
        "provider=%00",
    ],
)
async def test_a_query_that_cannot_be_read_is_refused(world: World, query: str) -> None:
    answer = await world.admin.get(f"/api/v1/llm/usage?{query}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "INVALID_REQUEST")


def test_the_last_day_of_the_calendar_has_an_end() -> None:
    assert date_bounds_micros(None, None)[0] == 0
    assert date_bounds_micros(date.max, date.max)[1] > date_bounds_micros(date.max, None)[0]


@requirement("llm.usage-estimated")
async def test_estimates_failures_and_unknown_prices_are_told_apart(world: World, upstream: Upstream) -> None:
    upstream.usage = False
    await chat(world)
    upstream.mood = moods.status(500)
    await chat(world)
    found = await usage(world)
    assert (found["totalRequests"], found["estimatedRequests"], found["unpricedRequests"]) == (2, 1, 2)
    assert found["estimatedCost"] == 0
    assert 5 <= found["inputTokens"] <= 20


def test_prices_are_the_packages_or_the_operators() -> None:
    million = TokenUsage(1_000_000, 1_000_000)
    packaged = PriceList().cost_nanos("openai", "gpt-4o-mini", million)
    assert packaged is not None
    assert 0.1 * costs.NANOS_PER_DOLLAR < packaged < 10 * costs.NANOS_PER_DOLLAR
    own = PriceList(["openai/gpt-4o-mini=1/2", "acme/*=0.5/0.5"])
    assert own.cost_nanos("openai", "gpt-4o-mini", million) == 3 * costs.NANOS_PER_DOLLAR
    assert own.cost_nanos("acme", "whatever", million) == costs.NANOS_PER_DOLLAR
    assert own.cost_nanos("ollama", "llama", million) == 0
    assert own.cost_nanos("nobody", "nothing", million) is None
    for never_matches in ("openai=free", "gpt-5=1/2", "openai/gpt-*=1/2", "*=1/2", "*/*=1/2", "/gpt-5=1/2"):
        with pytest.raises(StartRefused, match="SERVICE_LLM_PRICES"):
            PriceList([never_matches])


def _package_cost(prices: ModelPrice, used: TokenUsage) -> int:
    cached = min(used.cached_tokens, used.input_tokens) or None
    parts = {"cache_read_tokens": cached, "cache_write_tokens": used.written_tokens or None}
    parts |= {"cache_write_1h_tokens": used.written_1h_tokens or None}
    parts |= {"input_audio_tokens": used.audio_input_tokens or None}
    parts |= {"output_audio_tokens": used.audio_output_tokens or None}
    usage = Usage(input_tokens=used.input_tokens, output_tokens=used.output_tokens, **parts)
    return round(prices.calc_price(usage)["total_price"] * costs.NANOS_PER_DOLLAR)


def test_each_model_costs_what_the_package_says() -> None:
    """Also those with tiers, with a price of the request, and with prices that depend on the hour."""
    now, tiered = datetime.now(UTC), 0
    for provider in get_snapshot().providers:
        for model in provider.models:
            prices = model.get_prices(now)
            starts = {tier.start for price in vars(prices).values() for tier in getattr(price, "tiers", ())}
            tiered += bool(starts)
            edges = [TokenUsage(start + more, 7, 0, 3) for start in starts for more in (-1, 0, 1, 2)]
            plain = (TokenUsage(), TokenUsage(1), TokenUsage(0, 1), TokenUsage(999_983, 65_537, 0, 77_777))
            rates = costs.PackageRates(prices)
            written = [TokenUsage(99_991, 7, 0, 9, written_tokens=count) for count in (1, 77_777, 99_982)]
            written += [TokenUsage(99_991, 7, written_tokens=9, written_1h_tokens=count) for count in (1, 9)]
            sound = [
                TokenUsage(99_991, 65_537, audio_input_tokens=in_, audio_output_tokens=7) for in_ in (0, 1, 77_777)
            ]
            for used in (*plain, TokenUsage(5, 5, 0, 9), TokenUsage(2**40, 2**40, 0, 2**39), *edges, *written, *sound):
                assert rates.cost_nanos(used) == _package_cost(prices, used), (provider.id, model.id, used)
    assert tiered > 50


def test_the_package_is_not_asked_for_each_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """That would take a fifth of the processor time of a chat."""
    prices = PriceList()
    prices.cost_nanos("openai", "gpt-4o-mini", TokenUsage(10, 10))
    monkeypatch.setattr(ModelPrice, "calc_price", lambda *_: pytest.fail("asked again"))
    assert prices.cost_nanos("openai", "gpt-4o-mini", TokenUsage(2_000_000, 0)) == 300_000_000


@requirement("llm.wire-evidence")
async def test_each_call_leaves_evidence_without_content_or_key(world: World, upstream: Upstream) -> None:
    made = (await chat(world)).json()["data"]
    await world.admin.post("/api/v1/llm/stream", json=asking())
    upstream.mood = moods.status(418, **{"x-key": KEY})
    await chat(world)
    found = await evidence(world)
    assert [one["outcome"] for one in found] == ["ok", "ok", "PROVIDER_ERROR"]
    one = found[0]
    assert one["event_id"] == one["call_id"] == made["provenance_id"]
    assert one["response_id"] == "chatcmpl-up-1"
    assert one["endpoint"] == f"{upstream.v1}/chat/completions"
    assert (one["upstream_status"], found[2]["upstream_status"]) == (200, 418)
    assert one["duration_ms"] >= 0
    assert len(one["request_sha256"]) == len(one["response_sha256"]) == 64
    assert one["request_sha256"] != found[1]["request_sha256"]
    assert (one["key"], one["attempts"]) == ("admin", 1)
    text = json.dumps(found)
    for secret in (KEY, "salty", "The sea"):
        assert secret not in text


@requirement("llm.record-fails-closed")
async def test_an_answer_that_cannot_be_recorded_is_not_given(world: World) -> None:
    world.runlog.broken = True
    answer = await chat(world)
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "SERVICE_UNAVAILABLE")
    streamed = await world.admin.post("/api/v1/llm/stream", json=asking())
    assert "[DONE]" not in streamed.text
    world.runlog.broken = False
    assert (await usage(world))["totalRequests"] == 0


# Budgets


def refused(answer: Any) -> int:
    """The seconds to wait of an answer that the budget is spent."""
    assert answer.status_code == 429, answer.text
    assert answer.json()["code"] == "BUDGET_EXCEEDED"
    return int(answer.headers["Retry-After"])


@requirement("llm.budgets")
async def test_a_key_that_spent_its_tokens_waits_for_the_next_day(make_llm: Gate, upstream: Upstream) -> None:
    world = await make_llm(SERVICE_LLM_BUDGETS="key:writer:tokens/day=30")
    writer = world.clients["WRITER"]
    for _ in range(2):
        assert (await writer.post("/api/v1/llm/chat", json=asking())).status_code == 200
    answer = await writer.post("/api/v1/llm/chat", json=asking())
    assert 0 < refused(answer) <= 86_401
    assert len(upstream.asked) == 2
    assert (await chat(world)).status_code == 200  # another key's account
    for path, body in (
        ("/api/v1/llm/stream", asking()),
        ("/api/v1/llm/embed", {"text": "x", "model": "openai/sea"}),
        ("/api/v1/llm/complete", {"prompt": "x", "model": "openai/sea"}),
    ):
        refused(await writer.post(path, json=body))
    for path, body in (
        ("/v1/chat/completions", asking()),
        ("/v1/completions", {"prompt": "x", "model": "openai/sea"}),
        ("/v1/embeddings", {"input": "x", "model": "openai/sea"}),
        ("/v1/responses", {"input": "x", "model": "openai/sea"}),
    ):
        dialect = await writer.post(path, json=body)
        error = dialect.json()["error"]
        assert (dialect.status_code, error["code"], error["type"]) == (429, "budget_exceeded", "insufficient_quota")
    assert len(upstream.asked) == 3
    world.clock.advance(days=1)
    assert (await writer.post("/api/v1/llm/chat", json=asking())).status_code == 200


@requirement("llm.budgets")
async def test_money_of_a_month_is_counted_for_each_key(make_llm: Gate) -> None:
    world = await make_llm(SERVICE_LLM_PRICES="openai/*=1000000/0", SERVICE_LLM_BUDGETS="key:*:usd/month=10.5")
    assert (await chat(world)).status_code == 200
    assert 0 < refused(await chat(world)) <= 31 * 86_400 + 1
    assert (await world.clients["WRITER"].post("/api/v1/llm/chat", json=asking())).status_code == 200
    refused(await world.clients["WRITER"].post("/api/v1/llm/chat", json=asking()))
    world.clock.advance(days=31)
    assert (await chat(world)).status_code == 200


@requirement("llm.budgets")
async def test_an_agent_has_an_account_of_its_own(make_llm: Gate) -> None:
    world = await make_llm(SERVICE_LLM_BUDGETS="agent:*:tokens/day=15")
    gateway = world.kernel.llm.gateway
    ann, bob = (LlmCaller("default", "admin", agent_id=name) for name in ("ann", "bob"))
    assert (await gateway.chat(ann, SAID)).reply.content == ANSWER
    with pytest.raises(BudgetExceeded, match="ann"):
        await gateway.chat(ann, SAID)
    assert (await gateway.chat(bob, SAID)).reply.content == ANSWER


@requirement("llm.usage")
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_reply_that_its_provider_broke_off_counts_with_its_tokens(
    world: World, upstream: Upstream, *, streamed: bool
) -> None:
    choice = {"delta" if streamed else "message": {"content": "half"}, "finish_reason": "error"}
    reply = {"choices": [choice], "usage": {"prompt_tokens": 1000, "completion_tokens": 5}}
    upstream.mood = moods.raw(moods.sse(reply), "text/event-stream") if streamed else moods.status(200, reply)
    answer = await world.admin.post("/v1/chat/completions", json=asking(stream=streamed))
    assert "provider_error" in answer.text
    found = await usage(world)
    assert (found["totalRequests"], found["inputTokens"], found["outputTokens"]) == (1, 1000, 5)


@requirement("llm.usage")
@pytest.mark.parametrize(
    ("form", "body"),
    [
        (openai_format, b'{"choices": [], "usage": {"prompt_tokens": 11, "completion_tokens": 7}}'),
        (gemini, b'{"usageMetadata": {"promptTokenCount": 11, "candidatesTokenCount": 7}}'),
    ],
)
def test_a_reply_without_an_answer_counts_with_its_tokens(form: Any, body: bytes) -> None:
    with pytest.raises(ProviderError) as failed:
        form.parse_reply(body, "m")
    assert failed.value.usage == TokenUsage(11, 7)


@requirement("llm.usage")
@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        (  # as of xAI
            {"completion_tokens": 20, "total_tokens": 1120, "completion_tokens_details": {"reasoning_tokens": 1000}},
            TokenUsage(100, 1020, 1000),
        ),
        ({"completion_tokens": 20, "total_tokens": 1120}, TokenUsage(100, 1020, 1000)),  # as of Google's address
        (  # as of OpenAI
            {"completion_tokens": 20, "total_tokens": 120, "completion_tokens_details": {"reasoning_tokens": 15}},
            TokenUsage(100, 20, 15),
        ),
        ({"completion_tokens": 20, "total_tokens": 0}, TokenUsage(100, 20)),
        ({"total_tokens": 100}, TokenUsage(100)),  # as of embeddings
    ],
)
def test_reasoning_that_is_only_in_the_total_is_output(reported: dict[str, Any], expected: TokenUsage) -> None:
    choice = {"message": {"content": "x"}, "finish_reason": "stop"}
    body = json.dumps({"choices": [choice], "usage": {"prompt_tokens": 100, **reported}}).encode()
    assert openai_format.parse_reply(body, "m").usage == expected
    assert openai_format.stream_reader().read("", body)[0].usage == expected


@requirement("llm.usage-estimated")
@pytest.mark.parametrize("mood", [moods.dead, moods.raw(b'{"choices": [', "application/json"), moods.raw(b"<html>")])
async def test_a_request_whose_answer_is_lost_counts_and_is_not_repeated(
    make_llm: Gate, upstream: Upstream, mood: Mood
) -> None:
    world = await make_llm(SERVICE_LLM_BUDGETS="key:*:tokens/day=15")
    upstream.mood = mood
    answer = await chat(world)
    assert (answer.status_code, answer.headers["X-Should-Retry"]) == (502, "false")
    lost = await usage(world)
    assert (lost["totalRequests"], lost["estimatedRequests"], lost["outputTokens"]) == (1, 1, 0)
    assert 5 <= lost["inputTokens"] <= 20
    embedded = await world.admin.post("/v1/embeddings", json={"input": "x" * 400, "model": "openai/sea"})
    assert embedded.status_code == 502
    assert (await usage(world))["inputTokens"] == lost["inputTokens"] + 100
    refused(await chat(world))


@requirement("llm.usage-estimated")
@pytest.mark.parametrize("count", [0, -100_000])
async def test_a_count_of_a_provider_that_is_not_positive_is_estimated(
    world: World, upstream: Upstream, count: int
) -> None:
    counts = {"usage": {"prompt_tokens": count, "completion_tokens": count, "total_tokens": count}}
    choice = {"index": 0, "finish_reason": "stop"}
    upstream.mood = moods.raw(
        json.dumps({"choices": [choice | {"message": {"content": "x" * 400}}], **counts}).encode()
    )
    said = (await chat(world)).json()["data"]["usage"]
    assert (said["output_tokens"], said["estimated"]) == (100, True)
    assert 5 <= said["input_tokens"] <= 20
    delta = moods.sse({"choices": [choice | {"delta": {"content": "x" * 400}}], **counts})
    upstream.mood = moods.raw(delta + b"data: [DONE]\n\n", "text/event-stream")
    await world.admin.post("/api/v1/llm/stream", json=asking("openai/sea"))
    upstream.mood = moods.raw(json.dumps({"data": [{"index": 0, "embedding": [0.1]}], **counts}).encode())
    await world.admin.post("/v1/embeddings", json={"input": "x" * 400, "model": "openai/embed"})
    found = await usage(world)
    assert (found["totalRequests"], found["estimatedRequests"], found["outputTokens"]) == (3, 3, 200)
    assert found["inputTokens"] == 2 * said["input_tokens"] + 100


@pytest.mark.parametrize(
    ("part", "reasoning", "cached"),
    [(-7, 0, 0), (10**30, 50, 100)],
    ids=["negative", "larger than the whole"],
)
async def test_parts_of_a_count_are_within_the_whole(
    world: World, upstream: Upstream, part: int, reasoning: int, cached: int
) -> None:
    counts = {
        "prompt_tokens": 100,
        "completion_tokens": 50,
        "prompt_tokens_details": {"cached_tokens": part},
        "completion_tokens_details": {"reasoning_tokens": part},
    }
    choice = {"index": 0, "finish_reason": "stop", "message": {"content": "x"}}
    upstream.mood = moods.raw(json.dumps({"choices": [choice], "usage": counts}).encode())
    body = {"model": "openai/sea", "messages": [{"role": "user", "content": "hi"}]}
    said = (await world.admin.post("/v1/chat/completions", json=body)).json()["usage"]
    assert said["completion_tokens_details"]["reasoning_tokens"] == reasoning
    assert said["prompt_tokens_details"]["cached_tokens"] == cached


@requirement("llm.usage-estimated")
async def test_an_output_of_nothing_is_no_estimate(world: World, upstream: Upstream) -> None:
    choice = {"index": 0, "finish_reason": "stop", "message": {"content": ""}}
    counts = {"usage": {"prompt_tokens": 7, "completion_tokens": 0}}
    upstream.mood = moods.raw(json.dumps({"choices": [choice], **counts}).encode())
    said = (await chat(world)).json()["data"]["usage"]
    assert (said["input_tokens"], said["output_tokens"], "estimated" in said) == (7, 0, False)


@requirement("llm.usage-estimated")
async def test_an_interrupted_stream_counts_the_input_that_the_provider_has_reported(
    world: World, upstream: Upstream
) -> None:
    counts = {
        "input_tokens": 100,
        "cache_read_input_tokens": 900,
        "cache_creation_input_tokens": 50,
        "output_tokens": 1,
    }
    start = moods.sse({"type": "message_start", "message": {"id": "m", "usage": counts}})
    text = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "salt" * 10}}
    upstream.mood = moods.raw(start + moods.sse(text), "text/event-stream")
    await world.admin.post("/api/v1/llm/stream", json=asking("anthropic/sea-small"))
    found = await usage(world)
    assert (found["inputTokens"], found["outputTokens"], found["estimatedRequests"]) == (1050, 10, 1)


@requirement("llm.usage-estimated")
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(("for_an_hour", "least_ratio"), [(0, 1.15), (4000, 1.6)])
async def test_what_anthropic_writes_to_its_cache_costs_more_than_other_input(
    world: World, upstream: Upstream, streamed: bool, for_an_hour: int, least_ratio: float
) -> None:
    counts: dict[str, Any] = {"input_tokens": 100, "cache_read_input_tokens": 9000, "cache_creation_input_tokens": 5000}
    counts |= {"cache_creation": {"ephemeral_5m_input_tokens": 1000, "ephemeral_1h_input_tokens": for_an_hour}}
    message = {"id": "m", "content": [], "stop_reason": "end_turn", "usage": {**counts, "output_tokens": 7}}
    end = [{"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 7}}]
    events = [{"type": "message_start", "message": message}, *end, {"type": "message_stop"}]
    whole = moods.raw(json.dumps(message).encode())
    upstream.mood = moods.raw(b"".join(map(moods.sse, events)), "text/event-stream") if streamed else whole
    body = asking("anthropic/claude-haiku-4-5") | {"max_tokens": 9, "stream": streamed}
    assert (await world.admin.post("/v1/messages", json=body)).status_code == 200
    as_input, expected = (
        PriceList().cost_nanos(
            "anthropic",
            "claude-haiku-4-5",
            TokenUsage(14_100, 7, 0, 9000, written_tokens=written, written_1h_tokens=for_an_hour),
        )
        for written in (0, 5000)
    )
    assert as_input is not None
    assert expected is not None
    assert expected > as_input * least_ratio
    assert (await usage(world))["estimatedCost"] == expected / costs.NANOS_PER_DOLLAR


@requirement("llm.usage-estimated")
@pytest.mark.parametrize(("allowed", "paid"), [(None, EXPECTED_OUTPUT_TOKENS), (10**7, MAX_LEFT_OUTPUT_TOKENS)])
async def test_a_caller_that_gives_up_pays_for_its_prompt_and_for_the_reply_that_it_allowed(
    world: World, upstream: Upstream, allowed: int | None, paid: int
) -> None:
    upstream.mood = moods.silent
    request = msgspec.structs.replace(SAID, max_tokens=allowed)
    asked = asyncio.create_task(world.kernel.llm.gateway.chat(LlmCaller("default", "admin"), request))
    await upstream.arrived.wait()
    asked.cancel()
    await asyncio.wait([asked])
    await world.kernel.llm.gateway.close()
    found = await usage(world)
    assert (found["totalRequests"], found["estimatedRequests"], found["outputTokens"]) == (1, 1, paid)
    assert 5 <= found["inputTokens"] <= 20


@requirement("llm.usage-estimated")
@pytest.mark.parametrize("mood", [moods.status(503, **{"Retry-After": "60"}), moods.status(429), moods.status(400)])
async def test_a_request_that_the_provider_refused_counts_nothing(world: World, upstream: Upstream, mood: Mood) -> None:
    upstream.mood = mood
    assert "X-Should-Retry" not in (await chat(world)).headers
    assert (await usage(world))["inputTokens"] == 0


@requirement("llm.usage-estimated")
@pytest.mark.parametrize(("reports", "tokens"), [(True, 5000), (False, 4)])
async def test_of_embeddings_of_several_calls_those_before_a_refusal_count(
    world: World, upstream: Upstream, monkeypatch: pytest.MonkeyPatch, *, reports: bool, tokens: int
) -> None:
    monkeypatch.setattr(openai_format, "MAX_EMBEDDING_INPUTS", 2)
    counts = {"usage": {"prompt_tokens": 5000, "total_tokens": 5000}} if reports else {}
    rows = [{"index": n, "embedding": [0.1, 0.2]} for n in range(2)]
    part = moods.raw(json.dumps({"data": rows, **counts}).encode())
    upstream.mood = moods.first(part, moods.status(429), upstream)
    body = {"input": ["the sea"] * 3, "model": "openai/embed"}
    answer = await world.admin.post("/v1/embeddings", json=body)
    assert (answer.status_code, answer.headers["X-Should-Retry"]) == (429, "false")
    found = await usage(world)
    assert (found["inputTokens"], found["estimatedRequests"]) == (tokens, int(not reports))


HIDDEN = "the sea " * 1_000
"""About 2,000 tokens of text, in a field that is passed on to the provider although no neutral request has it."""
HIDING: dict[str, tuple[str, dict[str, Any]]] = {
    "an unknown field": ("openai", {"documents": [HIDDEN]}),
    "a prediction": ("openai", {"prediction": {"type": "content", "content": HIDDEN}}),
    "a schema": ("openai", {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "doc": HIDDEN}}}),
    "a field of a tool": ("openai", {"tools": [{"type": "function", "function": {"name": "f"}, "note": HIDDEN}]}),
    "a field of a message": ("openai", {"messages": [{"role": "user", "content": "x", "note": HIDDEN}]}),
    "a field of a part": (
        "openai",
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "note": HIDDEN}]}]},
    ),
    "the name of a file": (
        "openai",
        {"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": "f", "filename": HIDDEN}}]}]},
    ),
    "the name of a call": (
        "openai",
        {
            "messages": [
                {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": {"name": HIDDEN}}]},
                {"role": "tool", "tool_call_id": "c", "content": "x"},
            ]
        },
    ),
    "reasoning": ("openai", {"messages": [{"role": "assistant", "content": "x", "reasoning_content": HIDDEN}]}),
    "a field of Anthropic's": ("anthropic", {"mcp_servers": [{"name": HIDDEN}]}),
    "a field of Anthropic's tool": ("anthropic", {"tools": [{"name": "f", "input_schema": {}, "examples": [HIDDEN]}]}),
    "a field of a block of the system": ("anthropic", {"system": [{"type": "text", "text": "x", "note": HIDDEN}]}),
    "a field of a block": (
        "anthropic",
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "note": HIDDEN}]}]},
    ),
    "thinking": (
        "anthropic",
        {
            "messages": [
                {"role": "assistant", "content": [{"type": "thinking", "thinking": HIDDEN, "signature": "c2ln"}]},
                {"role": "user", "content": "x"},
            ]
        },
    ),
}


@requirement("llm.budgets", "llm.usage-estimated")
@pytest.mark.parametrize("name", HIDING)
async def test_calls_cannot_hide_text_from_a_budget_in_fields_that_are_passed_on(
    make_llm: Gate, upstream: Upstream, name: str
) -> None:
    world = await make_llm(SERVICE_LLM_BUDGETS="key:admin:tokens/day=3500")
    provider, fields = HIDING[name]
    path = "/v1/messages" if provider == "anthropic" else "/v1/chat/completions"
    body = {"max_tokens": 10} | asking(f"{provider}/sea-large") | fields
    upstream.usage = False
    upstream.go.clear()
    upstream.mood = moods.held(upstream)
    work = [asyncio.create_task(world.admin.post(path, json=body)) for _ in range(5)]
    await soon(lambda: len(upstream.asked) + sum(one.done() for one in work) == 5)
    upstream.go.set()
    answers = [await one for one in work]
    # The first leaves some hundred tokens, so the second begins, too.
    assert [answer.status_code for answer in answers].count(200) == 2, answers[0].text
    assert HIDDEN in json.dumps(upstream.asked[0]["body"]) or name == "reasoning"
    if provider == "openai":
        assert (await usage(world))["inputTokens"] >= 4_000


@requirement("llm.budgets")
async def test_calls_at_the_same_time_do_not_pass_a_budget_together(make_llm: Gate, upstream: Upstream) -> None:
    world = await make_llm(SERVICE_LLM_BUDGETS="key:admin:tokens/day=200")
    upstream.go.clear()
    upstream.mood = moods.held(upstream)
    work = [asyncio.create_task(chat(world, options={"max_tokens": 100})) for _ in range(10)]
    await soon(lambda: sum(one.done() for one in work) == 8)
    upstream.go.set()
    statuses = [(await one).status_code for one in work]
    assert (statuses.count(200), statuses.count(429)) == (2, 8)
    assert len(upstream.asked) == 2
    upstream.mood = None
    assert (await chat(world)).status_code == 200  # what was reserved and not spent is free again


@requirement("llm.budgets")
async def test_a_budget_that_calls_in_progress_reserve_is_not_said_to_be_used_up(
    make_llm: Gate, upstream: Upstream
) -> None:
    world = await make_llm(SERVICE_LLM_BUDGETS="tenant:default:tokens/day=200")
    upstream.go.clear()
    upstream.mood = moods.held(upstream)
    open_call = asyncio.create_task(chat(world, options={"max_tokens": 300}))
    await upstream.arrived.wait()
    answer = await chat(world)
    assert refused(answer) == RESERVED_RETRY_SECONDS
    assert "calls in progress" in answer.text
    soon_free = await world.admin.post("/v1/chat/completions", json={**asking(), "max_tokens": 300})
    assert soon_free.json()["error"]["type"] == "rate_limit_error"
    with pytest.raises(BudgetExceeded) as reserved:
        await world.kernel.llm.gateway.chat(LlmCaller("default", "admin"), SAID)
    assert not reserved.value.is_outage, "an agent must not rest for it"
    upstream.go.set()
    assert [(await open_call).status_code, (await chat(world)).status_code] == [200, 200]


class Rows(Database):
    """Rows of spent tokens, of which a read returns those of its begin, as soon as `go` is set."""

    def __init__(self) -> None:
        self.go, self.reads, self.spent = asyncio.Event(), 0, 90

    async def read(self, fn: Callable[[Tx], T]) -> T:
        self.reads += 1
        seen = self.spent  # the snapshot is taken before the rows arrive
        await self.go.wait()
        return fn(cast(Tx, SimpleNamespace(now=0, rows=lambda *_, **__: [(seen, 0)])))


ACCOUNT: BudgetAccount = ("default", "key", "admin")
HUNDRED = Budget("key", "*", "tokens", "day", 100)


async def test_a_call_that_ends_while_a_budget_is_read_still_counts() -> None:
    rows = Rows()
    ledger = BudgetLedger(rows, (HUNDRED,))
    open_call = ledger.reserve([ACCOUNT], SpentAmount(20))
    checks = [asyncio.create_task(ledger.check(ledger.find_applicable([ACCOUNT]))) for _ in range(2)]
    await soon(lambda: rows.reads == 1)
    rows.spent += 20
    open_call.release()
    late = ledger.reserve([ACCOUNT], SpentAmount(20))
    late.release()
    rows.go.set()
    for check in checks:
        with pytest.raises(BudgetExceeded, match="reserved by calls in progress"):
            await check
    with pytest.raises(BudgetExceeded, match="used up"):
        await ledger.check(ledger.find_applicable([ACCOUNT]))
    assert rows.reads == 2, "checks at the same time share a read"


async def test_checks_that_come_during_a_read_do_not_see_its_rows() -> None:
    rows = Rows()
    ledger = BudgetLedger(rows, (HUNDRED,))
    first = asyncio.create_task(ledger.check(ledger.find_applicable([ACCOUNT])))
    await soon(lambda: rows.reads == 1)
    rows.spent = 100
    others = [asyncio.create_task(ledger.check(ledger.find_applicable([ACCOUNT]))) for _ in range(3)]
    others[0].cancel()
    rows.go.set()
    await first
    for check in others[1:]:
        with pytest.raises(BudgetExceeded, match="used up"):
            await check
    assert rows.reads == 2


async def test_a_budget_that_cannot_be_read_stops_the_start(make_llm: Gate) -> None:
    for entry in ("key:bob:tokens/day", "key:bob:tokens/week=5", "user:bob:usd/day=1", "key:bob:usd/day=-1"):
        with pytest.raises(StartRefused, match="SERVICE_LLM_BUDGETS"):
            await make_llm(SERVICE_LLM_BUDGETS=entry)


def test_a_month_begins_with_its_first_day_and_ends_with_its_last() -> None:
    moment = int(datetime(2026, 12, 31, 23, 59, 30, tzinfo=UTC).timestamp() * 1e6)
    assert costs.first_day_of_period("month", moment) == (date(2026, 12, 1) - date(1970, 1, 1)).days
    assert costs.seconds_until_reset("month", moment) == 31
    assert costs.seconds_until_reset("day", moment) == 31
    assert costs.first_day_of_period("day", moment) == (date(2026, 12, 31) - date(1970, 1, 1)).days
