"""Metrics of the memory, messages, webhooks and providers in /metrics."""

from __future__ import annotations

from tests.conftest import MakeWorld, World
from tests.domains.llm.conftest import Gate, chat, make_llm, upstream
from tests.domains.llm.upstream import Upstream, status
from tests.domains.messaging.conftest import form, task
from tests.domains.monitoring.metrics_scrape import MetricsScrape, scrape
from tests.domains.webhooks.conftest import Hooks, hooks, receiver
from tests.patience import soon
from tests.requirements import requirement

__all__ = ["hooks", "make_llm", "receiver", "upstream"]  # fixtures


async def wait_for_value(world: World, name: str, value: float) -> None:
    """Wait until a metric has this value; some metrics change only after a commit."""

    async def has_value() -> bool:
        return (await scrape(world)).value(name) == value

    await soon(has_value, lambda: f"{name} does not become {value}")


@requirement("monitoring.neighbours")
async def test_memory_metrics_report_index_size_and_lag(make_world: MakeWorld) -> None:
    world = await make_world(SERVICE_MEMORY="1")
    before = await scrape(world)
    document = {"path": "Notes/sea.md", "content": "The sea is salty."}
    body = {"operation": "write", "vault": "default", "document": document, "metadata": {}}
    response = await world.admin.post("/api/v1/memory/write", json=body)
    assert response.status_code in (200, 201), response.text
    scraped = await scrape(world)
    assert scraped.value("memory_index_documents") == before.value("memory_index_documents") + 1
    assert scraped.value("memory_index_text_bytes") > before.value("memory_index_text_bytes")
    await wait_for_value(world, "memory_writes_open", 0)
    assert (await scrape(world)).value("memory_write_oldest_seconds") == 0
    assert scraped.value("collector_success", source="memory") == 1
    assert world.kernel.memory is not None
    scraped = await scrape(world)  # The write may have been indexed and counted meanwhile.
    world.kernel.memory.default.indexer.lag.add(7.5)
    after = await scrape(world)
    assert after.value("memory_sync_lag_seconds_sum") == scraped.value("memory_sync_lag_seconds_sum") + 7.5
    assert after.value("memory_sync_lag_seconds_count") == scraped.value("memory_sync_lag_seconds_count") + 1


@requirement("monitoring.neighbours")
async def test_message_metrics_report_depth_and_oldest_due_message(world: World) -> None:
    await world.register()
    await world.kernel.messaging.processor.stop()
    for _ in range(2):
        response = await world.admin.post("/api/v1/atp/send", json=form(task()))
        assert response.status_code == 202, response.text
    world.clock.advance(seconds=12)
    scraped = await scrape(world)
    assert (scraped.value("message_queue_depth"), scraped.value("message_oldest_seconds")) == (2, 12)
    assert scraped.value("messages_executing") == 0


@requirement("monitoring.neighbours")
async def test_disabled_webhook_is_counted_and_adds_no_backlog(hooks: Hooks) -> None:
    webhook = await hooks.subscribe("agent.registered")
    hooks.receiver.statuses = [500]
    await hooks.world.register()
    await hooks.wait_for_delivery(webhook["id"], status="waiting", attempts=1)
    assert (await scrape(hooks.world)).value("webhook_backlog") == 1
    await hooks.request_json("PATCH", f"/{webhook['id']}", json={"enabled": False})
    hooks.world.clock.advance(seconds=3)
    scraped = await scrape(hooks.world)
    assert (scraped.value("webhook_backlog"), scraped.value("webhook_oldest_seconds")) == (0, 0)
    assert (scraped.value("webhooks_disabled_total"), scraped.value("webhooks", state="disabled")) == (0, 1)
    failing_webhook = await hooks.subscribe("agent.suspended")
    hooks.receiver.statuses = [410]
    agent = await hooks.world.register("two")
    await hooks.world.admin.post(f"/api/v1/registry/agents/{agent}/suspend", json={"reason": "ill"})
    await hooks.wait_for_delivery(failing_webhook["id"], status="failed")
    await wait_for_value(hooks.world, "webhooks_disabled_total", 1)


def values_by_provider(scraped: MetricsScrape, name: str) -> dict[tuple[str, str], float]:
    """The values of `stentor_<name>`, keyed by provider and outcome."""
    return {
        (dict(labels)["provider"], dict(labels)["outcome"]): value
        for (sample_name, labels), value in scraped.samples.items()
        if sample_name == f"stentor_{name}"
    }


@requirement("monitoring.providers")
async def test_provider_metrics_are_grouped_by_provider_and_outcome(make_llm: Gate, upstream: Upstream) -> None:
    world = await make_llm(SERVICE_LLM_PRICES="openai/*=1000000/2000000")
    usage = (await chat(world)).json()["data"]["usage"]
    await chat(world, "anthropic/sea-large")
    upstream.mood = status(500)
    assert (await chat(world)).status_code == 502
    scraped = await scrape(world)
    calls = values_by_provider(scraped, "llm_call_duration_seconds_count")
    assert calls == {("openai", "ok"): 1, ("anthropic", "ok"): 1, ("openai", "PROVIDER_ERROR"): 1}
    tokens = {
        kind: scraped.value("llm_tokens_total", provider="openai", outcome="ok", kind=kind) for kind in TOKEN_KINDS
    }
    assert tokens == {"input": usage["input_tokens"], "output": usage["output_tokens"]}
    cost = scraped.value("llm_cost_dollars_total", provider="openai", outcome="ok")
    assert cost == tokens["input"] + 2 * tokens["output"]
    assert scraped.value("llm_cost_dollars_total", provider="openai", outcome="PROVIDER_ERROR") == 0


TOKEN_KINDS = ("input", "output")


@requirement("monitoring.providers")
async def test_metrics_report_exhausted_budgets_and_resting_providers(make_llm: Gate, upstream: Upstream) -> None:
    world = await make_llm(SERVICE_LLM_BUDGETS="key:writer:tokens/day=1")
    writer = world.clients["WRITER"]
    body = {"messages": [{"role": "user", "content": "x"}], "model": "openai/sea-large"}
    assert [(await writer.post("/api/v1/llm/chat", json=body)).status_code for _ in range(2)] == [200, 429]
    assert (await scrape(world)).values_by("llm_refusals_total", "reason") == {"budget": 1}
    upstream.mood = status(500)
    statuses = [(await chat(world)).status_code for _ in range(6)]
    assert statuses == [502] * 5 + [503]
    scraped = await scrape(world)
    assert scraped.values_by("llm_refusals_total", "reason") == {"budget": 1, "resting": 1}
    assert scraped.value("llm_providers_resting") == 1
    world.clock.advance(seconds=31)
    assert (await scrape(world)).value("llm_providers_resting") == 0


@requirement("monitoring.providers", "monitoring.bounded-labels")
async def test_providers_registered_by_tenants_share_one_label(make_llm: Gate, upstream: Upstream) -> None:
    world = await make_llm(SERVICE_OUTBOUND_ALLOW=f"127.0.0.1:{upstream.port}")
    for name in ("canaryone", "canarytwo"):
        body = {"provider": name, "apiKey": "some-key-123", "baseUrl": upstream.v1}
        response = await world.admin.post("/api/v1/llm/provider", json=body)
        assert response.status_code == 200, response.text
        assert (await chat(world, f"{name}/sea-large")).status_code == 200
    scraped = await scrape(world)
    assert values_by_provider(scraped, "llm_call_duration_seconds_count") == {("registered", "ok"): 2}
    assert "canary" not in scraped.text
