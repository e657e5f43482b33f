"""Agents are registered and changed in forms; a change is a proposal with a patch and a diff."""

from __future__ import annotations

import re
from typing import Any

import pytest

from stentor.surfaces.dashboard.pages.agent_editing import build_patch, describe_changes
from tests.requirements import requirement
from tests.surfaces.dashboard.signed_in import Site

SECRET = "sk-proj-7c1e7c1e7c1e7c1e7c1e"


async def agent(site: Site, agent_id: str) -> dict[str, Any]:
    return dict((await site.world.admin.get(f"/api/v1/registry/agents/{agent_id}")).json())


def last_part(location: str) -> str:
    return location.partition("?")[0].rpartition("/")[2]


@requirement("dashboard.page-agent-editing")
@pytest.mark.parametrize(
    ("fields", "runtime"),
    [
        ({"kind": "worker"}, {"kind": "worker"}),
        (
            {"kind": "llm", "model": "openai/gpt-5-mini", "prompt": "Be brief.", "endpoint": "https://x.example.org"},
            {"kind": "llm", "options": {"model": "openai/gpt-5-mini", "system_prompt": "Be brief."}},
        ),
        (
            {"kind": "http", "endpoint": "https://x.example.org/t", "prompt": "left over"},
            {"kind": "http", "endpoint": "https://x.example.org/t"},
        ),
    ],
    ids=["worker", "llm", "http"],
)
async def test_an_agent_is_registered_in_a_form(site: Site, fields: dict[str, Any], runtime: dict[str, Any]) -> None:
    answer = await site.send("/agents/new", name="ann", capabilities="a, b  c", tier="human", **fields)
    made = await agent(site, last_part(answer.headers["location"]))
    assert (made["name"], made["capabilities"], made["trust_tier"]) == ("ann", ["a", "b", "c"], "human")
    assert {name: value for name, value in made["runtime"].items() if value} == runtime
    assert "Agent registered." in await site.read(f"/agents/{made['agent_id']}", notice="registered")


@requirement("dashboard.page-agent-editing")
async def test_a_form_that_is_refused_says_why_and_keeps_what_was_typed(site: Site) -> None:
    page = (await site.send("/agents/new", 400, name="ann", kind="http", tier="human", capabilities="dig")).text
    assert "an http runtime needs an endpoint" in page
    assert 'value="dig"' in page
    await site.read("/agents/new", 403, key="WRITER")


@requirement("dashboard.page-agent-editing")
async def test_a_change_is_a_proposal_that_changes_nothing_by_itself(site: Site) -> None:
    options = {"model": "openai/gpt-5-mini", "system_prompt": "Be brief.\nCite."}
    ann = await site.world.register("ann", runtime={"kind": "llm", "options": options})
    path = f"/agents/{ann}/edit"
    assert "Be brief." in await site.read(path)
    fields: dict[str, Any] = {
        "capabilities": "echo",
        "model": "openai/gpt-5-mini",
        "prompt": "Be brief.\r\nCite sources.",
    }
    same = fields | {"prompt": "Be brief.\r\nCite."}
    assert "Nothing is changed." in (await site.send(path, 400, **same, description="x")).text
    assert "Say what changes" in (await site.send(path, 400, **fields, description=" ")).text
    answer = await site.send(path, **fields, description="It shall cite.")
    update_id = last_part(answer.headers["location"])
    assert (await agent(site, ann))["runtime"]["options"] == options, "nothing has changed yet"
    assert "Cite sources." in await site.read(f"/governance/updates/{update_id}")
    update = (await site.world.admin.get(f"/api/v1/governance/updates/{update_id}")).json()
    assert (update["changes"]["lines_added"], update["changes"]["lines_deleted"]) == (1, 1)
    assert update["changes"]["agent_patch"] == {"runtime": {"options": {"system_prompt": "Be brief.\nCite sources."}}}


@requirement("dashboard.page-agent-editing")
async def test_secrets_are_neither_shown_nor_overwritten(site: Site) -> None:
    prompt = f"Call with api_key={SECRET}."
    ann = await site.world.register("ann", runtime={"kind": "llm", "options": {"system_prompt": prompt}})
    page = await site.read(f"/agents/{ann}/edit")
    assert SECRET not in page
    masked = re.search(r'<textarea name="prompt"[^>]*>\n([^<]*)</textarea>', page)
    assert masked
    assert "[redacted]" in masked[1]
    fields: dict[str, Any] = {"capabilities": "echo", "model": "", "description": "Longer."}
    refused = await site.send(f"/agents/{ann}/edit", 400, prompt=masked[1] + " Be long.", **fields)
    assert "has [redacted] where a secret stands" in refused.text
    kept = await site.send(f"/agents/{ann}/edit", prompt=masked[1], **{**fields, "capabilities": "echo dig"})
    update_id = last_part(kept.headers["location"])
    update = (await site.world.admin.get(f"/api/v1/governance/updates/{update_id}")).json()
    assert update["changes"]["agent_patch"] == {"capabilities": ["echo", "dig"]}
    runtime = {"kind": "http", "endpoint": f"https://x.example.org/{SECRET}"}
    bob = await site.world.register("bob", capabilities=["x"], runtime=runtime)
    assert SECRET not in await site.read(f"/agents/{bob}/edit")


@requirement("dashboard.page-agent-editing")
async def test_nobody_changes_an_agent_of_another_tenant_or_without_the_permission(site: Site) -> None:
    ann = await site.world.register("ann")
    await site.read(f"/agents/{ann}/edit", 404, key="OTHER")
    await site.send(f"/agents/{ann}/edit", 403, key="WRITER", capabilities="x", description="y")


@requirement("dashboard.page-agent-editing")
def test_a_patch_has_what_differs_and_an_emptied_field_is_removed() -> None:
    before = {"capabilities": "a", "endpoint": "", "model": "m", "prompt": "p"}
    assert build_patch(before, before | {"model": ""}) == {"runtime": {"options": {"model": None}}}
    assert build_patch(before, before | {"endpoint": " https://x "}) == {"runtime": {"endpoint": "https://x"}}
    assert build_patch(before, before | {"capabilities": "a b"}) == {"capabilities": ["a", "b"]}
    changes = describe_changes("ann", before, before | {"prompt": "p\nq"})
    assert (changes["lines_added"], changes["lines_deleted"], changes["lines_total"]) == (1, 0, 3)
