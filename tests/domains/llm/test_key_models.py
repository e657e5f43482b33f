"""Keys that may call some models only: every way to a model refuses the others, lists leave them out."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.conftest import World
from tests.domains.keys.test_keys import client_of, code, make
from tests.domains.llm.conftest import Gate, asking
from tests.domains.llm.upstream import Upstream, status
from tests.requirements import requirement

LARGE = "openai/sea-large"
HELLO = {"messages": [{"role": "user", "content": "Hello"}]}
WAYS: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("/api/v1/llm/chat", HELLO),
    "complete": ("/api/v1/llm/complete", {"prompt": "Hello"}),
    "embed": ("/api/v1/llm/embed", {"text": "Hello"}),
    "stream": ("/api/v1/llm/stream", HELLO),
    "openai chat": ("/v1/chat/completions", HELLO),
    "openai stream": ("/v1/chat/completions", HELLO | {"stream": True}),
    "openai completions": ("/v1/completions", {"prompt": "Hello"}),
    "openai embeddings": ("/v1/embeddings", {"input": "Hello"}),
    "openai responses": ("/v1/responses", {"input": "Hello"}),
    "anthropic": ("/v1/messages", HELLO | {"max_tokens": 5}),
}


async def limited(world: World, *models: str, role: str = "operator") -> httpx.AsyncClient:
    made = await make(world, role=role, models=list(models))
    assert made["models"] == list(models)
    return client_of(world, made["key"])


async def limited_again(world: World) -> httpx.AsyncClient:
    return client_of(world, (await world.admin.post("/api/v1/keys/dana/rotate")).json()["key"])


async def listed(client: httpx.AsyncClient) -> set[str]:
    names = {model["id"] for model in (await client.get("/v1/models")).json()["data"]}
    own = {model["id"] for model in (await client.get("/api/v1/llm/models")).json()["data"]}
    assert own == {name for name in names if "/" in name}
    return names


async def answered_by(client: httpx.AsyncClient, model: str) -> str:
    """Return the model that answered, or the code of the error."""
    answer = await client.post("/api/v1/llm/chat", json=asking(model))
    return str(answer.json()["data"]["model"]) if answer.is_success else code(answer)


@requirement("keys.models")
@pytest.mark.parametrize("way", WAYS)
async def test_every_way_to_a_model_refuses_one_that_the_key_may_not_use(
    world: World, upstream: Upstream, way: str
) -> None:
    path, body = WAYS[way]
    async with await limited(world, "openai/sea-s*") as client:
        refused = await client.post(path, json=body | {"model": LARGE})
        assert refused.status_code == 403, refused.text
        message = "The key 'dana' may not use the model 'openai/sea-large'. It may use: openai/sea-s*."
        assert message in refused.text
        assert upstream.asked == []
        allowed = await client.post(path, json=body | {"model": "openai/sea-small"})
        assert allowed.status_code == 200, allowed.text


@requirement("keys.models")
@pytest.mark.parametrize(
    ("pattern", "allowed"),
    [
        ("sea-large", {"openai/sea-large", "anthropic/sea-large"}),
        ("sea-*", {"openai/sea-large", "openai/sea-small", "anthropic/sea-large", "anthropic/sea-small"}),
        ("openai/*", {"openai/sea-large", "openai/sea-small"}),
        ("*/sea-small", {"openai/sea-small", "anthropic/sea-small"}),
        ("SEA-*", set()),
        ("sea-?arge", set()),
        ("sea-[ls]*", set()),
        ("openai/sea", set()),
    ],
)
async def test_a_pattern_allows_what_it_matches_and_nothing_else(world: World, pattern: str, allowed: set[str]) -> None:
    names = [f"{provider}/sea-{size}" for provider in ("openai", "anthropic") for size in ("large", "small")]
    async with await limited(world, pattern) as client:
        assert {name for name in await listed(client) if "/" in name} == allowed
        for name in names:
            assert (await answered_by(client, name) == "FORBIDDEN") == (name not in allowed)
        for model in ("", "sea-large"):
            expected = "FORBIDDEN" if LARGE not in allowed else LARGE
            if model:
                assert await answered_by(client, model) == expected


@requirement("keys.models")
async def test_a_star_matches_no_list_of_models(world: World, upstream: Upstream) -> None:
    """Which LiteLLM takes in the place of a model."""
    async with await limited(world, "openai/sea-s*", "*sea-s*l") as client:
        for name in ("openai/sea-small,sea-large", "openai/sea-large,sea-small"):
            assert await answered_by(client, name) == "FORBIDDEN"
    assert upstream.asked == []


@requirement("keys.models")
async def test_names_that_no_provider_lists_are_refused_too(world: World, upstream: Upstream) -> None:
    """The default provider may have models that it does not list."""
    async with await limited(world, "sea-small") as client:
        for name in ("secret-model", "openai/secret-model", "openai/sea-small/../sea-large", " sea-small", ""):
            assert await answered_by(client, name) in ("FORBIDDEN", "MODEL_NOT_FOUND", "INVALID_REQUEST"), name
    assert upstream.asked == []


@requirement("keys.models")
@pytest.mark.parametrize(
    "field",
    [
        {"models": ["sea-large"]},
        {"fallbacks": [{"model": "sea-large"}]},
        {"preset": "large"},
        {"tools": [{"type": "advisor_20260301", "name": "advisor", "model": "sea-large"}]},
        {"tools": [{"type": "web_search_20260209", "name": "web_search", "model": "sea-large"}]},
        {"tools": [{"type": "openrouter:advisor", "parameters": {"model": "sea-large"}}]},
        {"tools": [{"type": "openrouter:fusion"}]},
        {"x" * 100_000: True},
    ],
)
async def test_a_field_that_is_passed_on_chooses_no_other_model(
    world: World, upstream: Upstream, field: dict[str, Any]
) -> None:
    body = HELLO | {"model": "anthropic/sea-small", "max_tokens": 5}
    tool = {"name": "look", "input_schema": {"type": "object", "properties": {"model": {"type": "string"}}}}
    async with await limited(world, "sea-small") as client:
        refused = await client.post("/v1/messages", json=body | field)
        assert (refused.status_code, "is limited to some models" in refused.text) == (403, True), refused.text
        assert len(refused.text) < 400
        assert upstream.asked == []
        usual = {"tools": [tool], "system": "Be brief.", "top_k": 5, "thinking": {"type": "disabled"}}
        search = {"type": "web_search_20260209", "name": "web_search", "max_uses": 2}
        for more in (
            usual,
            {"tools": [tool, search]},
            {"diagnostics": {"previous_message_id": None}, "fallbacks": None},
        ):
            allowed = await client.post("/v1/messages", json=body | more)
            assert allowed.status_code == 200, allowed.text
    # `*` is every model, so such a key is not limited.
    await world.admin.patch("/api/v1/keys/dana", json={"models": ["sea-small", "*"]})
    async with await limited_again(world) as client:
        assert (await client.post("/v1/messages", json=body | field)).status_code == 200
    await world.admin.patch("/api/v1/keys/dana", json={"models": ["sea-small"]})
    # Other keys may send what they like.
    assert (await world.admin.post("/v1/messages", json=body | field)).status_code == 200
    # From such a key OpenAI's routes pass only known fields on.
    function = {"type": "function", "function": {"name": "look"}}
    chat = HELLO | {"model": "openai/sea-small", "models": ["sea-large"], "prompt_cache_retention": "24h"}
    chat |= {"tools": [{**function, "model": "sea-large"}]}
    async with await limited_again(world) as client:
        assert (await client.post("/v1/chat/completions", json=chat)).status_code == 200
        sent = upstream.asked[-1]["body"]
        assert ("models" in sent, sent["prompt_cache_retention"], sent["tools"]) == (False, "24h", [function])
    assert (await world.admin.post("/v1/chat/completions", json=chat)).status_code == 200
    assert upstream.asked[-1]["body"]["models"] == ["sea-large"]


@requirement("keys.models")
async def test_a_group_allows_its_models_and_the_name_of_one_tries_only_what_is_allowed(
    make_llm: Gate, upstream: Upstream
) -> None:
    world = await make_llm(
        SERVICE_LLM_GROUPS="fast=openai/sea-small|anthropic/sea-small,big=openai/sea-large|anthropic/sea-large"
    )
    async with await limited(world, "fast", "anthropic/sea-large") as client:
        assert await listed(client) == {
            "auto",
            "auto:fast",
            "auto:big",
            "fast",
            "big",
            "openai/sea-small",
            "anthropic/sea-small",
            "anthropic/sea-large",
        }
        assert {await answered_by(client, "fast") for _ in range(4)} == {"openai/sea-small", "anthropic/sea-small"}
        for name in ("big", "auto:big"):
            assert {await answered_by(client, name) for _ in range(4)} == {"anthropic/sea-large"}
        assert "openai/sea-large" not in {await answered_by(client, "auto") for _ in range(12)}
        refused = await client.get("/v1/models/openai/sea-large")
        assert (refused.status_code, "The key 'dana' cannot use the model" in refused.text) == (404, True)
    await world.admin.patch("/api/v1/keys/dana", json={"models": ["openai/sea-small"]})
    async with await limited_again(world) as client:
        assert await listed(client) == {"auto", "auto:fast", "fast", "openai/sea-small"}
        for name, what in (("big", "the group 'big'"), ("auto:big", "any model of 'auto:big'")):
            refused = await client.post("/api/v1/llm/chat", json=asking(name))
            assert (refused.status_code, code(refused)) == (403, "FORBIDDEN")
            assert f"may not use {what}. It may use: openai/sea-small." in refused.text


@requirement("keys.models")
@pytest.mark.parametrize("entry", ["acme/gpt-x", "acme/*", "*/gpt-x", "acme/gpt-x:latest", "openai/acme/*", "fast"])
async def test_the_name_of_a_model_may_have_a_slash(make_llm: Gate, upstream: Upstream, entry: str) -> None:
    """As at OpenRouter and of Hugging Face; `acme` is no provider, unlike `anthropic`."""
    upstream.models = ["acme/gpt-x", "anthropic/gpt-x", "sea-small"]
    world = await make_llm(SERVICE_LLM_GROUPS="fast=acme/gpt-x")
    async with await limited(world, entry) as client:
        for name in ("acme/gpt-x", "openai/acme/gpt-x", "fast"):
            assert await answered_by(client, name) == "openai/acme/gpt-x"
        assert await answered_by(client, "openai/sea-small") == "FORBIDDEN"
        assert await answered_by(client, "openai/acme/gpt-y") == (
            "FORBIDDEN" if "*" not in entry[-1] else "openai/acme/gpt-y"
        )
    await world.admin.patch("/api/v1/keys/dana", json={"models": ["anthropic/gpt-x"]})
    async with await limited_again(world) as client:
        assert await answered_by(client, "openai/anthropic/gpt-x") == "FORBIDDEN"
        assert await answered_by(client, "anthropic/gpt-x") == "anthropic/gpt-x"


@requirement("keys.models")
async def test_fallbacks_neither_answer_for_a_refused_model_nor_lead_to_one(make_llm: Gate, upstream: Upstream) -> None:
    world = await make_llm(SERVICE_LLM_FALLBACKS="*=anthropic/sea-large|openai/sea-small")
    async with await limited(world, "openai/sea-small") as client:
        assert await answered_by(client, LARGE) == "FORBIDDEN"
        upstream.mood = status(500)
        assert (await client.post("/api/v1/llm/chat", json=asking("openai/sea-small"))).status_code == 502
        assert {call["body"]["model"] for call in upstream.asked} == {"sea-small"}


@requirement("keys.models")
async def test_a_worker_is_limited_in_calls_for_its_task_and_its_agents_are_not(world: World) -> None:
    made = await make(world, role="agent", models=["openai/sea-small"])
    agent = await world.register(key_name="dana")
    llm = await world.register("writer", capabilities=["write"], runtime={"kind": "llm", "options": {"model": LARGE}})
    task_id = await world.submit(agent_preference=agent)
    async with client_of(world, made["key"]) as client:
        claimed = await client.post(f"/api/v1/agents/{agent}/claims", json={"wait_seconds": 0})
        assert [task["task_id"] for task in claimed.json()["tasks"]] == [task_id]
        headers = {"X-Task-Id": task_id}
        refused = await client.post("/v1/chat/completions", json=asking(LARGE), headers=headers)
        assert refused.status_code == 403
        allowed = await client.post("/v1/chat/completions", json=asking("openai/sea-small"), headers=headers)
        assert allowed.status_code == 200, allowed.text
        # Which model an agent has is the decision of the admin who registered it.
        own = await client.post("/api/v1/llm/chat", json=asking("agent:write"))
        assert own.status_code == 200, own.text
    assert llm


@requirement("keys.models", "keys.runlog")
async def test_the_limit_is_set_and_lifted_at_once_and_is_in_the_audit(world: World) -> None:
    async with await limited(world) as client:
        assert await answered_by(client, LARGE) == LARGE
        changed = await world.admin.patch("/api/v1/keys/dana", json={"models": [" sea-small "]})
        assert changed.json()["models"] == ["sea-small"]
        assert await answered_by(client, LARGE) == "FORBIDDEN"
        latest = (await world.admin.get("/api/v1/audit", params={"category": "changes"})).json()["events"][0]
        assert (latest["metadata"]["models"], latest["metadata"]["changed"]) == (["sea-small"], ["models"])
        await world.admin.patch("/api/v1/keys/dana", json={"models": []})
        assert await answered_by(client, LARGE) == LARGE


@requirement("keys.models")
@pytest.mark.parametrize("name", ["auto", "auto:fast", "agent:write", "", "  ", "a\x00b", "x" * 201])
async def test_a_name_that_would_allow_nothing_is_rejected(world: World, name: str) -> None:
    response = await world.admin.post("/api/v1/keys", json={"name": "x", "role": "operator", "models": [name]})
    assert response.status_code == 400, response.text
    assert "models" in response.text
