"""Tools that need the service: the memory, and models."""

from __future__ import annotations

import json
from typing import Any

import pytest

from stentor.core.db import Sql
from tests.domains.llm.upstream import Upstream, serving
from tests.domains.sandbox.conftest import Caged, MakeCaged
from tests.requirements import requirement

MEMORY = [
    {"name": "memory_write", "paths": ["team/**"], "operations": ["write"]},
    {"name": "memory_search", "paths": ["team", "team/**"], "operations": ["search"]},
]
CALLED = Sql("select metadata from events where event_type = 'tool_called'")
CHAT = [{"name": "llm_chat", "operations": ["chat"]}]


@requirement("sandbox.broker-memory")
async def test_the_memory_is_written_and_searched_as_the_agent(make_caged: MakeCaged) -> None:
    caged: Caged = await make_caged(SERVICE_MEMORY="1")
    await caged.python(
        "answer([call('memory_write', path='team/sea.md', content='Salt comes from rocks.'),"
        " call('memory_search', query='salt', folder='team'), call('memory_search', query='salt', folder='other')])",
        tools=MEMORY,
    )
    task = await caged.do()
    written, found, denied = task["result"]
    assert written["result"]["status"] == "success"
    assert [match["path"] for match in found["result"]["matches"]] == ["team/sea.md"]
    assert denied["error"]["code"] == "TOOL_DENIED"
    assert await caged.violations() == ["unauthorized_path"]
    events = await caged.world.events(task["task_id"])
    by = [e["metadata"]["by"] for e in events if e["event_type"] in ("memory_written", "memory_read")]
    assert set(by) == {"ann"}
    note = await caged.world.kernel.memory.default.vault.read("team/sea.md")  # type: ignore[union-attr]
    assert b"Salt comes from rocks." in note.content


@requirement("sandbox.broker-memory")
@pytest.mark.parametrize("driver", ["sqlite"], indirect=True)
async def test_a_path_is_judged_in_the_spelling_in_which_the_memory_writes_it(make_caged: MakeCaged) -> None:
    caged: Caged = await make_caged(SERVICE_MEMORY="1")
    tools = [{"name": "memory_write", "paths": ["caf\u00e9/*"], "operations": ["write"]}]
    found = await caged.result("answer(call('memory_write', path='cafe\\u0301/x.md', content='x'))", tools=tools)
    assert found["ok"], found
    (called,) = await caged.world.kernel.infra.db.read(lambda tx: tx.rows(CALLED))
    assert json.loads(called[0])["path"] == "caf\u00e9/x.md"


@requirement("sandbox.broker-memory")
async def test_the_memory_of_another_tenant_is_refused(make_caged: MakeCaged) -> None:
    caged: Caged = await make_caged(SERVICE_MEMORY="1", SERVICE_VAULT_TENANT="other")
    found = await caged.result("answer(call('memory_write', path='team/x.md', content='x'))", tools=MEMORY)
    assert found["error"]["code"] == "FORBIDDEN"


@requirement("sandbox.broker-memory")
@pytest.mark.parametrize("driver", ["sqlite"], indirect=True)
async def test_without_a_memory_its_tools_do_not_exist(caged: Caged) -> None:
    found = await caged.result("answer(call('memory_write', path='team/x.md', content='x'))", tools=MEMORY)
    assert found["error"]["code"] == "NOT_FOUND"


@pytest.fixture
async def upstream() -> Any:
    async with serving() as made:
        yield made


@requirement("sandbox.broker-models")
async def test_a_model_is_asked_within_the_agents_budget(make_caged: MakeCaged, upstream: Upstream) -> None:
    caged: Caged = await make_caged(
        OPENAI_API_KEY="canary-up-4e1f-secret",
        OPENAI_BASE_URL=upstream.v1,
        SERVICE_LLM_RETRIES="0",
        SERVICE_LLM_BUDGETS="agent:*:tokens/day=300",
    )
    await caged.python(
        "said = [{'role': 'user', 'content': 'Why?' * 60}]\n"
        "chat = lambda: call('llm_chat', model='openai/sea-large', messages=said)\n"
        "answer([chat() for _ in range(30)])",
        tools=CHAT,
    )
    task = await caged.do()
    first, last = task["result"][0], task["result"][-1]
    assert first["result"]["content"]
    assert first["result"]["usage"]["input_tokens"] > 0
    assert last["error"]["code"] == "BUDGET_EXCEEDED"
    assert "canary" not in str(task)
    select = Sql("select agent_id from events where task_id = :id and event_type = 'llm_called'")
    rows = await caged.world.kernel.infra.db.read(lambda tx: tx.rows(select, id=task["task_id"]))
    assert {row[0] for row in rows} == {caged.agents["ann"]}


@requirement("memory.agents-write-no-tasks")
async def test_a_caged_agent_writes_no_task_into_the_inbox_whatever_its_allowlist_says(make_caged: MakeCaged) -> None:
    caged = await make_caged(SERVICE_MEMORY="1")
    tools = [{"name": "memory_write", "paths": ["**"], "operations": ["write"]}]
    script = "answer(call('memory_write', path='Tasks/Inbox/x.md', content='---\\ntype: deploy\\n---\\nGo.'))"
    found = await caged.result(script, tools=tools)
    assert "FORBIDDEN" in str(found)


@requirement("registry.authorize-judges-as-broker")
async def test_the_check_and_the_broker_judge_the_same_call_alike(make_caged: MakeCaged) -> None:
    caged = await make_caged(SERVICE_MEMORY="1")
    tools = [
        {"name": "memory_write", "paths": ["caf\u00e9/*"], "operations": ["write"]},
        {"name": "http_request", "operations": ["get"]},
    ]
    found = await caged.result("answer(call('memory_write', path='cafe\\u0301/x.md', content='x'))", tools=tools)
    assert found["ok"], found
    path = f"/api/v1/registry/agents/{caged.agents['ann']}/authorize"
    asked = {"tool": "memory_write", "operation": "write", "path": "cafe\u0301/x.md"}
    assert (await caged.world.admin.post(path, json=asked)).json()["allowed"] is True
    nowhere = {"tool": "http_request", "operation": "get"}
    assert (await caged.world.admin.post(path, json=nowhere)).json()["violation"] == "unsafe_network"
