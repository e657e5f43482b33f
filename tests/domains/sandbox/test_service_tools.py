"""Broker tools that use the service: memory and language models."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stentor.core.db import Sql
from stentor_vault.notes.model import NO_FILE
from tests.domains.llm.upstream import Upstream, serving
from tests.domains.sandbox.conftest import MakeSandbox, SandboxedService
from tests.requirements import requirement

MEMORY_TOOLS = [
    {"name": "memory_write", "paths": ["team/**"], "operations": ["write"]},
    {"name": "memory_search", "paths": ["team", "team/**"], "operations": ["search"]},
]
TOOL_CALLS = Sql("select metadata from events where event_type = 'tool_called'")
CHAT_TOOL = [{"name": "llm_chat", "operations": ["chat"]}]


@requirement("sandbox.broker-memory", "memory.invalidate-source")
async def test_memory_tools_write_and_search_as_the_agent(make_sandbox: MakeSandbox) -> None:
    sandbox: SandboxedService = await make_sandbox(SERVICE_MEMORY="1")
    await sandbox.python(
        "answer([call('memory_write', path='./team//sea.md', content='Salt comes from rocks.'),"
        " call('memory_search', query='salt', folder='team/'), call('memory_search', query='salt', folder='other'),"
        " call('memory_write', path='team/', content='A folder?')])",
        tools=MEMORY_TOOLS,
    )
    task = await sandbox.do()
    written, searched, denied, folder = task["result"]
    assert folder["error"]["code"] == "INVALID_REQUEST"
    assert written["result"]["status"] == "success"
    assert [match["path"] for match in searched["result"]["matches"]] == ["team/sea.md"]
    assert denied["error"]["code"] == "TOOL_DENIED"
    assert await sandbox.violations() == ["unauthorized_path"]
    events = await sandbox.world.events(task["task_id"])
    actors = [e["metadata"]["by"] for e in events if e["event_type"] in ("memory_written", "memory_read")]
    assert set(actors) == {"ann"}
    note = await sandbox.world.memory.default.vault.read("team/sea.md")
    assert b"Salt comes from rocks." in note.content
    body = {"source": f"task:{task['task_id']}", "reason": "it made that up"}
    left = await sandbox.world.admin.post("/api/v1/memory/invalidate", json=body)
    assert [one["path"] for one in left.json()["left"]] == ["team/sea.md"], left.text


@requirement("sandbox.memory-search-namespaces")
async def test_memory_search_finds_only_governed_namespaces_of_the_agents_key_and_allowed_paths(
    make_sandbox: MakeSandbox,
) -> None:
    sandbox: SandboxedService = await make_sandbox(SERVICE_MEMORY="1")
    for path in ("docs/a.md", "Tasks/Inbox/a.md", "Memory/ann/a.md", "Memory/bob/a.md", "Memory/shared/a.md"):
        body = {"operation": "write", "document": {"path": path, "content": "A zeppelin.\n"}}
        assert (await sandbox.world.admin.post("/api/v1/memory/write", json=body)).status_code == 200
    everywhere = [{"name": "memory_search", "operations": ["search"]}]
    everything = [{"name": "memory_search", "paths": ["**"], "operations": ["search"]}]
    one = [{"name": "memory_search", "paths": ["Memory/ann"], "operations": ["search"]}]

    async def found(name: str, arguments: str, tools: Any, **fields: Any) -> Any:
        code = f"answer(call('memory_search', query='zeppelin'{arguments}))"
        await sandbox.python(code, name=name, capabilities=[name], tools=tools, **fields)
        answer = (await sandbox.do(required_capabilities=[name]))["result"]
        return sorted(one["path"] for one in answer["result"]["matches"]) if answer["ok"] else answer["error"]["code"]

    assert await found("keyless", "", everywhere) == ["Memory/shared/a.md", "docs/a.md"]
    assert await found("bob", "", everywhere, key_name="bob") == ["Memory/bob/a.md", "Memory/shared/a.md", "docs/a.md"]
    assert await found("narrow", ", folder='docs'", everywhere) == ["docs/a.md"]
    assert await found("foreign", ", folder='Memory/ann'", everywhere, key_name="bob") == "FORBIDDEN"
    assert await found("own", ", folder='Memory/bob'", everything, key_name="bob") == ["Memory/bob/a.md"]
    assert await found("other", ", folder='Memory/ann'", everything, key_name="bob") == "FORBIDDEN"
    assert await found("named", ", folder='Memory/ann'", one) == ["Memory/ann/a.md"]


@requirement("sandbox.memory-write-merges")
async def test_memory_write_keeps_what_somebody_else_changed_since_the_last_write(make_sandbox: MakeSandbox) -> None:
    sandbox: SandboxedService = await make_sandbox(SERVICE_MEMORY="1")
    note = sandbox.world.memory.default.vault
    await sandbox.python("answer(call('memory_write', path='team/log.md', content=task['input']))", tools=MEMORY_TOOLS)

    async def write(text: str) -> dict[str, Any]:
        result = (await sandbox.do(input=text))["result"]
        assert result["ok"], result
        return dict(result["result"])

    async def edit(old: bytes, new: bytes) -> None:
        before = await note.read("team/log.md")
        await note.write("team/log.md", before.content.replace(old, new), before.hash)

    first = await write("one\n\ntwo\n\nthree\n")
    assert (first["status"], first["merged"], first["conflict_copy"]) == ("success", False, None)
    await edit(b"three", b"THREE")
    merged = await write("ONE\n\ntwo\n\nthree\n")
    assert (merged["status"], merged["merged"]) == ("success", True)
    assert (await note.read("team/log.md")).content.endswith(b"ONE\n\ntwo\n\nTHREE\n")

    await edit(b"ONE", b"1")
    lost = await write("uno\n\ntwo\n\nTHREE\n")
    assert lost["status"] == "conflict"
    assert b"uno" in (await note.read(lost["conflict_copy"])).content
    assert (await note.read("team/log.md")).content.endswith(b"1\n\ntwo\n\nTHREE\n")


@requirement("sandbox.memory-write-merges")
async def test_memory_write_replaces_what_the_service_wrote_and_no_note_of_others(make_sandbox: MakeSandbox) -> None:
    sandbox: SandboxedService = await make_sandbox(SERVICE_MEMORY="1")
    vault = sandbox.world.memory.default.vault
    await vault.write("team/own.md", b"by hand\n", NO_FILE)
    # Another caller's write stands for one of the agent itself before a restart, of which the service knows no caller.
    for content in ("old\n", "older\n"):
        body = {"operation": "write", "document": {"path": "team/log.md", "content": content}}
        assert (await sandbox.world.admin.post("/api/v1/memory/write", json=body)).status_code == 200
        sandbox.world.clock.advance(seconds=1)
    script = "answer([call('memory_write', path=path, content='new') for path in ('team/log.md', 'team/own.md')])"
    written, kept = await sandbox.result(script, tools=MEMORY_TOOLS)
    assert (written["result"]["status"], kept["result"]["status"]) == ("success", "conflict")
    assert (await vault.read("team/log.md")).content.endswith(b"new")
    assert (await vault.read("team/own.md")).content == b"by hand\n"
    assert (await vault.read(kept["result"]["conflict_copy"])).content.endswith(b"new")


@requirement("sandbox.broker-memory")
async def test_memory_path_is_checked_in_normalized_form(make_sandbox: MakeSandbox) -> None:
    sandbox: SandboxedService = await make_sandbox(SERVICE_MEMORY="1")
    tools = [{"name": "memory_write", "paths": ["caf\u00e9/*"], "operations": ["write"]}]
    result = await sandbox.result("answer(call('memory_write', path='cafe\\u0301/x.md', content='x'))", tools=tools)
    assert result["ok"], result
    (called,) = await sandbox.world.kernel.infra.db.read(lambda tx: tx.rows(TOOL_CALLS))
    assert json.loads(called[0])["path"] == "caf\u00e9/x.md"


@requirement("sandbox.broker-memory")
async def test_memory_of_another_tenant_is_forbidden(make_sandbox: MakeSandbox) -> None:
    sandbox: SandboxedService = await make_sandbox(SERVICE_MEMORY="1", SERVICE_VAULT_TENANT="other")
    result = await sandbox.result("answer(call('memory_write', path='team/x.md', content='x'))", tools=MEMORY_TOOLS)
    assert result["error"]["code"] == "FORBIDDEN"


@requirement("sandbox.broker-memory")
async def test_memory_tools_are_not_found_without_a_memory(sandbox: SandboxedService) -> None:
    result = await sandbox.result("answer(call('memory_write', path='team/x.md', content='x'))", tools=MEMORY_TOOLS)
    assert result["error"]["code"] == "NOT_FOUND"


@pytest.fixture
async def upstream() -> Any:
    async with serving() as server:
        yield server


@requirement("sandbox.broker-models")
async def test_model_calls_stop_at_the_agents_budget(make_sandbox: MakeSandbox, upstream: Upstream) -> None:
    sandbox: SandboxedService = await make_sandbox(
        OPENAI_API_KEY="canary-up-4e1f-secret",
        OPENAI_BASE_URL=upstream.v1,
        SERVICE_LLM_RETRIES="0",
        SERVICE_LLM_BUDGETS="agent:*:tokens/day=300",
    )
    await sandbox.python(
        "said = [{'role': 'user', 'content': 'Why?' * 60}]\n"
        "chat = lambda: call('llm_chat', model='openai/sea-large', messages=said)\n"
        "answer([chat() for _ in range(30)])",
        tools=CHAT_TOOL,
    )
    task = await sandbox.do()
    first, last = task["result"][0], task["result"][-1]
    assert first["result"]["content"]
    assert first["result"]["usage"]["input_tokens"] > 0
    assert last["error"]["code"] == "BUDGET_EXCEEDED"
    assert "canary" not in str(task)
    query = Sql("select agent_id from events where task_id = :id and event_type = 'llm_called'")
    rows = await sandbox.world.kernel.infra.db.read(lambda tx: tx.rows(query, id=task["task_id"]))
    assert {row[0] for row in rows} == {sandbox.agents["ann"]}


@requirement("memory.agents-write-no-tasks")
async def test_sandboxed_agent_cannot_write_tasks_into_the_inbox(make_sandbox: MakeSandbox) -> None:
    sandbox = await make_sandbox(SERVICE_MEMORY="1")
    tools = [{"name": "memory_write", "paths": ["**"], "operations": ["write"]}]
    script = "answer(call('memory_write', path='Tasks/Inbox/x.md', content='---\\ntype: deploy\\n---\\nGo.'))"
    result = await sandbox.result(script, tools=tools)
    assert "FORBIDDEN" in str(result)


@requirement("registry.authorize-judges-as-broker")
async def test_authorize_route_and_broker_decide_alike(make_sandbox: MakeSandbox) -> None:
    sandbox = await make_sandbox(SERVICE_MEMORY="1")
    tools = [
        {"name": "memory_write", "paths": ["caf\u00e9/*"], "operations": ["write"]},
        {"name": "http_request", "operations": ["get"]},
    ]
    result = await sandbox.result("answer(call('memory_write', path='cafe\\u0301/x.md', content='x'))", tools=tools)
    assert result["ok"], result
    path = f"/api/v1/registry/agents/{sandbox.agents['ann']}/authorize"
    request = {"tool": "memory_write", "operation": "write", "path": "cafe\u0301/x.md"}
    assert (await sandbox.world.admin.post(path, json=request)).json()["allowed"] is True
    request_without_host = {"tool": "http_request", "operation": "get"}
    assert (await sandbox.world.admin.post(path, json=request_without_host)).json()["violation"] == "unsafe_network"
