"""What /metrics tells, that its labels stay few, and that it outlives what it measures."""

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
from tests.conftest import ADMIN, MakeWorld, World
from tests.domains.monitoring.scraped import Scraped, scrape
from tests.requirements import requirement
from tests.system import need

AGENTS = "/api/v1/registry/agents"
BAD = {"tool": "shell", "operation": "run"}


@requirement("monitoring.tasks")
async def test_every_end_of_an_attempt_is_counted_once_by_its_outcome_class(make_world: MakeWorld) -> None:
    world = await make_world(SERVICE_ROUTING_TRUST_FLOOR="0.4")
    agent = await world.register()
    await world.do(agent)
    await world.do(agent, ok=False)
    await world.do(agent, ok=False, outcome_class="provider_failure")
    await world.admin.post(f"/api/v1/tasks/{await world.submit()}/cancel")
    await world.register("eve", capabilities=["judge"], trust_tier="human")
    asked = await world.submit(required_capabilities=["judge"])
    await world.admin.post(f"/api/v1/tasks/{asked}/reject", json={"reason": "too dear"})
    nobody = {"type": "echo", "input": "x", "required_capabilities": ["fly"]}
    assert (await world.admin.post("/api/v1/tasks", json=nobody)).status_code == 422
    denied = await world.submit()
    await world.admin.put(f"/api/v1/trust/{agent}", json={"score": 0.1})
    await world.admin.post(f"/api/v1/agents/{agent}/claims", json={})
    assert (await world.task(denied))["status"] == "failed"
    found = await scrape(world)
    assert found.by("task_outcomes_total", "outcome_class") == {
        "success": 1,
        "agent_failure": 1,
        "provider_failure": 1,
        "cancelled": 2,
        "routing_failed": 2,
    }
    assert found.by("task_duration_seconds_count", "outcome_class") == {
        "success": 1,
        "agent_failure": 1,
        "provider_failure": 1,
    }
    assert found.by("tasks", "status") == {"completed": 1, "failed": 4, "cancelled": 1, "aborted": 1}
    assert found.of("task_outcomes_total", outcome_class="timeout") == 0
    assert found.by("routing_denials_total", "reason") == {"ROUTING_CAPABILITY_UNAVAILABLE": 1}


@requirement("monitoring.tasks")
async def test_a_failure_that_was_rolled_back_is_not_counted(world: World) -> None:
    agent = await world.register()
    await world.submit()
    claim = await world.claim(agent)
    world.runlog.broken = True
    body = {"epoch": claim["epoch"], "result": "hi"}
    assert (await world.admin.post(f"/api/v1/tasks/{claim['task_id']}/complete", json=body)).status_code == 503
    world.runlog.broken = False
    assert (await scrape(world)).by("task_outcomes_total", "outcome_class") == {}


@requirement("monitoring.tasks")
async def test_the_queue_tells_its_depth_and_the_age_of_its_oldest(world: World) -> None:
    agent = await world.register()
    assert (await scrape(world)).of("queue_oldest_seconds") == 0
    await world.submit()
    world.clock.advance(seconds=40)
    await world.submit(metadata={"priority": "high"})
    other = {"type": "echo", "input": "x", "required_capabilities": ["echo"]}
    made = {"name": "their", "capabilities": ["echo"]}
    assert (await world.clients["OTHER"].post(AGENTS, json=made)).status_code == 201
    assert (await world.clients["OTHER"].post("/api/v1/tasks", json=other)).status_code == 202
    world.clock.advance(seconds=2)
    found = await scrape(world)
    assert found.of("queue_depth") == 3
    assert found.of("tasks", status="queued") == 3
    assert found.of("queue_oldest_seconds") == 42
    await world.claim(agent)
    assert (await scrape(world)).of("queue_oldest_seconds") == 42
    await world.claim(agent)
    found = await scrape(world)
    assert (found.of("queue_oldest_seconds"), found.of("queue_depth")) == (2, 1)


@requirement("monitoring.durations")
async def test_durations_are_counted_by_route_and_result(world: World) -> None:
    agent = await world.register()
    task = await world.do(agent)
    await world.admin.get(f"/api/v1/tasks/{task}")
    await world.admin.get(f"/api/v1/tasks/{uuid.uuid4()}")
    await world.admin.get("/api/v1/tasks/a%2Fb")
    nobody = {"type": "echo", "input": "x", "required_capabilities": ["fly"]}
    await world.admin.post("/api/v1/tasks", json=nobody)
    world.runlog.broken = True
    await world.admin.post("/api/v1/tasks", json=nobody)
    found = await scrape(world)
    name = "http_request_duration_seconds_count"
    one = {"route": "/api/v1/tasks/{task_id}", "method": "GET"}
    assert found.of(name, **one, status_class="2xx") == 1
    assert found.of(name, **one, status_class="4xx") == 2
    sent = {"route": "/api/v1/tasks", "method": "POST"}
    assert [found.of(name, **sent, status_class=of) for of in ("2xx", "4xx", "5xx")] == [1, 1, 1]
    assert found.by("submit_duration_seconds_count", "result") == {"accepted": 1, "denied": 1, "failed": 1}
    assert found.of("routing_duration_seconds_count") == 1
    units = found.of("database_write_duration_seconds_count")
    assert units == found.of("database_commit_group_size_sum") >= found.of("database_commit_group_size_count") >= 4


@requirement("monitoring.bounded-labels")
async def test_no_caller_can_make_a_new_series_or_put_a_word_into_one(world: World) -> None:
    async def everything(word: str) -> None:
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
        async with httpx.AsyncClient(transport=world.admin._transport, base_url="http://stentor.test") as anybody:
            await anybody.get(f"/api/v1/tasks/{word}", headers={"X-API-Key": word, "X-Request-Id": word})

    await everything("canaryone")
    await scrape(world)  # the scrape itself is a request too
    before = (await scrape(world)).series()
    for word in ("canarytwo", "canarythree"):
        await everything(word)
    found = await scrape(world)
    assert found.series() == before
    assert "canary" not in found.text.lower()


@requirement("monitoring.agents")
async def test_violations_and_quarantined_agents_are_told(world: World) -> None:
    agent = await world.register()
    await world.register("bob")
    for _ in range(3):
        await world.admin.post(f"{AGENTS}/{agent}/authorize", json=BAD)
    found = await scrape(world)
    assert found.by("agents", "status") == {"active": 1, "quarantined": 1}
    assert found.of("agents", status="suspended") == 0
    assert found.by("violations_total", "type") == {"unauthorized_tool": 3}
    cleared = {"override_tier": "human", "rationale": "seen"}
    await world.admin.post(f"{AGENTS}/{agent}/clear-violations", json=cleared)
    found = await scrape(world)
    assert found.by("agents", "status") == {"active": 2}
    assert found.by("violations_total", "type") == {"unauthorized_tool": 3}  # a counter never falls


@requirement("monitoring.key")
async def test_figures_need_a_key_that_may_read_and_no_more(make_world: MakeWorld) -> None:
    world = await make_world(SERVICE_RATE_LIMIT_PER_MINUTE="1")
    for _ in range(3):
        assert (await world.clients["READER"].get("/metrics")).status_code == 200
    async with httpx.AsyncClient(transport=world.admin._transport, base_url="http://stentor.test") as anybody:
        assert (await anybody.get("/metrics")).status_code == 401
        bearer = {"Authorization": f"Bearer {ADMIN['X-API-Key']}"}
        assert (await anybody.get("/metrics", headers=bearer)).status_code == 200


@pytest.mark.slow
@requirement("monitoring.conventions")
async def test_promtool_has_nothing_to_say_of_the_figures(make_world: MakeWorld) -> None:
    promtool = need("promtool")
    world = await make_world(SERVICE_MEMORY="1")
    await world.do(await world.register())
    found = await scrape(world)
    done = subprocess.run([promtool, "check", "metrics"], input=found.text, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@requirement("monitoring.conventions")
async def test_each_family_occurs_once_with_a_help_text_and_a_name_of_ours_or_the_processes(world: World) -> None:
    found = await scrape(world)
    names = [family.name for family in found.families]
    assert len(names) == len(set(names))
    assert all(family.documentation.endswith(".") for family in found.families)
    assert {name.split("_")[0] for name in names} == {"stentor", "process"}
    for family in found.families:
        ours = {label for sample in family.samples for label in sample.labels}
        assert ours <= LABELS | {"le"}, family.name


LABELS = frozenset(
    ("component", "database", "method", "operation", "outcome_class", "python", "reason", "result", "route", "source")
) | {"state", "status", "status_class", "type", "version"}
"""Of a world without calls of providers."""


@requirement("monitoring.fails-open")
async def test_an_outage_of_the_database_is_seen_in_the_figures(world: World) -> None:
    await world.do(await world.register())
    await asyncio.to_thread(world.kernel.infra.db.close)
    found = await scrape(world)
    assert found.of("collector_success", source="database") == 0
    assert found.of("collector_success", source="process") == 1
    assert found.of("component_up", component="database") == 0
    assert found.of("task_outcomes_total", outcome_class="success") == 1
    assert "stentor_queue_oldest_seconds" not in found.text


@requirement("monitoring.fails-open")
async def test_a_source_that_breaks_or_hangs_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    async def well() -> Iterable[Metric]:
        return [gauge_family("stentor_well", "Works.", 1)]

    async def breaks() -> Iterable[Metric]:
        raise RuntimeError("password hunter2")

    async def hangs() -> Iterable[Metric]:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(metrics, "SOURCE_TIMEOUT_SECONDS", 0.05)
    text = (await metrics.build_scrape({"well": well, "breaks": breaks, "hangs": hangs})()).decode()
    found = Scraped(text)
    assert found.of("well") == 1
    assert [found.of("collector_success", source=name) for name in ("well", "breaks", "hangs")] == [1, 0, 0]
    assert "hunter2" not in text


@requirement("monitoring.installation")
async def test_the_installation_is_told(world: World) -> None:
    found = await scrape(world)
    assert found.by("build_info", "version") == {__version__: 1}
    assert found.by("build_info", "database") == {world.kernel.infra.db.driver.name: 1}
    assert 0 < found.of("data_free_bytes") <= found.of("data_total_bytes")
    up = found.by("component_up", "component")
    assert {"api", "database", "webhooks"} <= set(up)
    assert "mcp_server" not in up  # disabled in this process
    assert found.samples["process_resident_memory_bytes", frozenset()] > 1_000_000
