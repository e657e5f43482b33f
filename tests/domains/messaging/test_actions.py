"""What messages do in each zone, with which permission, and that each is answered."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest

from stentor.domains.atp.model import ACTION_TYPES
from stentor.domains.memory.index.index import SearchIndex
from stentor.domains.messaging.actions.governance import GovernanceZone
from stentor.domains.messaging.actions.kernel import KernelZone
from tests.conftest import MakeWorld
from tests.domains.messaging.conftest import Post, form, task
from tests.domains.messaging.test_agents import all_events
from tests.requirements import requirement
from tests.surfaces.gateway.operations import OPERATIONS

NOBODY = "00000000-0000-7000-8000-000000000000"


@requirement("atp.messages-act-on-zones")
async def test_the_kernel_cancels_retries_and_reads_tasks(post: Post) -> None:
    ann = await post.world.register("ann")
    task_id = await post.world.submit()
    assert (await post.do({"task_id": task_id}, "kernel", "get_status"))["status"] == "queued"
    assert (await post.do({"task_id": task_id}, "kernel", "cancel"))["status"] == "cancelled"
    assert (await post.fail({"task_id": task_id}, "kernel", "cancel"))["code"] == "CONFLICT"
    assert (await post.world.events(task_id))[-2]["metadata"]["message_id"]
    failed = await post.world.do(ann, ok=False)
    message_id = await post.send({"task_id": failed}, "kernel", "retry")
    await post.complete(await post.claimed(ann), "second time")
    assert (await post.over(message_id))["response"]["result"] == "second time"
    listed = await post.do({"status": "cancelled"}, "kernel", "list")
    assert [row["task_id"] for row in listed["tasks"]] == [task_id]
    assert (await post.do({"status": "odd"}, "kernel", "list"))["total"] == 0
    assert (await post.fail({"task_id": "none"}, "kernel", "query"))["code"] == "NOT_FOUND"


async def test_a_human_approves_and_rejects_by_message(post: Post) -> None:
    ann = await post.world.register("ann", trust_tier="human")
    first, second = await post.world.submit(), await post.world.submit()
    assert (await post.do({"task_id": first}, "kernel", "approve"))["status"] == "queued"
    assert (await post.do({"task_id": second, "reason": "no"}, "kernel", "reject"))["status"] == "aborted"
    assert (await post.claimed(ann))["task_id"] == first


@requirement("atp.messages-act-on-zones", "atp.scheduled")
async def test_a_scheduled_message_waits_for_its_time(post: Post) -> None:
    ann = await post.world.register("ann")
    message_id = await post.send({**task(), "delay_seconds": 60}, "kernel", "schedule")
    await post.do({}, "registry", "list")  # others pass it by
    assert (await post.message(message_id))["status"] == "queued"
    post.world.clock.advance(seconds=61)
    await post.complete(await post.claimed(ann))
    assert (await post.over(message_id))["response"]["result"] == "hi"


@requirement("atp.messages-act-on-zones", "atp.scheduled")
@pytest.mark.parametrize("mode", ["direct", "batch"])
async def test_a_scheduled_message_is_cancelled_while_it_waits(post: Post, mode: str) -> None:
    ann = await post.world.register("ann")
    message_id = await post.send({**task(), "delay_seconds": 60}, "kernel", "schedule", client="WRITER", mode=mode)
    cancel: Any = ({"task_id": message_id}, "kernel", "cancel")
    assert (await post.fail(*cancel, client="BOB"))["code"] == "NOT_FOUND"
    done = await post.do(*cancel)
    assert (done["task_id"], done["status"]) == (message_id, "cancelled")
    response = (await post.over(message_id))["response"]
    ended = response["results"][0]["error"] if mode == "batch" else response
    assert (ended["status"], ended["cancelled_by"]) == ("cancelled", "admin")
    post.world.clock.advance(seconds=61)
    assert (await post.fail(*cancel))["code"] == "NOT_FOUND"
    answer = await post.world.admin.post(f"/api/v1/agents/{ann}/claims", json={})
    assert answer.json()["tasks"] == []


@requirement("atp.messages-act-on-zones")
async def test_the_memory_is_written_read_searched_and_deleted(
    full: Post, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    note = {"path": "Notes/a.md", "content": "# Backups\n\nWe keep them for a year.\n"}
    made = await full.do(note, "memory", "create")
    assert (made["status"], made["path"]) == ("success", "Notes/a.md")
    assert (tmp_path / "vault" / "Notes" / "a.md").read_text() == note["content"]
    assert (await full.fail(note, "memory", "create"))["code"] == "CONFLICT"
    read = await full.do({"query_type": "exact", "path": "Notes/a.md"}, "memory", "query")
    assert read["document"]["content"] == note["content"]
    found = await full.do("backups", "memory", "search")
    assert [match["path"] for match in found["matches"]] == ["Notes/a.md"]
    for is_complete in (True, False):
        monkeypatch.setattr(SearchIndex, "was_reconciled", AsyncMock(return_value=is_complete))
        assert ("incomplete" in await full.do("backups", "memory", "search")) is not is_complete
    error = await full.fail({"text": "backups", "top_k": 3, "filters": {}}, "memory", "query")
    assert error["code"] == "SERVICE_UNAVAILABLE"  # there is no model here
    changed = {"path": "Notes/a.md", "frontmatter": {"tags": ["it"]}}
    assert (await full.do(changed, "memory", "update"))["status"] == "success"
    assert (await full.do({**note, "content": "new\n"}, "memory", "upsert"))["status"] == "success"
    stale = {"path": "Notes/a.md", "base_hash": "0" * 64, "conflict_resolution": "abort"}
    assert (await full.do(stale, "memory", "delete"))["status"] == "conflict"
    assert (await full.do({"path": "Notes/a.md"}, "memory", "delete"))["status"] == "success"
    assert not (tmp_path / "vault" / "Notes" / "a.md").exists()
    assert (await full.fail({"path": "Notes/a.md"}, "memory", "delete"))["code"] == "NOT_FOUND"
    assert (await full.do("", "memory", "get_status"))["status"] in ("healthy", "degraded")


async def test_a_write_to_the_memory_hangs_under_its_message(full: Post) -> None:
    answer = await full.over(await full.send({"path": "a.md", "content": "x\n"}, "memory", "create"))
    (written,) = [e for e in await all_events(full.world) if e["event_type"] == "memory_written"]
    assert written["parent_id"] == answer["provenance_id"]


@requirement("atp.named-vaults")
async def test_a_message_names_a_vault_and_a_name_that_is_none_fails_it(make_world: MakeWorld, tmp_path: Path) -> None:
    post = Post(await make_world(SERVICE_MEMORY="1", SERVICE_VAULTS=f"archive={tmp_path / 'archive'}"))
    for vault in ("default", "archive"):
        note = {"path": "a.md", "content": f"A zeppelin of {vault}.\n", "vault": vault}
        assert (await post.do(note, "memory", "create"))["status"] == "success"
    found = await post.do({"text": "zeppelin", "vault": "archive"}, "memory", "search")
    assert [(one["path"], one["vault"]) for one in found["matches"]] == [("a.md", "archive")]
    assert "of archive" in found["matches"][0]["excerpt"]
    changed = {"path": "a.md", "content": "New.\n", "vault": "archive"}
    assert (await post.do(changed, "memory", "update"))["status"] == "success"
    read = await post.do({"query_type": "exact", "path": "a.md"}, "memory", "query")
    assert read["document"]["content"] == "A zeppelin of default.\n"
    assert (await post.do({"vault": "archive"}, "memory", "get_status"))["stats"]["total_documents"] == 1
    gone = {"path": "a.md", "vault": "archive"}
    assert (await post.do(gone, "memory", "delete"))["status"] == "success"
    assert (tmp_path / "vault" / "a.md").exists()
    for body, action in ((note, "upsert"), (changed, "update"), (gone, "delete"), ({"text": "x"}, "search")):
        error = await post.fail({**body, "vault": "nowhere"}, "memory", action)
        assert (error["code"], error["details"]) == ("INVALID_REQUEST", {"known_vaults": ["default", "archive"]})


async def test_without_a_memory_its_messages_say_so(post: Post) -> None:
    assert (await post.fail({"path": "a.md", "content": "x"}, "memory", "create"))["code"] == "NOT_IMPLEMENTED"


@requirement("atp.messages-act-on-zones")
async def test_the_registry_registers_lists_reads_and_revokes(post: Post) -> None:
    made = await post.do({"name": "ann", "capabilities": ["echo"]}, "registry", "register")
    listed = await post.do({"capability": "echo"}, "registry", "list")
    assert [agent["agent_id"] for agent in listed["agents"]] == [made["agent_id"]]
    ref = {"agent_id": made["agent_id"]}
    assert (await post.do(ref, "registry", "query"))["name"] == "ann"
    assert (await post.do(ref, "registry", "revoke"))["status"] == "suspended"
    assert (await post.do(ref, "registry", "get_status"))["status"] == "suspended"
    assert (await post.fail(ref, "registry", "revoke"))["code"] == "CONFLICT"
    bad: list[dict[str, Any]] = [
        {"name": "x", "runtime": {"kind": "http"}},
        {"name": "x", "runtime": {"kind": "http", "endpoint": "file:///etc/passwd"}},
        {"name": "x", "sandbox_whitelist": {"tools": 1}},
    ]
    for body in bad:
        assert (await post.fail(body, "registry", "register"))["code"] == "INVALID_REQUEST"
    assert (await post.fail({"name": "x", "runtime": {"kind": "command"}}, "registry", "register"))["code"]
    assert len((await post.do({}, "registry", "list"))["agents"]) == 1


@requirement("atp.mode-semantics", "atp.messages-act-on-zones")
async def test_a_batch_reports_on_each_operation_and_one_that_fails_leaves_the_others(post: Post) -> None:
    ann = await post.world.register("ann")
    operations = [
        {"agent_id": ann, "field": "accuracy_score", "value": 0.9},
        {"agent_id": NOBODY, "field": "accuracy_score", "value": 0.9},
        {"agent_id": ann, "field": "accuracy_score", "value": 7},
        {"agent_id": ann, "field": "name", "value": "eve"},
        {"agent_id": ann, "field": "status", "value": "suspended"},
        {"agent_id": ann, "field": "status", "value": "suspended"},
    ]
    done = await post.do({"operations": operations}, "registry", "update", mode="batch")
    assert [one["status"] for one in done["results"]] == ["completed", *["failed"] * 3, "completed", "failed"]
    codes = [one["error"]["code"] for one in done["results"] if one["status"] == "failed"]
    assert codes == ["NOT_FOUND", "INVALID_REQUEST", "INVALID_REQUEST", "CONFLICT"]
    assert (done["succeeded"], done["failed"]) == (2, 4)
    agent = (await post.world.admin.get(f"/api/v1/registry/agents/{ann}")).json()
    assert (agent["accuracy_score"], agent["status"], agent["name"]) == (0.9, "suspended", "ann")
    answer = await post.over(await post.send({"operations": operations[1:2]}, "registry", "update", mode="batch"))
    assert (answer["status"], answer["response"]["failed"]) == ("failed", 1)


@requirement("atp.mode-semantics")
async def test_in_mode_batch_a_single_piece_of_work_is_reported_as_one_operation(post: Post) -> None:
    done = await post.do({}, "registry", "list", mode="batch")
    assert done["results"] == [{"index": 0, "status": "completed", "result": {"agents": [], "total": 0}}]
    answer = await post.over(await post.send(task(), mode="batch"))
    (one,) = answer["response"]["results"]
    assert one["error"]["code"] == "ROUTING_CAPABILITY_UNAVAILABLE"


@requirement("atp.missing-zones")
async def test_a_zone_that_is_switched_off_is_told_to_be_missing(post: Post) -> None:
    assert (await post.fail('{"text": "x"}', "memory", "query"))["code"] == "NOT_IMPLEMENTED"


async def test_every_pair_of_zone_and_action_is_answered_or_refused(full: Post) -> None:
    for zone, action in itertools.product(("kernel", "memory", "registry", "sandbox", "governance"), ACTION_TYPES):
        answer = await full.ask("send", json=form("{}", zone, action))
        assert answer.status_code in (202, 400), (zone, action)
        if answer.status_code == 202:
            ended = await full.over(answer.json()["messageId"])
            if ended["status"] == "failed":
                assert ended["response"]["error"]["code"] in ("NOT_IMPLEMENTED", "INVALID_REQUEST"), (zone, action)


@requirement("atp.same-permission-as-rest")
@pytest.mark.parametrize(
    ("zone", "action", "body"),
    [
        ("memory", "create", {"path": "a.md", "content": "x"}),
        ("memory", "search", "x"),
        ("registry", "register", {"name": "eve"}),
        ("registry", "list", {}),
        ("registry", "update", {"operations": [{"agent_id": NOBODY, "field": "a", "value": 1}]}),
        ("kernel", "approve", {"task_id": "x"}),
        ("governance", "approve", {"update_id": NOBODY}),
    ],
)
async def test_without_the_permission_of_the_rest_call_nothing_happens(
    full: Post, zone: str, action: str, body: Any
) -> None:
    for client in ("WRITER", "BOB", "READER"):
        answer = await full.ask("send", client, json=form(body, zone, action))
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "FORBIDDEN")
    assert (await full.ask("queue")).json()["data"]["depth"] == 0
    assert not [event for event in await all_events(full.world) if event["event_type"].startswith("message")]


REST_CALLS = {
    "kernel/execute": "POST /api/v1/tasks",
    "kernel/schedule": "POST /api/v1/tasks",
    "kernel/cancel": "POST /api/v1/tasks/{task_id}/cancel",
    "kernel/retry": "POST /api/v1/tasks/{task_id}/retry",
    "kernel/approve": "POST /api/v1/tasks/{task_id}/approve",
    "kernel/reject": "POST /api/v1/tasks/{task_id}/reject",
    "kernel/get_status": "GET /api/v1/tasks/{task_id}",
    "kernel/list": "GET /api/v1/tasks",
    "governance/propose_update": "POST /api/v1/governance/updates",
    "governance/approve": "POST /api/v1/governance/updates/{update_id}/approve",
    "governance/override": "POST /api/v1/governance/updates/{update_id}/approve",
    "governance/reject": "POST /api/v1/governance/updates/{update_id}/reject",
    "governance/rollback": "POST /api/v1/governance/rollbacks",
}


@requirement("atp.same-permission-as-rest")
def test_an_action_on_tasks_or_updates_needs_the_permission_of_its_route() -> None:
    nothing: Any = None
    zones = (
        KernelZone(nothing, nothing, nothing, nothing, nothing).actions() | GovernanceZone(nothing, nothing).actions()
    )
    routes = {str(operation): operation.permission for operation in OPERATIONS}
    needed = {"/".join(name): action.permission for name, action in zones.items()}
    del needed["kernel/query"]  # gives work to an agent, or reads a task
    assert needed == {name: routes[route] for name, route in REST_CALLS.items()}


@requirement("atp.same-permission-as-rest")
async def test_work_for_agents_needs_write_and_no_more(post: Post) -> None:
    await post.world.register()
    assert (await post.ask("send", "READER", json=form(task()))).status_code == 403
    assert (await post.ask("send", "WRITER", json=form(task()))).status_code == 202


@requirement("atp.same-permission-as-rest")
async def test_the_memory_takes_no_message_of_another_tenant(full: Post) -> None:
    answer = await full.ask("send", "OTHER", json=form({"path": "a.md", "content": "x"}, "memory", "create"))
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "FORBIDDEN")


@requirement("http.foreign-tenant-looks-unknown")
async def test_a_message_reaches_nothing_of_another_tenant(post: Post) -> None:
    ann = await post.world.register()
    task_id = await post.world.submit()
    for body, zone, action in (
        ({"task_id": task_id}, "kernel", "cancel"),
        ({"agent_id": ann}, "registry", "revoke"),
        ({"agent_id": ann}, "registry", "query"),
    ):
        answer = await post.ask("send", "OTHER", json=form(body, zone, action))
        message_id = answer.json()["messageId"]
        while (found := await post.ask(f"response/{message_id}", "OTHER")).status_code == 404:
            pass
        assert found.json()["data"]["response"]["error"]["code"] == "NOT_FOUND"
    assert (await post.world.task(task_id))["status"] == "queued"
