"""What /metrics tells of the memory, the messages, the webhooks, and the providers."""

from __future__ import annotations

from tests.conftest import MakeWorld, World
from tests.domains.llm.conftest import Gate, chat, make_llm, upstream
from tests.domains.llm.upstream import Upstream, status
from tests.domains.messaging.conftest import form, task
from tests.domains.monitoring.scraped import Scraped, scrape
from tests.domains.webhooks.conftest import Hooks, hooks, receiver
from tests.patience import soon
from tests.requirements import requirement

__all__ = ["hooks", "make_llm", "receiver", "upstream"]  # fixtures


async def until(world: World, name: str, value: float) -> None:
    """Wait for what is done after a commit."""

    async def told() -> bool:
        return (await scrape(world)).of(name) == value

    await soon(told, lambda: f"{name} does not become {value}")


@requirement("monitoring.neighbours")
async def test_the_memory_tells_its_size_and_how_far_it_is_behind(make_world: MakeWorld) -> None:
    world = await make_world(SERVICE_MEMORY="1")
    before = await scrape(world)
    document = {"path": "Notes/sea.md", "content": "The sea is salty."}
    body = {"operation": "write", "vault": "default", "document": document, "metadata": {}}
    answer = await world.admin.post("/api/v1/memory/write", json=body)
    assert answer.status_code in (200, 201), answer.text
    found = await scrape(world)
    assert found.of("memory_index_documents") == before.of("memory_index_documents") + 1
    assert found.of("memory_index_text_bytes") > before.of("memory_index_text_bytes")
    await until(world, "memory_writes_open", 0)
    assert (await scrape(world)).of("memory_write_oldest_seconds") == 0
    assert found.of("collector_success", source="memory") == 1
    assert world.kernel.memory is not None
    found = await scrape(world)  # the write itself may have been told of meanwhile
    world.kernel.memory.default.indexer.lag.add(7.5)
    after = await scrape(world)
    assert after.of("memory_sync_lag_seconds_sum") == found.of("memory_sync_lag_seconds_sum") + 7.5
    assert after.of("memory_sync_lag_seconds_count") == found.of("memory_sync_lag_seconds_count") + 1


@requirement("monitoring.neighbours")
async def test_messages_that_wait_are_told_with_the_age_of_the_one_that_is_due_longest(world: World) -> None:
    await world.register()
    await world.kernel.messaging.processor.stop()
    for _ in range(2):
        sent = await world.admin.post("/api/v1/atp/send", json=form(task()))
        assert sent.status_code == 202, sent.text
    world.clock.advance(seconds=12)
    found = await scrape(world)
    assert (found.of("message_queue_depth"), found.of("message_oldest_seconds")) == (2, 12)
    assert found.of("messages_executing") == 0


@requirement("monitoring.neighbours")
async def test_a_webhook_that_the_service_switched_off_is_told_and_is_no_backlog(hooks: Hooks) -> None:
    made = await hooks.subscribe("agent.registered")
    hooks.receiver.statuses = [500]
    await hooks.world.register()
    await hooks.until(made["id"], status="waiting", attempts=1)
    assert (await scrape(hooks.world)).of("webhook_backlog") == 1
    await hooks.do("PATCH", f"/{made['id']}", json={"enabled": False})
    hooks.world.clock.advance(seconds=3)
    found = await scrape(hooks.world)
    assert (found.of("webhook_backlog"), found.of("webhook_oldest_seconds")) == (0, 0)
    assert (found.of("webhooks_disabled_total"), found.of("webhooks", state="disabled")) == (0, 1)
    other = await hooks.subscribe("agent.suspended")
    hooks.receiver.statuses = [410]
    agent = await hooks.world.register("two")
    await hooks.world.admin.post(f"/api/v1/registry/agents/{agent}/suspend", json={"reason": "ill"})
    await hooks.until(other["id"], status="failed")
    await until(hooks.world, "webhooks_disabled_total", 1)


def of_provider(found: Scraped, name: str) -> dict[tuple[str, str], float]:
    """By provider and outcome."""
    return {
        (dict(labels)["provider"], dict(labels)["outcome"]): value
        for (of, labels), value in found.samples.items()
        if of == f"stentor_{name}"
    }


@requirement("monitoring.providers")
async def test_calls_of_providers_are_told_by_provider_and_outcome(make_llm: Gate, upstream: Upstream) -> None:
    world = await make_llm(SERVICE_LLM_PRICES="openai/*=1000000/2000000")
    said = (await chat(world)).json()["data"]["usage"]
    await chat(world, "anthropic/sea-large")
    upstream.mood = status(500)
    assert (await chat(world)).status_code == 502
    found = await scrape(world)
    calls = of_provider(found, "llm_call_duration_seconds_count")
    assert calls == {("openai", "ok"): 1, ("anthropic", "ok"): 1, ("openai", "PROVIDER_ERROR"): 1}
    tokens = {kind: found.of("llm_tokens_total", provider="openai", outcome="ok", kind=kind) for kind in KINDS}
    assert tokens == {"input": said["input_tokens"], "output": said["output_tokens"]}
    cost = found.of("llm_cost_dollars_total", provider="openai", outcome="ok")
    assert cost == tokens["input"] + 2 * tokens["output"]
    assert found.of("llm_cost_dollars_total", provider="openai", outcome="PROVIDER_ERROR") == 0


KINDS = ("input", "output")


@requirement("monitoring.providers")
async def test_a_spent_budget_and_a_resting_provider_are_told(make_llm: Gate, upstream: Upstream) -> None:
    world = await make_llm(SERVICE_LLM_BUDGETS="key:writer:tokens/day=1")
    writer = world.clients["WRITER"]
    body = {"messages": [{"role": "user", "content": "x"}], "model": "openai/sea-large"}
    assert [(await writer.post("/api/v1/llm/chat", json=body)).status_code for _ in range(2)] == [200, 429]
    assert (await scrape(world)).by("llm_refusals_total", "reason") == {"budget": 1}
    upstream.mood = status(500)
    answers = [(await chat(world)).status_code for _ in range(6)]
    assert answers == [502] * 5 + [503]
    found = await scrape(world)
    assert found.by("llm_refusals_total", "reason") == {"budget": 1, "resting": 1}
    assert found.of("llm_providers_resting") == 1
    world.clock.advance(seconds=31)
    assert (await scrape(world)).of("llm_providers_resting") == 0


@requirement("monitoring.providers", "monitoring.bounded-labels")
async def test_providers_that_tenants_register_share_one_label(make_llm: Gate, upstream: Upstream) -> None:
    world = await make_llm(SERVICE_OUTBOUND_ALLOW=f"127.0.0.1:{upstream.port}")
    for name in ("canaryone", "canarytwo"):
        body = {"provider": name, "apiKey": "some-key-123", "baseUrl": upstream.v1}
        answer = await world.admin.post("/api/v1/llm/provider", json=body)
        assert answer.status_code == 200, answer.text
        assert (await chat(world, f"{name}/sea-large")).status_code == 200
    found = await scrape(world)
    assert of_provider(found, "llm_call_duration_seconds_count") == {("registered", "ok"): 2}
    assert "canary" not in found.text
