"""The /metrics endpoint: values, bounded labels, permissions, and behaviour when a source fails."""

from __future__ import annotations

import asyncio
import subprocess
import uuid
from collections.abc import Iterable

import httpx
import pytest
from prometheus_client.core import Metric

from stentor import __version__
from stentor.core.metrics import gauge_family
from stentor.domains.monitoring import metrics
from stentor.domains.monitoring import service as monitoring
from tests.conftest import ADMIN, MakeWorld, World
from tests.domains.monitoring.metrics_scrape import MetricsScrape, scrape
from tests.requirements import requirement
from tests.system import need

AGENTS = "/api/v1/registry/agents"
BAD = {"tool": "shell", "operation": "run"}


@requirement("monitoring.tasks")
async def test_each_ended_attempt_is_counted_once_by_outcome_class(make_world: MakeWorld) -> None:
    world = await make_world(SERVICE_ROUTING_TRUST_FLOOR="0.4")
    agent = await world.register()
    await world.do(agent)
    await world.do(agent, ok=False)
    await world.do(agent, ok=False, outcome_class="provider_failure")
    await world.admin.post(f"/api/v1/tasks/{await world.submit()}/cancel")
    await world.register("eve", capabilities=["judge"], trust_tier="human")
    pending_approval = await world.submit(required_capabilities=["judge"])
    await world.admin.post(f"/api/v1/tasks/{pending_approval}/reject", json={"reason": "too dear"})
    unroutable = {"type": "echo", "input": "x", "required_capabilities": ["fly"]}
    assert (await world.admin.post("/api/v1/tasks", json=unroutable)).status_code == 422
    below_trust_floor = await world.submit()
    await world.admin.put(f"/api/v1/trust/{agent}", json={"score": 0.1})
    await world.admin.post(f"/api/v1/agents/{agent}/claims", json={})
    assert (await world.task(below_trust_floor))["status"] == "failed"
    scraped = await scrape(world)
    assert scraped.values_by("task_outcomes_total", "outcome_class") == {
        "success": 1,
        "agent_failure": 1,
        "provider_failure": 1,
        "cancelled": 2,
        "routing_failed": 2,
    }
    assert scraped.values_by("task_duration_seconds_count", "outcome_class") == {
        "success": 1,
        "agent_failure": 1,
        "provider_failure": 1,
    }
    assert scraped.values_by("tasks", "status") == {"completed": 1, "failed": 4, "cancelled": 1, "aborted": 1}
    assert scraped.value("task_outcomes_total", outcome_class="timeout") == 0
    assert scraped.values_by("routing_denials_total", "reason") == {"ROUTING_CAPABILITY_UNAVAILABLE": 1}


@requirement("monitoring.tasks")
async def test_outcome_that_was_rolled_back_is_not_counted(world: World) -> None:
    agent = await world.register()
    await world.submit()
    claim = await world.claim(agent)
    world.runlog.broken = True
    body = {"epoch": claim["epoch"], "result": "hi"}
    assert (await world.admin.post(f"/api/v1/tasks/{claim['task_id']}/complete", json=body)).status_code == 503
    world.runlog.broken = False
    assert (await scrape(world)).values_by("task_outcomes_total", "outcome_class") == {}


@requirement("monitoring.tasks")
async def test_queue_metrics_report_depth_and_age_of_the_oldest_task(world: World) -> None:
    agent = await world.register()
    assert (await scrape(world)).value("queue_oldest_seconds") == 0
    await world.submit()
    world.clock.advance(seconds=40)
    await world.submit(metadata={"priority": "high"})
    other_task = {"type": "echo", "input": "x", "required_capabilities": ["echo"]}
    other_agent = {"name": "their", "capabilities": ["echo"]}
    assert (await world.clients["OTHER"].post(AGENTS, json=other_agent)).status_code == 201
    assert (await world.clients["OTHER"].post("/api/v1/tasks", json=other_task)).status_code == 202
    world.clock.advance(seconds=2)
    scraped = await scrape(world)
    assert scraped.value("queue_depth") == 3
    assert scraped.value("tasks", status="queued") == 3
    assert scraped.value("queue_oldest_seconds") == 42
    await world.claim(agent)
    assert (await scrape(world)).value("queue_oldest_seconds") == 42
    await world.claim(agent)
    scraped = await scrape(world)
    assert (scraped.value("queue_oldest_seconds"), scraped.value("queue_depth")) == (2, 1)


@requirement("monitoring.durations")
async def test_durations_are_counted_by_route_and_result(world: World) -> None:
    agent = await world.register()
    task = await world.do(agent)
    await world.admin.get(f"/api/v1/tasks/{task}")
    await world.admin.get(f"/api/v1/tasks/{uuid.uuid4()}")
    await world.admin.get("/api/v1/tasks/a%2Fb")
    unroutable = {"type": "echo", "input": "x", "required_capabilities": ["fly"]}
    await world.admin.post("/api/v1/tasks", json=unroutable)
    world.runlog.broken = True
    await world.admin.post("/api/v1/tasks", json=unroutable)
    scraped = await scrape(world)
    name = "http_request_duration_seconds_count"
    read_task = {"route": "/api/v1/tasks/{task_id}", "method": "GET"}
    assert scraped.value(name, **read_task, status_class="2xx") == 1
    assert scraped.value(name, **read_task, status_class="4xx") == 2
    submit_task = {"route": "/api/v1/tasks", "method": "POST"}
    assert [
        scraped.value(name, **submit_task, status_class=status_class) for status_class in ("2xx", "4xx", "5xx")
    ] == [1, 1, 1]
    assert scraped.values_by("submit_duration_seconds_count", "result") == {"accepted": 1, "denied": 1, "failed": 1}
    assert scraped.value("routing_duration_seconds_count") == 1
    units = scraped.value("database_write_duration_seconds_count")
    assert (
        units
        == scraped.value("database_commit_group_size_sum")
        >= scraped.value("database_commit_group_size_count")
        >= 4
    )


@requirement("monitoring.bounded-labels")
async def test_callers_cannot_add_series_or_label_values(world: World) -> None:
    async def send_everywhere(word: str) -> None:
        agent = await world.register(word, capabilities=[word])
        await world.submit(type=word, required_capabilities=[word], id=f"task-{word}")
        claim = await world.claim(agent)
        body = {"epoch": claim["epoch"], "error": {"code": word, "message": word}}
        await world.admin.post(f"/api/v1/tasks/{claim['task_id']}/fail", json=body)
        await world.admin.post(f"{AGENTS}/{agent}/authorize", json={"tool": word, "operation": word})
        await world.admin.post(
            "/api/v1/tasks", json={"type": word, "input": word, "required_capabilities": [f"no-{word}"]}
        )
        for path in (f"/{word}", f"/api/v1/{word}", f"/api/v1/tasks/{word}", f"/api/v1/agents/{word}/x"):
            await world.admin.get(path)
        await world.admin.request(word.upper(), "/api/v1/tasks")
        async with httpx.AsyncClient(
            transport=world.admin._transport, base_url="http://stentor.test"
        ) as anonymous_client:
            await anonymous_client.get(f"/api/v1/tasks/{word}", headers={"X-API-Key": word, "X-Request-Id": word})

    await send_everywhere("canaryone")
    await scrape(world)  # The scrape itself is a counted request.
    before = (await scrape(world)).series()
    for word in ("canarytwo", "canarythree"):
        await send_everywhere(word)
    scraped = await scrape(world)
    assert scraped.series() == before
    assert "canary" not in scraped.text.lower()


@requirement("monitoring.agents")
async def test_metrics_report_violations_and_quarantined_agents(world: World) -> None:
    agent = await world.register()
    await world.register("bob")
    for _ in range(3):
        await world.admin.post(f"{AGENTS}/{agent}/authorize", json=BAD)
    scraped = await scrape(world)
    assert scraped.values_by("agents", "status") == {"active": 1, "quarantined": 1}
    assert scraped.value("agents", status="suspended") == 0
    assert scraped.values_by("violations_total", "type") == {"unauthorized_tool": 3}
    clearance = {"override_tier": "human", "rationale": "seen"}
    await world.admin.post(f"{AGENTS}/{agent}/clear-violations", json=clearance)
    scraped = await scrape(world)
    assert scraped.values_by("agents", "status") == {"active": 2}
    assert scraped.values_by("violations_total", "type") == {"unauthorized_tool": 3}  # A counter never decreases.


@requirement("monitoring.key")
async def test_metrics_need_a_read_key_and_have_no_rate_limit(make_world: MakeWorld) -> None:
    world = await make_world(SERVICE_RATE_LIMIT_PER_MINUTE="1")
    for _ in range(3):
        assert (await world.clients["READER"].get("/metrics")).status_code == 200
    async with httpx.AsyncClient(transport=world.admin._transport, base_url="http://stentor.test") as anonymous_client:
        assert (await anonymous_client.get("/metrics")).status_code == 401
        bearer = {"Authorization": f"Bearer {ADMIN['X-API-Key']}"}
        assert (await anonymous_client.get("/metrics", headers=bearer)).status_code == 200


@pytest.mark.slow
@requirement("monitoring.conventions")
async def test_promtool_reports_no_problem_with_the_metrics(make_world: MakeWorld) -> None:
    promtool = need("promtool")
    world = await make_world(SERVICE_MEMORY="1")
    await world.do(await world.register())
    scraped = await scrape(world)
    completed = subprocess.run([promtool, "check", "metrics"], input=scraped.text, capture_output=True, text=True)
    assert (completed.returncode, completed.stderr) == (0, "")


@requirement("monitoring.conventions")
async def test_metric_families_are_unique_documented_and_prefixed(world: World) -> None:
    scraped = await scrape(world)
    names = [family.name for family in scraped.families]
    assert len(names) == len(set(names))
    assert all(family.documentation.endswith(".") for family in scraped.families)
    assert {name.split("_")[0] for name in names} == {"stentor", "process"}
    for family in scraped.families:
        labels = {label for sample in family.samples for label in sample.labels}
        assert labels <= ALLOWED_LABELS | {"le"}, family.name


ALLOWED_LABELS = frozenset(
    ("component", "database", "method", "operation", "outcome_class", "python", "reason", "result", "route", "source")
) | {"state", "status", "status_class", "type", "version"}
"""The labels of a service without calls to providers."""


@requirement("monitoring.fails-open")
async def test_database_outage_is_visible_in_the_metrics(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    # Else an alert's check of the moment before would still count.
    monkeypatch.setattr(monitoring, "CACHE_SECONDS", 0)
    await world.do(await world.register())
    await asyncio.to_thread(world.kernel.infra.db.close)
    scraped = await scrape(world)
    assert scraped.value("collector_success", source="database") == 0
    assert scraped.value("collector_success", source="process") == 1
    assert scraped.value("component_up", component="database") == 0
    assert scraped.value("task_outcomes_total", outcome_class="success") == 1
    assert "stentor_queue_oldest_seconds" not in scraped.text


@requirement("monitoring.fails-open")
async def test_failing_or_hanging_metric_source_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async def working_source() -> Iterable[Metric]:
        return [gauge_family("stentor_well", "Works.", 1)]

    async def failing_source() -> Iterable[Metric]:
        raise RuntimeError("password hunter2")

    async def hanging_source() -> Iterable[Metric]:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(metrics, "SOURCE_TIMEOUT_SECONDS", 0.05)
    text = (
        await metrics.build_scrape({"well": working_source, "breaks": failing_source, "hangs": hanging_source})()
    ).decode()
    scraped = MetricsScrape(text)
    assert scraped.value("well") == 1
    assert [scraped.value("collector_success", source=name) for name in ("well", "breaks", "hangs")] == [1, 0, 0]
    assert "hunter2" not in text


@requirement("monitoring.installation")
async def test_metrics_report_build_storage_and_components(world: World) -> None:
    scraped = await scrape(world)
    assert scraped.values_by("build_info", "version") == {__version__: 1}
    assert scraped.values_by("build_info", "database") == {world.kernel.infra.db.driver.name: 1}
    assert 0 < scraped.value("data_free_bytes") <= scraped.value("data_total_bytes")
    components_up = scraped.values_by("component_up", "component")
    assert {"api", "database", "webhooks"} <= set(components_up)
    assert "mcp_server" not in components_up  # It is disabled in this process.
    assert scraped.samples["process_resident_memory_bytes", frozenset()] > 1_000_000
