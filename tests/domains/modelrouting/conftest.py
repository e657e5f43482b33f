"""Three scripted providers behind one gateway, and OpenAI's client in front of it."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import httpx
import openai
import pytest

from stentor.core.db import Sql
from tests.conftest import MakeWorld, World
from tests.domains.llm.upstream import Upstream, serving

Providers = dict[str, Upstream]
NAMES = ("east", "west", "north")
GROUPS = "auto=east/m|west/m,pair=east/m|west/m,all=east/m|west/m|north/m"
PRICES = "east/*=1/1,west/*=1/1,north/*=1/1"
Make = Callable[..., Awaitable[World]]
QUESTION = "Why is the sea salty?"
CODE = "Write a python function that sorts a list."


@pytest.fixture
async def providers() -> AsyncIterator[dict[str, Upstream]]:
    async with AsyncExitStack() as stack:
        yield {name: await stack.enter_async_context(serving()) for name in NAMES}


@pytest.fixture
def make_auto(make_world: MakeWorld, providers: dict[str, Upstream]) -> Make:
    """A world in which each provider is registered under its name; keyword arguments are settings."""

    async def make(**environ: str) -> World:
        allowed = ",".join(f"127.0.0.1:{one.port}" for one in providers.values())
        base = {"SERVICE_LLM_GROUPS": GROUPS, "SERVICE_LLM_PRICES": PRICES, "SERVICE_OUTBOUND_ALLOW": allowed}
        made: World = await make_world(**{**base, "SERVICE_LLM_RETRIES": "0", **environ})
        for name, upstream in providers.items():
            body = {"provider": name, "apiKey": f"canary-{name}-key", "baseUrl": upstream.v1}
            assert (await made.admin.post("/api/v1/llm/provider", json=body)).status_code == 200
        return made

    return make


@pytest.fixture
async def world(make_auto: Make) -> World:
    return await make_auto()


def openai_client(world: World, key: str = "ADMIN") -> openai.AsyncOpenAI:
    """OpenAI's client with the key of this name."""
    value = world.clients[key].headers["X-API-Key"]
    over: Any = httpx.AsyncClient(transport=httpx.ASGITransport(world.app), base_url="http://stentor.test")
    return openai.AsyncOpenAI(api_key=value, base_url="http://stentor.test/v1", http_client=over, max_retries=0)


@pytest.fixture
def client(world: World) -> openai.AsyncOpenAI:
    return openai_client(world)


async def ask(client: openai.AsyncOpenAI, text: str = QUESTION, model: str = "auto", **fields: Any) -> Any:
    return await client.chat.completions.create(model=model, messages=[{"role": "user", "content": text}], **fields)


async def grade(world: World, answer_id: str, value: Any, key: str = "ADMIN", **fields: Any) -> httpx.Response:
    path = f"/api/v1/llm/answers/{answer_id}/grade"
    return await world.clients[key].post(path, json={"grade": value, **fields})


async def events(world: World, kind: str) -> list[dict[str, Any]]:
    """Metadata of the events of a type, oldest first."""
    sql = Sql("select metadata from events where event_type = :kind order by event_id")
    return [json.loads(row[0]) for row in await world.kernel.infra.db.read(lambda tx: tx.rows(sql, kind=kind))]


async def outcomes(world: World) -> list[tuple[str, float]]:
    """Of every outcome that was learned from: the model and the reward."""
    return [(each["model"], each["reward"]) for each in await events(world, "learning_updated") if "reward" in each]


async def free(world: World, answer: Any) -> list[str]:
    """The candidates of an answer's decision that might have been called."""
    decision = (await world.admin.get(f"/api/v1/llm/answers/{answer.id}")).json()["decision"]
    return [each["name"] for each in decision["candidates"] if each["online"]]


async def status_of(work: Any) -> tuple[int, Any]:
    with pytest.raises(openai.APIStatusError) as caught:
        await work
    return caught.value.status_code, caught.value.body
