"""Health, readiness, information and figures; who may see them without a key."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from stentor import __version__
from stentor.core.db import Database, Sql, idempotency
from stentor.core.db.driver import Driver
from stentor.core.db.postgres.driver import PostgresDriver
from stentor.core.db.sqlite.driver import SqliteDriver
from stentor.core.errors import StoreUnavailable
from stentor.domains.monitoring import service
from stentor.domains.monitoring.api import PUBLIC_PATHS
from stentor.domains.monitoring.service import HealthComponent, HealthService, database_check, fixed_check
from tests.conftest import World
from tests.requirements import requirement
from tests.surfaces.gateway.operations import OPERATIONS

BASE = "/api/v1/health"


def stranger(world: World) -> httpx.AsyncClient:
    """Without a key."""
    return httpx.AsyncClient(transport=world.admin._transport, base_url="http://stentor.test")


@requirement("http.health-basic", "http.versioned-prefix")
async def test_anybody_may_ask_whether_the_service_lives(world: World) -> None:
    async with stranger(world) as anybody:
        for path in ("/health", BASE):
            answer = await anybody.get(path)
            assert answer.status_code == 200
            assert answer.json() == {"status": "ok", "service": "stentor", "version": __version__}


@requirement("http.health-detailed")
async def test_the_details_name_every_component(world: World) -> None:
    await world.register()
    answer = await world.admin.get(f"{BASE}/detailed")
    body = answer.json()
    assert (answer.status_code, body["status"]) == (200, "healthy")
    known = {"api", "mcp_server", "vault", "agents", "database", "provenance", "webhooks"}
    assert set(body["components"]) == known
    assert body["components"]["agents"]["detail"] == "loaded"
    assert body["components"]["database"]["latency_ms"] > 0


@requirement("http.health-detailed", "http.health-ready-and-live")
async def test_a_component_that_is_down_makes_it_unhealthy_and_not_ready_but_alive(world: World) -> None:
    world.kernel.health._checks = {
        **world.kernel.health._checks,
        "vault": fixed_check("unavailable", "the folder is gone"),
    }
    async with stranger(world) as anybody:
        detailed, ready, live, basic = [
            await anybody.get(path) for path in (f"{BASE}/detailed", f"{BASE}/ready", f"{BASE}/live", "/health")
        ]
    assert (detailed.status_code, detailed.json()["status"]) == (503, "unhealthy")
    assert detailed.json()["components"]["vault"]["detail"] is None
    known = (await world.admin.get(f"{BASE}/detailed")).json()
    assert known["components"]["vault"]["detail"] == "the folder is gone"
    assert (ready.status_code, ready.json()) == (503, {"ready": False})
    assert (live.status_code, live.json()) == (200, {"alive": True})
    assert basic.status_code == 200


@requirement("http.health-ready-and-live")
async def test_a_service_that_can_work_is_ready(world: World) -> None:
    async with stranger(world) as anybody:
        assert (await anybody.get(f"{BASE}/ready")).json() == {"ready": True}
        assert (await anybody.get(f"{BASE}/live")).json() == {"alive": True}


@requirement("http.health-detailed")
async def test_a_database_that_cannot_be_written_is_found(world: World) -> None:
    await asyncio.to_thread(world.kernel.infra.db.close)
    answer = await world.admin.get(f"{BASE}/detailed")
    component = answer.json()["components"]["database"]
    assert (answer.status_code, component["status"]) == (503, "unavailable")
    assert component["detail"] == "the check failed (StoreUnavailable)"


@requirement("http.health-detailed")
async def test_the_check_of_the_database_writes_and_leaves_nothing(db: Database) -> None:
    check = database_check(db)
    await check()
    if isinstance(db.driver, SqliteDriver):
        log = db.driver.path.with_name(f"{db.driver.path.name}-wal")
        size = log.stat().st_size
        await check()
        assert log.stat().st_size > size, "the check writes nothing, so it would succeed on a full disk"
    count = Sql("select count(*) from idempotency_keys")
    assert await db.read(lambda tx: tx.row(count)) == (0,)


@requirement("http.health-detailed")
@pytest.mark.only("postgresql", reason="SQLite writes each change to the end of its log")
async def test_a_disk_without_room_for_a_file_is_found_though_a_row_can_be_stored(driver: Driver) -> None:
    assert isinstance(driver, PostgresDriver)
    database = Database(PostgresDriver(driver.url, settings={"temp_file_limit": "0"}))
    await database.write(idempotency.probe_write)
    with pytest.raises(StoreUnavailable):
        await database_check(database)()
    await asyncio.to_thread(database.close)


async def test_a_check_that_breaks_or_hangs_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    async def breaks() -> HealthComponent:
        raise RuntimeError("password hunter2")

    async def hangs() -> HealthComponent:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(service, "CHECK_SECONDS", 0.05)
    found = await HealthService({"breaks": breaks, "hangs": hangs}).check_components()
    assert {c.status for c in found.values()} == {"unavailable"}
    assert "hunter2" not in str(found)


async def test_an_outage_of_a_component_is_logged_once_and_its_end_too(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    is_broken = True

    async def check() -> HealthComponent:
        if is_broken:
            raise OSError("the disk is full")
        return HealthComponent("available", None)

    monkeypatch.setattr(service, "CACHE_SECONDS", 0)
    health = HealthService({"vault": check})
    caplog.set_level("INFO", service.__name__)
    for _ in range(3):
        await health.check_components()
    is_broken = False
    for _ in range(3):
        await health.check_components()
    assert caplog.messages == [
        "health: component unavailable component=vault reason=OSError('the disk is full')",
        "health: component available again component=vault",
    ]


@requirement("http.info-route")
async def test_the_root_of_the_interface_says_what_it_is(world: World) -> None:
    async with stranger(world) as anybody:
        body = (await anybody.get("/api/v1")).json()
        assert set(body) == {"name", "version", "apiVersion", "endpoints", "documentation"}
        assert (body["name"], body["version"], body["apiVersion"]) == ("stentor", __version__, "v1")
        assert (await anybody.get(body["documentation"])).status_code == 200
    for path in body["endpoints"].values():
        assert (await world.admin.get(path)).status_code in (200, 404, 501)


@requirement("http.versioned-prefix")
async def test_every_route_but_health_and_figures_is_versioned_and_asks_for_no_header(world: World) -> None:
    outside = {o.path for o in OPERATIONS if not o.path.startswith("/api/v1")}
    assert outside == {"/health", "/metrics"}
    assert not [p for o in OPERATIONS for p in o.parameters if "version" in p["name"].lower()]


@requirement("http.two-response-styles")
async def test_trust_is_enveloped_and_the_rest_is_bare(world: World) -> None:
    agent = await world.register()
    for path in ("tasks", "registry/agents", f"registry/agents/{agent}", f"hebbian/weights?agent_id={agent}"):
        assert "success" not in (await world.admin.get(f"/api/v1/{path}")).json()
    for path in ("trust/levels", "trust/report"):
        body = (await world.admin.get(f"/api/v1/{path}")).json()
        assert (set(body), body["success"]) == ({"success", "data"}, True)


async def test_the_figures_are_what_prometheus_reads(world: World) -> None:
    agent = await world.register()
    await world.do(agent)
    await world.submit()
    answer = await world.admin.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    families = {family.name: family for family in text_string_to_metric_families(answer.text)}
    states = {sample.labels["status"]: sample.value for sample in families["stentor_tasks"].samples}
    assert (states["queued"], states["completed"]) == (1, 1)
    assert families["stentor_learned_outcomes"].samples[0].value == 1
    assert families["stentor_agents"].samples[0].value == 1
    assert families["stentor_queue_depth"].samples[0].value == 1


@requirement("http.head-method")
async def test_head_on_a_public_route_answers_like_get_without_a_body(world: World) -> None:
    for path in PUBLIC_PATHS:
        told, answer = await world.admin.get(path), await world.admin.head(path)
        assert answer.status_code == told.status_code
        assert answer.headers["content-type"] == told.headers["content-type"]
        assert answer.content == b""
    assert (await world.admin.head("/api/v1/tasks")).status_code == 405


async def test_the_information_route_names_every_group_of_routes(world: World) -> None:
    named = set((await world.admin.get("/api/v1")).json()["endpoints"].values())
    paths = (await world.admin.get("/openapi.json")).json()["paths"]
    groups = {"/".join(path.split("/")[:4]) for path in paths if path.startswith("/api/v1/")}
    missing = {group for group in groups if not any(path.startswith(group) for path in named)}
    assert missing <= {"/api/v1/agents", "/api/v1/grants"}
