"""A scripted provider, and a world whose gateway uses it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from tests.conftest import MakeWorld, World
from tests.domains.llm.upstream import Upstream, serving

KEY = "canary-up-4e1f-secret"
Gate = Callable[..., Awaitable[World]]


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    async with serving() as made:
        yield made


@pytest.fixture
def make_llm(make_world: MakeWorld, upstream: Upstream) -> Gate:
    """A world with the scripted server as OpenAI and Anthropic; keyword arguments are settings."""

    async def make(**environ: str) -> World:
        base = {
            "OPENAI_API_KEY": KEY,
            "OPENAI_BASE_URL": upstream.v1,
            "ANTHROPIC_API_KEY": KEY,
            "ANTHROPIC_BASE_URL": upstream.url,
            "SERVICE_LLM_RETRIES": "0",
        }
        made: World = await make_world(**{**base, **environ})
        return made

    return make


@pytest.fixture
async def world(make_llm: Gate) -> World:
    return await make_llm()


def asking(model: str = "openai/sea-large", **fields: Any) -> dict[str, Any]:
    """A body of chat."""
    return {"messages": [{"role": "user", "content": "Why is the sea salty?"}], "model": model, **fields}


async def chat(world: World, model: str = "openai/sea-large", **fields: Any) -> Any:
    return await world.admin.post("/api/v1/llm/chat", json=asking(model, **fields))
