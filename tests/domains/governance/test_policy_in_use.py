"""A policy file's effect on routing, tiers of updates and tool calls."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import MakeWorld, World
from tests.domains.governance.conftest import GovernanceClient
from tests.domains.governance.test_updates import error_of
from tests.requirements import requirement

POLICY_FILE = """
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
async def guarded(make_world: MakeWorld, tmp_path: Path) -> World:
    file = tmp_path / "rules.cedar"
    file.write_text(POLICY_FILE)
    world: World = await make_world(SERVICE_POLICY_FILE=str(file))
    return world


@requirement("policy.routing")
async def test_routing_applies_the_policy_after_its_own_checks(guarded: World) -> None:
    agent = await guarded.register()
    body = {"type": "echo", "input": 1, "required_capabilities": ["echo"]}
    response = await guarded.admin.post("/api/v1/tasks", json=body)
    assert error_of(response) == (403, "ROUTING_POLICY_DENIED")
    preferred = await guarded.admin.post("/api/v1/tasks", json={**body, "agent_preference": agent})
    assert error_of(preferred) == (409, "ROUTING_AGENT_INELIGIBLE")
    assert preferred.json()["error"]["details"]["reason"] == "ROUTING_POLICY_DENIED"
    await guarded.admin.put(f"/api/v1/trust/{agent}", json={"score": 0.1})
    task = await guarded.submit()
    assert (await guarded.claim(agent))["task_id"] == task
    await guarded.admin.post(f"/api/v1/registry/agents/{agent}/suspend", json={"reason": "x"})
    assert error_of(await guarded.admin.post("/api/v1/tasks", json=body)) == (
        409,
        "ROUTING_AGENT_UNAVAILABLE",
    )


@requirement("policy.raises-the-tier")
async def test_update_forbidden_by_policy_needs_an_explicit_override(guarded: World) -> None:
    governance = GovernanceClient(guarded)
    agent = await governance.register_trusted(1.0)
    allowed_update = await governance.propose(agent, {"files_modified": ["a.py"]})
    assert (allowed_update["tier"], allowed_update["risks"]) == (1, [])
    update = await governance.propose(agent)
    assert (update["tier"], update["status"], update["risks"]) == (3, "submitted", ["policy_forbids"])
    assert update["reasons"] == ["the policy file forbids it without a person"]
    path = f"updates/{update['update_id']}/approve"
    assert error_of(await governance.post(path, {}, "SECOND")) == (409, "GOVERNANCE_RISK_NOT_OVERRIDDEN")
    assert (await governance.approve(update, override_risk=True))["status"] == "approved"


@requirement("policy.tools")
async def test_tool_authorization_applies_the_policy_after_the_allow_list(guarded: World) -> None:
    agent = await guarded.register(sandbox_whitelist=WHITELIST)
    path = f"/api/v1/registry/agents/{agent}/authorize"
    refused = (await guarded.admin.post(path, json={"tool": "files", "operation": "read", "path": "etc/x"})).json()
    assert (refused["allowed"], refused["violation"], refused["violation_count"]) == (False, "unauthorized_tool", 1)
    assert "nothing outside of notes" in refused["reason"]
    allowed = (await guarded.admin.post(path, json={"tool": "files", "operation": "read", "path": "notes/x"})).json()
    assert allowed["allowed"] is True, "a call denied by the policy does not count towards the rate limit"
    not_listed = (await guarded.admin.post(path, json={"tool": "files", "operation": "rm", "path": "notes/x"})).json()
    assert not_listed["allowed"] is False


@requirement("policy.tools")
@pytest.mark.parametrize("host", ["inside.example.com", "inside.example.com.", "INSIDE.Example.com"])
async def test_policy_sees_the_host_in_normalized_form(guarded: World, host: str) -> None:
    network = {"allowlist": ["*.example.com"], "ports": [443]}
    agent = await guarded.register(
        sandbox_whitelist={"tools": [{"name": "web", "operations": ["get"]}], "network": network}
    )
    body = {"tool": "web", "operation": "get", "host": host, "port": 443}
    verdict = (await guarded.admin.post(f"/api/v1/registry/agents/{agent}/authorize", json=body)).json()
    assert (verdict["allowed"], "not the inside" in verdict["reason"]) == (False, True)
