"""A policy file in the service: routing, tiers, tools."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import MakeWorld, World
from tests.domains.governance.conftest import Office
from tests.domains.governance.test_updates import code
from tests.requirements import requirement

FILE = """
@id("no unscored agents")
forbid (principal, action == Action::"route", resource) unless { context has trust };
@id("prompts are read by people")
forbid (principal, action == Action::"propose_update", resource)
when { context.files_modified.contains("prompts/answer.md") };
@id("nothing outside of notes")
forbid (principal, action == Action::"use_tool", resource == Tool::"files")
unless { context has path && context.path like "notes/*" };
@id("not the inside")
forbid (principal, action == Action::"use_tool", resource)
when { context has host && context.host == "inside.example.com" };
"""
WHITELIST = {"tools": [{"name": "files", "paths": ["**"], "operations": ["read"], "rate_limit": 1}]}


@pytest.fixture
async def strict(make_world: MakeWorld, tmp_path: Path) -> World:
    file = tmp_path / "rules.cedar"
    file.write_text(FILE)
    world: World = await make_world(SERVICE_POLICY_FILE=str(file))
    return world


@requirement("policy.routing")
async def test_routing_asks_the_policy_after_its_own_checks(strict: World) -> None:
    agent = await strict.register()
    body = {"type": "echo", "input": 1, "required_capabilities": ["echo"]}
    answer = await strict.admin.post("/api/v1/tasks", json=body)
    assert code(answer) == (403, "ROUTING_POLICY_DENIED")
    preferred = await strict.admin.post("/api/v1/tasks", json={**body, "agent_preference": agent})
    assert code(preferred) == (409, "ROUTING_AGENT_INELIGIBLE")
    assert preferred.json()["error"]["details"]["reason"] == "ROUTING_POLICY_DENIED"
    await strict.admin.put(f"/api/v1/trust/{agent}", json={"score": 0.1})
    task = await strict.submit()
    assert (await strict.claim(agent))["task_id"] == task
    await strict.admin.post(f"/api/v1/registry/agents/{agent}/suspend", json={"reason": "x"})
    assert code(await strict.admin.post("/api/v1/tasks", json=body)) == (409, "ROUTING_AGENT_UNAVAILABLE")


@requirement("policy.raises-the-tier")
async def test_a_forbidden_update_needs_a_human_who_says_so(strict: World) -> None:
    office = Office(strict)
    agent = await office.trusted(1.0)
    free = await office.propose(agent, {"files_modified": ["a.py"]})
    assert (free["tier"], free["risks"]) == (1, [])
    update = await office.propose(agent)
    assert (update["tier"], update["status"], update["risks"]) == (3, "submitted", ["policy_forbids"])
    assert update["reasons"] == ["the policy file forbids it without a person"]
    path = f"updates/{update['update_id']}/approve"
    assert code(await office.post(path, {}, "SECOND")) == (409, "GOVERNANCE_RISK_NOT_OVERRIDDEN")
    assert (await office.approve(update, override_risk=True))["status"] == "approved"


@requirement("policy.tools")
async def test_the_sandbox_asks_the_policy_after_the_whitelist(strict: World) -> None:
    agent = await strict.register(sandbox_whitelist=WHITELIST)
    path = f"/api/v1/registry/agents/{agent}/authorize"
    refused = (await strict.admin.post(path, json={"tool": "files", "operation": "read", "path": "etc/x"})).json()
    assert (refused["allowed"], refused["violation"], refused["violation_count"]) == (False, "unauthorized_tool", 1)
    assert "nothing outside of notes" in refused["reason"]
    allowed = (await strict.admin.post(path, json={"tool": "files", "operation": "read", "path": "notes/x"})).json()
    assert allowed["allowed"] is True, "what the policy refused took nothing of the rate"
    built_in = (await strict.admin.post(path, json={"tool": "files", "operation": "rm", "path": "notes/x"})).json()
    assert built_in["allowed"] is False


@requirement("policy.tools")
@pytest.mark.parametrize("host", ["inside.example.com", "inside.example.com.", "INSIDE.Example.com"])
async def test_a_host_is_held_against_the_policy_in_one_spelling(strict: World, host: str) -> None:
    network = {"allowlist": ["*.example.com"], "ports": [443]}
    agent = await strict.register(
        sandbox_whitelist={"tools": [{"name": "web", "operations": ["get"]}], "network": network}
    )
    body = {"tool": "web", "operation": "get", "host": host, "port": 443}
    verdict = (await strict.admin.post(f"/api/v1/registry/agents/{agent}/authorize", json=body)).json()
    assert (verdict["allowed"], "not the inside" in verdict["reason"]) == (False, True)
