"""Keys that are made at runtime: limited, shown once, rotated and revoked at once, and no way up for an agent."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest

from stentor.auth.api_keys import digest_key
from stentor.bootstrap.view_refresh import ViewRefresher
from stentor.core.clock import SECOND
from stentor.core.db import Database, Sql
from stentor.testing import FixedClock
from tests.conftest import KEYS, MakeWorld, World, build_world
from tests.patience import soon
from tests.requirements import requirement

TASK = {"type": "echo", "input": "hello", "required_capabilities": ["echo"]}


def client_of(world: World, key: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(world.app), base_url="http://stentor.test", headers={"X-API-Key": key}
    )


async def make(world: World, name: str = "dana", role: str = "operator", **fields: Any) -> dict[str, Any]:
    response = await world.admin.post("/api/v1/keys", json={"name": name, "role": role, **fields})
    assert response.status_code == 201, response.text
    return dict(response.json())


async def status(world: World, key: str, path: str = "/api/v1/whoami") -> int:
    async with client_of(world, key) as client:
        return (await client.get(path)).status_code


def code(response: httpx.Response) -> str:
    return str(response.json()["error"]["code"])


@requirement("keys.create")
async def test_a_key_is_shown_once_and_works_at_once(world: World, db: Database) -> None:
    made = await make(world, description="Dana of support")
    assert made["key"].startswith("st_")
    assert made["hint"] == made["key"][:7]
    async with client_of(world, made["key"]) as client:
        who = (await client.get("/api/v1/whoami")).json()
        assert (who["name"], who["role"], who["tenant"]) == ("dana", "operator", "default")
        assert who["permissions"] == ["delete", "read", "write"]
        assert (await client.get("/api/v1/keys")).status_code == 403
    shown = await world.admin.get("/api/v1/keys")
    listed = {key["name"]: key for key in shown.json()["keys"]}
    assert listed["dana"] == {name: value for name, value in made.items() if name != "key"} | {
        "last_used_at": listed["dana"]["last_used_at"]
    }
    assert listed["dana"]["last_used_at"] is not None
    assert listed["admin"]["configured"] is True
    assert made["key"] not in shown.text
    stored = await db.read(lambda tx: tx.rows(Sql("select digest from api_keys where name = 'dana'")))
    assert stored == [(digest_key(made["key"]).hex(),)]


@requirement("keys.roles")
@pytest.mark.parametrize(
    ("role", "may"),
    [
        ("viewer", {"read"}),
        ("operator", {"read", "write"}),
        ("approver", {"read", "approve"}),
        ("admin", {"read", "write", "approve", "admin"}),
        ("agent", {"read", "write"}),
    ],
)
async def test_each_role_may_do_what_its_name_says(world: World, role: str, may: set[str]) -> None:
    await world.register()
    waiting = await world.register("asks", capabilities=["ask"], trust_tier="human")
    task_id = await world.submit(required_capabilities=["ask"], agent_preference=waiting)
    made = await make(world, "someone", role)
    async with client_of(world, made["key"]) as client:
        outcomes = {
            "read": await client.get("/api/v1/tasks"),
            "write": await client.post("/api/v1/tasks", json=TASK),
            "admin": await client.get("/api/v1/registry/agents"),
            "approve": await client.post(f"/api/v1/tasks/{task_id}/approve"),
        }
    assert {name for name, response in outcomes.items() if response.is_success} == may
    refused = {response.status_code for response in outcomes.values() if not response.is_success}
    assert refused <= {403}


@requirement("keys.revoke")
async def test_a_revoked_key_is_invalid_at_once_and_for_good(world: World) -> None:
    made = await make(world)
    assert await status(world, made["key"]) == 200
    revoked = (await world.admin.post("/api/v1/keys/dana/revoke")).json()
    assert (revoked["status"], revoked["revoked_by"]) == ("revoked", "admin")
    assert await status(world, made["key"]) == 401
    assert (await world.admin.post("/api/v1/keys/dana/revoke")).json() == revoked
    for path, method in (("/api/v1/keys/dana/rotate", "POST"), ("/api/v1/keys/dana", "PATCH")):
        response = await world.admin.request(method, path, json={"role": "admin"} if method == "PATCH" else None)
        assert (response.status_code, code(response)) == (409, "CONFLICT")
    again = await world.admin.post("/api/v1/keys", json={"name": "dana", "role": "viewer"})
    assert again.status_code == 409


@requirement("keys.revoke")
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [("POST", "/revoke", None), ("POST", "/rotate", None), ("PATCH", "", {"permissions": ["read"]})],
)
async def test_a_worker_that_waits_for_work_gets_none_once_its_key_has_ended(
    world: World, method: str, path: str, body: dict[str, Any] | None
) -> None:
    made = await make(world, role="agent")
    agent = await world.register(key_name="dana")
    async with client_of(world, made["key"]) as client:
        waiting = asyncio.create_task(client.post(f"/api/v1/agents/{agent}/claims", json={"wait_seconds": 60}))
        assert await soon(lambda: world.kernel.agents.presence.last_seen(agent) is not None)
        changed = await world.admin.request(method, f"/api/v1/keys/dana{path}", json=body)
        assert changed.status_code == 200, changed.text
        task_id = await world.submit()
        assert (await waiting).json() == {"tasks": []}
    assert (await world.task(task_id))["status"] == "queued"


@requirement("keys.rotate")
async def test_a_rotated_key_keeps_its_name_and_loses_its_old_secret(world: World) -> None:
    made = await make(world)
    rotated = (await world.admin.post("/api/v1/keys/dana/rotate")).json()
    assert rotated["key"] != made["key"]
    assert await status(world, made["key"]) == 401
    assert await status(world, rotated["key"]) == 200


@requirement("keys.expiry")
async def test_a_key_expires(world: World) -> None:
    made = await make(world, expires_at="2099-01-01T00:00:00Z")
    listed = (await world.admin.get("/api/v1/keys/dana")).json()
    assert (listed["status"], listed["expires_at"]) == ("active", "2099-01-01T00:00:00.000000Z")
    assert await status(world, made["key"]) == 200
    world.clock.advance(seconds=100 * 366 * 86_400)
    async with client_of(world, made["key"]) as client:
        refused = await client.get("/api/v1/whoami")
    assert (refused.status_code, "expired on 2099-01-01" in refused.json()["message"]) == (401, True)
    assert (await world.admin.get("/api/v1/keys/dana")).json()["status"] == "expired"
    past = await world.admin.patch("/api/v1/keys/dana", json={"expires_at": "2099-01-01T00:00:00Z"})
    assert (past.status_code, past.json()["error"]["message"]) == (400, "expires_at: must be in the future")
    await world.admin.patch("/api/v1/keys/dana", json={"expires_at": None})
    assert await status(world, made["key"]) == 200


@requirement("keys.change")
async def test_a_change_of_the_role_applies_to_the_next_request(world: World) -> None:
    made = await make(world, role="viewer")
    async with client_of(world, made["key"]) as client:
        assert (await client.get("/api/v1/registry/agents")).status_code == 403
        changed = (await world.admin.patch("/api/v1/keys/dana", json={"role": "admin"})).json()
        assert (changed["role"], changed["permissions"]) == ("admin", ["admin"])
        assert (await client.get("/api/v1/registry/agents")).status_code == 200
        await world.admin.patch("/api/v1/keys/dana", json={"permissions": ["read"]})
        assert (await client.get("/api/v1/registry/agents")).status_code == 403
    assert (await world.admin.patch("/api/v1/keys/dana", json={})).status_code == 400


@requirement("keys.agents")
async def test_an_agents_key_with_admin_rights_makes_no_keys(world: World) -> None:
    made = await make(world, "clever", "agent", permissions=["read", "write", "admin"])
    await make(world)
    async with client_of(world, made["key"]) as agent:
        attempts = [
            await agent.post("/api/v1/keys", json={"name": "boss", "role": "admin"}),
            await agent.patch("/api/v1/keys/clever", json={"role": "admin"}),
            await agent.post("/api/v1/keys/dana/rotate"),
            await agent.post("/api/v1/keys/dana/revoke"),
        ]
    assert {(response.status_code, code(response)) for response in attempts} == {(403, "FORBIDDEN")}
    assert {key["name"] for key in (await world.admin.get("/api/v1/keys")).json()["keys"] if not key["configured"]} == {
        "clever",
        "dana",
    }


@requirement("keys.agents")
async def test_a_key_of_role_agent_acts_for_its_own_agents_alone(world: World) -> None:
    made = await make(world, "ann-key", "agent")
    own, other = await world.register("ann", key_name="ann-key"), await world.register("ben", key_name="ben-key")
    async with client_of(world, made["key"]) as client:
        assert (await client.post(f"/api/v1/agents/{own}/claims", json={})).status_code == 200
        assert (await client.post(f"/api/v1/agents/{other}/claims", json={})).status_code == 403


@requirement("keys.names")
@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"name": "Dana"}, "name: must be 1 to 63 characters of a-z"),
        ({"name": "-dana"}, "name: must be 1 to 63 characters of a-z"),
        ({"name": "system"}, "name: 'system' is reserved"),
        ({"name": "inbox"}, "name: 'inbox' is reserved"),
        ({"name": "admin"}, "name: 'admin' is a key of the environment"),
        ({"name": "x", "role": "king"}, "role: must be 'viewer', 'operator', 'approver', 'admin' or 'agent'"),
        ({"name": "x", "permissions": []}, "permissions: "),
        ({"name": "x", "permissions": ["fly"]}, "permissions.0: "),
        ({"name": "x", "memory": "notes"}, "memory: 'notes'"),
        ({"name": "x", "memory": "vault:none:r"}, "memory: "),
        ({"name": "x", "budgets": ["20 dollars"]}, "budgets: '20 dollars' is invalid; expected usd/month=20"),
        ({"name": "x", "expires_at": "2001-01-01T00:00:00Z"}, "expires_at: must be in the future"),
        ({"name": "x", "expires_at": "9999-12-31T23:59:59-14:00"}, "expires_at: must be in the years 1 to 9999 in UTC"),
    ],
)
async def test_what_a_key_may_not_be_is_named(world: World, body: dict[str, Any], message: str) -> None:
    response = await world.admin.post("/api/v1/keys", json={"role": "viewer", **body})
    assert (response.status_code, code(response)) == (400, "INVALID_REQUEST")
    assert response.json()["error"]["message"].startswith(message)


async def test_a_key_of_the_environment_is_shown_and_cannot_be_changed(world: World) -> None:
    for method, path in (("GET", ""), ("PATCH", ""), ("POST", "/rotate"), ("POST", "/revoke")):
        body = {"role": "viewer"} if method == "PATCH" else None
        response = await world.admin.request(method, f"/api/v1/keys/reader{path}", json=body)
        assert response.status_code == 409
        assert "is a key of the environment" in response.json()["error"]["message"]


@requirement("keys.names")
async def test_a_key_of_the_environment_takes_nothing_from_an_earlier_one_of_its_name(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first: World = await make_world()
    old = await make(first, role="agent", memory="agents:rw")
    await make(first, "ben", role="agent", memory="agents:rw")
    await first.admin.post("/api/v1/keys/ben/revoke")
    for name in ("DANA", "BEN"):
        monkeypatch.setitem(KEYS, name, f"{name}-of-the-environment:admin:admin")
    second: World = await make_world()
    roles, keys = second.kernel.infra.roles, second.kernel.keys
    for name in ("dana", "ben"):
        holder = roles.find_active("default", name)
        assert holder is not None
        assert holder.role == "admin"
        assert roles.is_person("default", name)
        assert keys.memory_access(name) is None
        assert (await second.admin.post(f"/api/v1/keys/{name}/rotate")).status_code == 409
        assert f"name={name}" in caplog.text
    assert await status(second, old["key"]) == 401  # one name, one key


@requirement("keys.names")
async def test_the_name_of_a_key_that_left_the_environment_is_not_given_to_somebody_else(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_world()
    bob = KEYS["BOB"]
    monkeypatch.delitem(KEYS, "BOB")
    second: World = await make_world()
    refused = await second.admin.post("/api/v1/keys", json={"name": "bob", "role": "agent"})
    assert (refused.status_code, code(refused)) == (409, "CONFLICT")
    names = [key["name"] for key in (await second.admin.get("/api/v1/keys")).json()["keys"]]
    assert "bob" not in names
    assert (await second.admin.get("/api/v1/keys/bob")).status_code == 404
    monkeypatch.setitem(KEYS, "BOB", bob)
    third: World = await make_world()
    assert (await third.clients["BOB"].get("/api/v1/whoami")).status_code == 200


@requirement("keys.tenants")
async def test_a_key_belongs_to_the_tenant_of_who_made_it(world: World) -> None:
    other = world.clients["OTHER"]
    made = (await other.post("/api/v1/keys", json={"name": "dana", "role": "viewer"})).json()
    async with client_of(world, made["key"]) as client:
        assert (await client.get("/api/v1/whoami")).json()["tenant"] == made["tenant"] != "default"
    assert (await world.admin.get("/api/v1/keys/dana")).status_code == 404
    assert (await world.admin.post("/api/v1/keys/dana/revoke")).status_code == 404
    assert "dana" not in (await world.admin.get("/api/v1/keys")).text


@requirement("keys.runlog")
async def test_each_change_of_a_key_is_in_the_run_log_without_the_secret(world: World, db: Database) -> None:
    made = await make(world)
    rotated = (await world.admin.post("/api/v1/keys/dana/rotate")).json()
    await world.admin.post("/api/v1/keys/dana/revoke")
    rows = await db.read(
        lambda tx: tx.rows(Sql("select metadata from events where event_type = 'key_changed' order by event_id"))
    )
    text = "".join(row[0] for row in rows)
    assert [change for row in rows for change in ("created", "rotated", "revoked") if f'"{change}"' in row[0]] == [
        "created",
        "rotated",
        "revoked",
    ]
    assert made["key"] not in text
    assert rotated["key"] not in text


@requirement("keys.runlog")
async def test_the_audit_of_a_change_names_the_fields_and_what_memory_and_budgets_are_now(world: World) -> None:
    await make(world, budgets=["tokens/day=1"])
    changes = {"memory": "notes:r", "budgets": [], "role": "operator"}
    assert (await world.admin.patch("/api/v1/keys/dana", json=changes)).status_code == 200
    latest = (await world.admin.get("/api/v1/audit", params={"category": "changes"})).json()["events"][0]["metadata"]
    assert (latest["memory"], latest["budgets"], latest["changed"]) == ("notes:r", [], ["budgets", "memory"])


@requirement("keys.budgets")
async def test_the_budget_of_a_key_is_set_and_lifted_without_a_restart(make_world: MakeWorld) -> None:
    world: World = await make_world(SERVICE_LLM_LOCAL_BASELINE="1")
    made = await make(world, budgets=["tokens/day=1"])
    chat = {"model": "local/extractive", "messages": [{"role": "user", "content": "One. Two. Three."}]}
    async with client_of(world, made["key"]) as client:
        first = await client.post("/api/v1/llm/chat", json=chat)
        assert first.status_code == 200, first.text
        refused = await client.post("/api/v1/llm/chat", json=chat)
        assert refused.status_code == 429
        assert re.search(r"daily token budget of key 'dana' is used up. It resets in [\d.]+ (h|min|s)\b", refused.text)
        await world.admin.patch("/api/v1/keys/dana", json={"budgets": []})
        assert (await client.post("/api/v1/llm/chat", json=chat)).status_code == 200


@requirement("keys.restart")
async def test_keys_are_there_after_a_restart_and_in_other_processes(make_world: MakeWorld) -> None:
    first: World = await make_world()
    made = await make(first)
    second: World = await make_world()
    assert await status(second, made["key"]) == 200
    await first.admin.post("/api/v1/keys/dana/revoke")
    await second.kernel.views.refresh(0)
    assert await status(second, made["key"]) == 401


@pytest.mark.only("postgresql", reason="several processes")
@requirement("scale.known-everywhere")
async def test_a_key_is_valid_at_once_in_every_process(
    world: World, make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The second process hears of no change.
    monkeypatch.setattr(ViewRefresher, "keep_fresh", lambda _: asyncio.Event().wait())
    second: World = await make_world()
    made = await make(world)
    assert await status(second, made["key"]) == 200
    assert await status(second, "made up") == 401


@pytest.mark.only("postgresql", reason="several processes")
@requirement("keys.restart")
async def test_another_process_learns_of_a_change_whatever_its_clock_or_the_databases_says(
    make_world: MakeWorld, db: Database, clock: FixedClock, tmp_path: Path
) -> None:
    first: World = await make_world()
    ahead = FixedClock(clock.now() + 10 * SECOND)
    second = await build_world(db, ahead, tmp_path / "second", SERVICE_SNAPSHOT_REFRESH_SECONDS="0.1")
    try:
        made = await make(first)
        await becomes(second, made["key"], 200)
        clock.advance(seconds=-3600)  # the database's
        revoked = await first.admin.post("/api/v1/keys/dana/revoke")
        assert revoked.status_code == 200, revoked.text
        await becomes(second, made["key"], 401)
    finally:
        await second.kernel.stop()


BLOCKED = Sql("select count(*) from pg_locks where not granted and locktype = 'transactionid'")


@pytest.mark.only("postgresql", reason="several processes")
@requirement("keys.restart")
async def test_another_process_learns_of_a_change_whose_commit_took_long(
    world: World, db: Database, clock: FixedClock, postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refreshes, refresh = asyncio.Queue[None](), ViewRefresher.refresh

    async def counted(self: ViewRefresher, since: int) -> int:
        read_at = await refresh(self, since)
        refreshes.put_nowait(None)
        return read_at

    made = await make(world)
    second = await build_world(db, clock, tmp_path / "second", SERVICE_SNAPSHOT_REFRESH_SECONDS="0.1")
    monkeypatch.setattr(ViewRefresher, "refresh", counted)
    holder = psycopg.connect(postgres_url)
    try:
        assert await status(second, made["key"]) == 200
        holder.execute("select 1 from api_keys where name = 'dana' for update")
        revoking = asyncio.create_task(world.admin.post("/api/v1/keys/dana/revoke"))
        await soon(lambda: db.read(lambda tx: tx.rows(BLOCKED) != [(0,)]))
        clock.advance(seconds=60)
        while not refreshes.empty():
            refreshes.get_nowait()
        # One may be under way that has read the old time.
        for _ in range(3):
            await refreshes.get()
        holder.rollback()
        assert (await revoking).status_code == 200
        await becomes(second, made["key"], 401)
    finally:
        holder.close()
        await second.kernel.stop()


async def becomes(world: World, key: str, expected: int) -> None:
    async def found() -> bool:
        return await status(world, key) == expected

    await soon(found)


async def test_an_older_row_never_makes_a_revoked_key_valid_again(world: World, db: Database) -> None:
    made = await make(world)
    late = await db.read(world.kernel.keys.poll_query(0))
    await world.admin.post("/api/v1/keys/dana/revoke")
    late()
    assert await status(world, made["key"]) == 401


async def test_the_time_of_the_last_use_is_stored(make_world: MakeWorld) -> None:
    first: World = await make_world()
    made = await make(first)
    assert await status(first, made["key"]) == 200
    await first.kernel.keys.store_use()
    second: World = await make_world()
    assert (await second.admin.get("/api/v1/keys/dana")).json()["last_used_at"] is not None


async def test_at_most_a_thousand_keys_are_active(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stentor.domains.keys.model.MAX_ACTIVE_KEYS", 2)
    await make(world, "one")
    await make(world, "two")
    full = await world.admin.post("/api/v1/keys", json={"name": "three", "role": "viewer"})
    assert (full.status_code, code(full)) == (409, "CONFLICT")
    await world.admin.post("/api/v1/keys/one/revoke")
    await make(world, "three")
