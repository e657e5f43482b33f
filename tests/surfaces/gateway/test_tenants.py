"""Another tenant's records look like records that do not exist, on every route with an id."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import httpx

from stentor.core.ids import new_id
from stentor.domains.llm import store as llm_store
from stentor.domains.llm.store import CallRow
from tests.conftest import World
from tests.patience import soon
from tests.requirements import requirement
from tests.surfaces.gateway.operations import PROTECTED, UNKNOWN, Operation
from tests.surfaces.gateway.test_bad_input import an_answer

WITH_ID = [o for o in PROTECTED if (o.path_parameters or o.query) and not re.search("memory|consistency", o.path)]
"""The memory is one tenant's alone (tests/domains/memory), the tree of the run log everybody's."""
VARIES = re.compile(r'"(request_id|[a-z_]+_at|timestamp|lastUpdated)":"[^"]*"')


async def theirs(world: World) -> dict[str, str]:
    """What the other tenant has of each kind that a path names, by path parameter."""
    other = world.clients["OTHER"]
    agent = (await other.post("/api/v1/registry/agents", json={"name": "eve", "capabilities": ["echo"]})).json()
    body = {"type": "echo", "input": "hers", "required_capabilities": ["echo"]}
    task = (await other.post("/api/v1/tasks", json=body)).json()
    claimed = await other.post(f"/api/v1/agents/{agent['agent_id']}/claims", json={})
    assert claimed.json()["tasks"][0]["epoch"] == 1
    put = await other.put(f"/api/v1/trust/{agent['agent_id']}", json={"score": 0.9})
    assert put.status_code == 200
    registered = await other.post("/api/v1/llm/provider", json={"provider": "groq", "apiKey": "key-of-groq"})
    assert registered.status_code == 200
    ids = {"name": "groq", "agent_id": agent["agent_id"], "task_id": task["task_id"], "entityId": agent["agent_id"]}
    body = {"url": "https://hooks.example.com/", "events": ["update.approved"]}
    hook = await other.post("/api/v1/webhooks", json=body)
    trail = await other.get(f"/api/v1/tasks/{task['task_id']}/activity")
    found = {"webhook_id": hook.json()["id"], "provenance_id": trail.json()["provenance_id"]}
    found |= {"message_id": await their_message(other), "grant_id": await their_grant(other, ids)}
    found["answer_id"] = await an_answer(world, "other")
    found["call_id"] = await their_call(world)
    assert (await other.post("/api/v1/keys", json={"name": "groq", "role": "viewer"})).status_code == 201
    budget = {"kind": "key", "subject": "*", "unit": "usd", "period": "day", "limit": 5}
    found["budget_id"] = (await other.post("/api/v1/llm/budgets", json=budget)).json()["budget_id"]
    found["session_id"] = (await other.post("/api/v1/sessions", json={})).json()["session_id"]
    group = {"kind": "group", "name": "fast", "models": ["groq/m"]}
    found["route_id"] = (await other.post("/api/v1/llm/routes", json=group)).json()["route_id"]
    return ids | found | await their_update(other, agent["agent_id"])


async def their_call(world: World) -> str:
    """A recorded call of a model."""
    row = CallRow(new_id(), "other", "other", None, None, "chat", "groq", "m", "ok", 1, 1, 0, None, 1)
    await world.kernel.infra.db.write(lambda tx: llm_store.insert_call(tx, row))
    return row.call_id


async def their_grant(other: httpx.AsyncClient, ids: dict[str, str]) -> str:
    """Authority for the running task."""
    body = {"epoch": 1, "to_agent": ids["agent_id"], "capabilities": ["echo"]}
    made = await other.post(f"/api/v1/tasks/{ids['task_id']}/grants", json=body)
    assert made.status_code == 201, made.text
    return str(made.json()["grant_id"])


async def their_update(other: httpx.AsyncClient, agent: str) -> dict[str, str]:
    """One that waits for approval, a checkpoint, and a rollback to it that has ended."""
    base = "/api/v1/governance"
    taken = (await other.post(f"{base}/checkpoints", json={"agent_id": agent})).json()["checkpoint_id"]
    asked = {"checkpoint_id": taken, "initiated_by": "other", "reason": "x", "details": ""}
    back = (await other.post(f"{base}/rollbacks", json=asked)).json()["rollback_id"]

    async def completed() -> bool:
        return (await other.get(f"{base}/rollbacks/{back}")).json()["completed_at"] is not None

    await soon(completed)
    changes = {"files_modified": [], "lines_added": 0, "lines_deleted": 0}
    body = {"agent_id": agent, "update_type": "prompt", "description": "x", "changes": changes}
    update = (await other.post(f"{base}/updates", json=body)).json()
    assert update["status"] == "submitted"
    return {"update_id": update["update_id"], "checkpoint_id": taken, "rollback_id": back}


async def their_message(other: httpx.AsyncClient) -> str:
    """One that was answered."""
    header = {"mode": "direct", "context": "hers", "priority": "low", "actionType": "list", "targetZone": "registry"}
    sent = await other.post("/api/v1/atp/send", json={"header": header, "payload": {"content": "{}"}})
    message_id = str(sent.json()["messageId"])

    async def answered() -> bool:
        return (await other.get(f"/api/v1/atp/response/{message_id}")).status_code == 200

    await soon(answered)
    return message_id


async def ask(client: httpx.AsyncClient, operation: Operation, record_id: str) -> tuple[int, str]:
    """Status and body, without what differs from one request to the next."""
    body = operation.example if operation.has_body else None
    query = dict.fromkeys(operation.query, record_id)
    answer = await client.request(operation.method, operation.url(record_id), params=query, json=body)
    return answer.status_code, VARIES.sub(r'"\1":""', answer.text.replace(record_id, "ID"))


async def state(world: World, ids: dict[str, str]) -> list[Any]:
    paths = (f"tasks/{ids['task_id']}", f"registry/agents/{ids['agent_id']}", f"trust/{ids['entityId']}")
    return [(await world.clients["OTHER"].get(f"/api/v1/{path}")).json() for path in paths]


@requirement("http.foreign-tenant-looks-unknown")
async def test_a_foreign_id_answers_exactly_like_an_unknown_one(world: World) -> None:
    ids = await theirs(world)
    before = await state(world, ids)
    seen = set()
    for operation in WITH_ID:
        name = (operation.path_parameters or list(operation.query))[0]
        foreign = await ask(world.admin, operation, ids[name])
        assert foreign == await ask(world.admin, operation, UNKNOWN), operation
        # An entity needs no record: trust in it can be set and moved, each tenant its own.
        writes_trust = name == "entityId" and operation.method != "GET" and "can-perform" not in operation.path
        if not writes_trust:
            seen.add(foreign[0])
    assert seen <= {404, 200}
    assert await state(world, ids) == before


@requirement("http.foreign-tenant-looks-unknown")
async def test_every_route_with_the_id_of_a_task_or_agent_is_404_for_a_foreign_one(world: World) -> None:
    ids = await theirs(world)
    for operation in WITH_ID:
        name = (operation.path_parameters or list(operation.query))[0]
        if name != "entityId":
            status, body = await ask(world.admin, operation, ids[name])
            assert (status, json.loads(body)["error"]["code"]) == (404, "NOT_FOUND"), operation


@requirement("http.foreign-tenant-looks-unknown")
async def test_lists_reports_and_preferences_show_nothing_of_another_tenant(world: World) -> None:
    ids = await theirs(world)
    counts: list[tuple[str, Callable[[Any], Any]]] = [
        ("tasks", lambda b: b["total"]),
        (f"tasks?agent_id={ids['agent_id']}", lambda b: b["total"]),
        ("registry/agents", lambda b: b["total"]),
        ("registry/agents?capability=echo", lambda b: b["total"]),
        ("trust/report", lambda b: b["data"]["totalEntities"]),
        ("trust/hebbian/weights", lambda b: len(b["data"]["weights"])),
        ("hebbian/connections", lambda b: b["total"]),
    ]
    for path, count in counts:
        assert count((await world.admin.get(f"/api/v1/{path}")).json()) == 0, path
    await world.register()
    denied = []
    for preferred in (ids["agent_id"], UNKNOWN):
        body = {"type": "echo", "input": 1, "required_capabilities": ["echo"], "agent_preference": preferred}
        answer = await world.admin.post("/api/v1/tasks", json=body)
        denied.append((answer.status_code, answer.json()["error"]["code"]))
    assert denied[0] == denied[1]
    assert denied[0][0] >= 400
