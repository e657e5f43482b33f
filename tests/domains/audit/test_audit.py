"""The audit: sign-ins, changes and refusals, on both databases."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from stentor.core.db import Sql
from stentor.domains.audit import store
from tests.conftest import World
from tests.databases import Databases
from tests.requirements import requirement


async def audit(world: World, key: str = "ADMIN", **params: Any) -> list[dict[str, Any]]:
    answer = await world.clients[key].get("/api/v1/audit", params=params)
    assert answer.status_code == 200, answer.text
    return list(answer.json()["events"])


@requirement("audit.list", "audit.sign-ins")
async def test_sign_ins_changes_and_refusals_are_listed_and_nothing_of_other_tenants(world: World) -> None:
    agent = await world.register()
    await world.do(agent)
    call = {"tool": "shell", "operation": "run"}
    await world.admin.post(f"/api/v1/registry/agents/{agent}/authorize", json=call)
    made = {"name": "ci", "role": "viewer"}
    assert (await world.admin.post("/api/v1/keys", json=made)).status_code == 201
    body = {"surface": "dashboard", "address": "192.0.2.7"}
    assert (await world.clients["READER"].post("/api/v1/audit/sign-ins", json=body)).status_code == 201
    types = [event["event_type"] for event in await audit(world)]
    assert types[0] == "signed_in"
    assert sorted(types) == ["agent_registered", "key_changed", "signed_in", "tool_denied"]
    (sign_in,) = await audit(world, category="sign-ins")
    assert (sign_in["by"], sign_in["metadata"]["address"]) == ("reader", "192.0.2.7")
    assert [event["event_type"] for event in await audit(world, category="refusals")] == ["tool_denied"]
    assert [event["by"] for event in await audit(world, category="refusals")] == ["admin"]
    changes = await audit(world, category="changes")
    assert [event["event_type"] for event in changes] == ["key_changed", "agent_registered"]
    assert changes[0]["by"] == "admin"
    assert await audit(world, "OTHER") == []


@requirement("audit.list")
async def test_rejected_tasks_and_changes_of_trust_and_connections_are_listed_with_who_made_them(world: World) -> None:
    agent = await world.register(trust_tier="human")
    other = await world.register("bob", capabilities=["other"])
    await world.admin.post(f"/api/v1/tasks/{await world.submit()}/reject", json={"reason": "too dear"})
    await world.clients["WRITER"].post(f"/api/v1/trust/{agent}/success", json={"amount": 1.0})
    connection = {"agent1": agent, "agent2": other, "delta": 0.1}
    await world.admin.put("/api/v1/trust/hebbian/weights", json=connection)
    db, trust = world.kernel.infra.db, world.kernel.agents.trust
    # As an outcome does, which changes the level and is nobody's decision.
    await db.write(lambda tx: trust.reinforce_in_tx(tx, "default", other, "success", 1.0))
    listed = [(event["event_type"], event["by"]) for event in await audit(world, category="changes")][:-2]
    assert listed == [("connection_changed", "admin"), ("trust_changed", "writer"), ("approval_refused", "admin")]


@requirement("audit.list")
async def test_the_audit_has_pages(world: World) -> None:
    for n in range(5):
        await world.register(f"a{n}", capabilities=[f"c{n}"])
    seen: list[str] = []
    cursor: dict[str, str] = {}
    while True:
        page = (await world.admin.get("/api/v1/audit", params={"limit": 2, **cursor})).json()
        seen += [event["event_id"] for event in page["events"]]
        if page["next_cursor"] is None:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert len(seen) == 5
    assert seen == sorted(set(seen), reverse=True)


@requirement("audit.filters")
async def test_a_search_finds_words_of_the_message_and_of_the_metadata_and_no_patterns(world: World) -> None:
    for name in ("ci", "ci_2"):
        await world.admin.post("/api/v1/keys", json={"name": name, "role": "viewer"})
    await world.register("ann")

    async def found(text: str) -> list[str]:
        return [event["message"] for event in await audit(world, text=text)]

    assert await found("CI_2") == ["Key ci_2 (viewer) created."]
    assert len(await found("created")) == 2
    assert len(await found("VIEWER")) == 2
    assert len(await found('"by":"admin"')) == 3
    assert await found("c%") == await found("!") == await found("nothing of the kind") == []
    assert await audit(world, "OTHER", text="ci") == []
    assert (await world.admin.get("/api/v1/audit", params={"text": "a\0b"})).status_code == 400


@requirement("audit.filters")
async def test_a_search_finds_words_in_any_case_also_beyond_ascii(world: World) -> None:
    for name in ("Änderung-Größe", "anderung", "ΟΔΟΣ"):
        await world.register(name)

    async def found(text: str) -> int:
        return len(await audit(world, text=text))

    for text in ("Änderung", "änderung", "ÄNDERUNG-grö", "οδος", "δ"):
        assert await found(text) == 1, text
    assert await found("ünderung") == await found("%ä_derung") == 0
    for n in range(3):
        await world.register(f"Straße {n}", capabilities=[f"c{n}"])
    page = (await world.admin.get("/api/v1/audit", params={"text": "straße", "limit": "2"})).json()
    assert [event["message"].split()[-2] for event in page["events"]] == ["2", "1"]
    rest = (await world.admin.get("/api/v1/audit", params={"text": "straße", "cursor": page["next_cursor"]})).json()
    assert (len(page["events"]), len(rest["events"])) == (2, 1)


@requirement("audit.filters")
async def test_a_search_goes_on_where_a_page_of_it_ended_without_a_hit(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    await world.register("needle")
    for n in range(5):
        await world.register(f"hay{n}", capabilities=[f"c{n}"])
    text = store._SEARCH[""].text.replace(f"limit {store.MAX_SEARCHED_EVENTS}", "limit 2")
    monkeypatch.setitem(store._SEARCH, "", Sql(text))
    monkeypatch.setattr(store, "_LAST_SEARCHED", Sql(store._LAST_SEARCHED.text.replace(" 5000", " 2")))
    monkeypatch.setattr(store, "MAX_SEARCHED_EVENTS", 2)
    pages = [(await world.admin.get("/api/v1/audit", params={"text": "needle"})).json()]
    while cursor := pages[-1]["next_cursor"]:
        pages.append((await world.admin.get("/api/v1/audit", params={"text": "needle", "cursor": cursor})).json())
    assert [len(page["events"]) for page in pages] == [0, 0, 1, 0]


@requirement("audit.filters")
async def test_a_list_has_the_events_between_two_times(world: World) -> None:
    await world.register("ann")
    (event,) = await audit(world)
    at = event["timestamp"]
    day_after = at.replace(at[:4], str(int(at[:4]) + 1), 1)
    assert await audit(world, until=at) == []
    assert await audit(world, since=day_after) == []
    assert len(await audit(world, since=at[:20] + "000000Z", until=day_after)) == 1
    assert (await world.admin.get("/api/v1/audit", params={"since": "yesterday"})).status_code == 400


@requirement("audit.list")
async def test_a_task_without_an_agent_names_its_submitter(world: World) -> None:
    await world.admin.post("/api/v1/tasks", json={"type": "nobody-can", "input": {}})
    (refusal,) = await audit(world, category="refusals")
    assert (refusal["event_type"], refusal["by"]) == ("dispatch_denied", "admin")


@requirement("audit.sign-ins")
async def test_only_agents_with_admin_sign_in_and_addresses_are_no_texts(world: World) -> None:
    assert (await world.clients["BOB"].post("/api/v1/audit/sign-ins", json={"surface": "x"})).status_code == 403
    assert (await world.clients["BOSS"].post("/api/v1/audit/sign-ins", json={"surface": "x"})).status_code == 201
    (sign_in,) = await audit(world, category="sign-ins")
    assert (sign_in["by"], sign_in["metadata"]["role"]) == ("boss", "agent")
    for address in ("<script>", "a" * 61, "a b"):
        body = {"surface": "x", "address": address}
        assert (await world.admin.post("/api/v1/audit/sign-ins", json=body)).status_code == 400
    assert (await world.clients["READER"].get("/api/v1/audit")).status_code == 403


@requirement("audit.list")
@pytest.mark.parametrize("category", [*sorted(store.CATEGORIES), ""])
def test_a_list_reads_the_index_of_audited_events_only(category: str, tmp_path: Path, databases: Databases) -> None:
    with sqlite3.connect(databases.sqlite(tmp_path / "stentor.db")) as db:
        params = {"tenant": "default", "before": "~", "after": "", "limit": 9}
        plan = db.execute(f"explain query plan {store._LIST[category].text}", params).fetchall()
    assert "events_audited" in str(plan), plan
    assert "TEMP B-TREE" not in str(plan), plan
