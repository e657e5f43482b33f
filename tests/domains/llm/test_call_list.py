"""The record of model calls: listed newest first, filtered, paged, and one with what was kept of it."""

from __future__ import annotations

from typing import Any

import pytest

from stentor.domains.llm import queries
from tests.conftest import World
from tests.domains.llm import upstream as moods
from tests.domains.llm.conftest import Gate, chat
from tests.domains.llm.upstream import ANSWER, Upstream
from tests.requirements import requirement


async def calls(world: World, caller: str = "ADMIN", **query: Any) -> list[dict[str, Any]]:
    """All pages of the list."""
    found: list[dict[str, Any]] = []
    cursor = None
    while True:
        params = {**query, **({"cursor": cursor} if cursor else {})}
        response = await world.clients[caller].get("/api/v1/llm/calls", params=params)
        assert response.status_code == 200, response.text
        page = response.json()
        found += page["calls"]
        cursor = page["next_cursor"]
        if cursor is None:
            return found


@requirement("llm.calls")
async def test_calls_are_listed_newest_first_with_who_what_and_how_much(make_llm: Gate) -> None:
    world = await make_llm(SERVICE_LLM_PRICES="openai/*=1000/2000")
    await chat(world)
    world.clock.advance(seconds=1)
    await chat(world, "anthropic/sea-small")
    newest, oldest = await calls(world)
    assert (newest["provider"], newest["model"]) == ("anthropic", "sea-small")
    assert oldest | {"call_id": "", "happened_at": "", "latency_ms": 0} == {
        "call_id": "",
        "happened_at": "",
        "key": "admin",
        "agent_id": None,
        "task_id": None,
        "operation": "chat",
        "provider": "openai",
        "model": "sea-large",
        "outcome": "ok",
        "input_tokens": 11,
        "output_tokens": 7,
        "estimated": False,
        "cost_usd": pytest.approx(0.025),
        "latency_ms": 0,
        "cached_tokens": 0,
        "team": "",
    }


@requirement("llm.calls")
async def test_the_most_expensive_calls_come_first_and_those_without_a_price_last(
    make_llm: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = await make_llm(SERVICE_LLM_PRICES="openai/sea-large=1000/2000,anthropic/*=3000/6000")
    for model in ("anthropic/sea-small", "openai/sea-large", "openai/of-no-price", "anthropic/sea-small"):
        world.clock.advance(seconds=1)
        await chat(world, model)
    newest_first = await calls(world)
    by_cost = await calls(world, order="cost")
    assert [call["call_id"] for call in by_cost] == [newest_first[n]["call_id"] for n in (0, 3, 2, 1)]
    assert len(await calls(world, order="cost", limit=2)) == 2, "one page"
    assert [call["model"] for call in await calls(world, order="cost", provider="openai")] == [
        "sea-large",
        "of-no-price",
    ]
    # Among a million calls it looks at the newest only.
    monkeypatch.setattr(queries, "MAX_WINDOW_CALLS", 2)
    monkeypatch.setattr(queries, "_window_sql", queries._window_sql.__wrapped__)
    assert [call["call_id"] for call in await calls(world, order="cost")] == [
        newest_first[n]["call_id"] for n in (0, 1)
    ]
    refused = await world.admin.get("/api/v1/llm/calls", params={"order": "model"})
    assert refused.status_code == 400


@requirement("llm.calls")
@pytest.mark.parametrize("seconds", [0, 1])
async def test_calls_are_filtered_and_every_page_is_reached(
    make_llm: Gate, monkeypatch: pytest.MonkeyPatch, seconds: int
) -> None:
    world = await make_llm()
    for number in range(9):
        world.clock.advance(seconds=seconds)
        await chat(world, "anthropic/sea-small" if number % 3 == 0 else "openai/sea-large")
    # A window that is smaller than the record: pages without a match must not end the list.
    monkeypatch.setattr(queries, "MAX_WINDOW_CALLS", 2)
    monkeypatch.setattr(queries, "_window_sql", queries._window_sql.__wrapped__)
    assert len(await calls(world, limit=2)) == 9
    assert [call["provider"] for call in await calls(world, provider="anthropic", limit=2)] == ["anthropic"] * 3
    assert len(await calls(world, model="sea-large", outcome="ok", limit=1)) == 6
    assert await calls(world, key="nobody") == []
    assert await calls(world, outcome="failed") == []
    assert await calls(world, task_id="nothing") == []
    ids = [call["call_id"] for call in await calls(world, provider="openai", limit=1)]
    assert len(set(ids)) == len(ids) == 6


@requirement("llm.calls")
async def test_a_failed_call_is_listed_with_its_code(make_llm: Gate, upstream: Upstream) -> None:
    world = await make_llm()
    await chat(world)
    upstream.mood = moods.status(400)
    await chat(world)
    (failed,) = await calls(world, outcome="failed")
    assert failed["outcome"] not in ("", "ok")
    assert len(await calls(world, outcome="ok")) == 1


@requirement("llm.calls")
async def test_a_key_without_admin_rights_sees_its_own_calls(make_llm: Gate) -> None:
    world = await make_llm()
    await chat(world)
    (call,) = await calls(world)
    assert await calls(world, "WRITER") == []
    for path in ("/api/v1/llm/calls?key=admin", f"/api/v1/llm/calls/{call['call_id']}"):
        assert (await world.clients["WRITER"].get(path)).status_code == 404
    assert await calls(world, "OTHER", key="admin") == []
    assert (await world.clients["OTHER"].get(f"/api/v1/llm/calls/{call['call_id']}")).status_code == 404


@requirement("llm.calls")
@pytest.mark.parametrize("kept", [True, False])
async def test_a_call_has_its_content_only_if_a_setting_keeps_it(make_llm: Gate, kept: bool) -> None:
    world = await make_llm(SERVICE_LLM_LOG_CONTENT="1" if kept else "0")
    await chat(world)
    (call,) = await calls(world)
    detail = (await world.admin.get(f"/api/v1/llm/calls/{call['call_id']}")).json()
    assert detail["content_kept"] is kept
    assert (detail["upstream_status"], detail["attempts"]) == (200, 1)
    assert len(detail["request_sha256"]) == 64
    if kept:
        assert "messages" in detail["request"]
        assert ANSWER in detail["response"]
    else:
        assert (detail["request"], detail["response"]) == (None, None)


@requirement("llm.calls")
@pytest.mark.parametrize("query", ["limit=0", "outcome=maybe", "cursor=x", "provider=%00"])
async def test_a_wrong_filter_is_refused(world: World, query: str) -> None:
    assert (await world.admin.get(f"/api/v1/llm/calls?{query}")).status_code == 400
