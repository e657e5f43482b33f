"""Agents are registered and changed in forms; a change is a proposal with a patch and a diff."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from stentor.surfaces.dashboard.pages.agents.agent_editing import build_patch, describe_changes
from stentor.surfaces.dashboard.presenters.whitelist_form import EMPTY_WHITELIST, build_whitelist, read_fields
from tests.requirements import requirement
from tests.surfaces.dashboard.signed_in import Site, shown

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
        (
            {"kind": "http", "endpoint": "https://x.example.org/t", "repeat": "hold"},
            {"kind": "http", "endpoint": "https://x.example.org/t", "options": {"repeat": "hold"}},
        ),
    ],
    ids=["worker", "llm", "http", "http that holds"],
)
async def test_an_agent_is_registered_in_a_form(site: Site, fields: dict[str, Any], runtime: dict[str, Any]) -> None:
    answer = await site.send("/agents/new", name="ann", capabilities="a, b  c", tier="human", **fields)
    made = await agent(site, last_part(answer.headers["location"]))
    assert (made["name"], made["capabilities"], made["trust_tier"]) == ("ann", ["a", "b", "c"], "human")
    assert {name: value for name, value in made["runtime"].items() if value} == runtime
    assert "Agent registered." in await site.read(f"/agents/{made['agent_id']}", notice="registered")


@requirement("dashboard.page-agent-editing")
async def test_the_page_of_an_agent_names_another_one_whose_name_looks_the_same(site: Site) -> None:
    first, second = [
        last_part((await site.send("/agents/new", name=name)).headers["location"]) for name in ("ann", "\u0430nn")
    ]
    page = await site.read(f"/agents/{second}")
    assert (
        f'Another agent has the same name, or one that looks the same: <a class="mono" href="/agents/{first}">' in page
    )
    bob = last_part((await site.send("/agents/new", name="bob")).headers["location"])
    assert "looks the same" not in await site.read(f"/agents/{bob}")


@requirement("dashboard.page-agent-editing")
async def test_a_form_that_is_refused_says_why_and_keeps_what_was_typed(site: Site) -> None:
    page = (await site.send("/agents/new", 400, name="ann", kind="http", tier="human", capabilities="dig")).text
    assert "an http runtime needs an endpoint" in page
    assert 'value="dig"' in page
    await site.read("/agents/new", 403, key="WRITER")


@requirement("dashboard.page-agent-settings")
async def test_tier_key_and_scores_are_set_at_once_in_a_form_of_their_own(site: Site) -> None:
    ann = await site.world.register("ann", trust_tier="human", accuracy_score=0.25)
    page = await site.read(f"/agents/{ann}/edit")
    assert 'value="0.25"' in page
    assert "Each of its tasks waits until a person approves it." in page
    path = f"/agents/{ann}/settings"
    same = {"tier": "human", "key_name": "", "alignment": "0.5", "accuracy": "0.25", "efficiency": "0.5"}
    assert "Nothing is changed." in (await site.send(path, 400, **same, reason="none")).text
    refused = (await site.send(path, 400, **{**same, "tier": "auto", "key_name": "bob"})).text
    assert "reason: required to change the trust tier from human to auto" in refused
    assert re.search(r'name="tier" value="auto" checked', refused), "what was chosen stays"
    assert 'name="key_name" value="bob"' in refused
    assert "accuracy_score" in (await site.send(path, 400, **{**same, "accuracy": "often"})).text
    answer = await site.send(
        path, **{**same, "tier": "auto", "key_name": "Bob", "accuracy": "0.8"}, reason="It is safe."
    )
    assert answer.headers["location"] == f"/agents/{ann}?notice=edited"
    made = await agent(site, ann)
    assert (made["trust_tier"], made["key_name"], made["accuracy_score"]) == ("auto", "bob", 0.8)
    await site.send(path, tier="monitored")
    assert (await agent(site, ann))["key_name"] == "bob", "a field that was not sent stays"


@requirement("dashboard.page-agent-settings", "registry.edit-needs-another-person")
async def test_the_form_says_why_a_key_may_not_loosen_its_own_agent(site: Site) -> None:
    ann = await site.world.register("ann", trust_tier="human", key_name="admin")
    refused = await site.send(f"/agents/{ann}/settings", 403, tier="auto", reason="It is safe.")
    assert "use the key of another person" in refused.text.replace("&#39;", "'")
    assert (await agent(site, ann))["trust_tier"] == "human"
    await site.send(f"/agents/{ann}/settings", 403, key="WRITER", tier="human")


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
    where, _, query = answer.headers["location"].partition("?")
    update_id = last_part(where)
    assert query == "notice=proposed"
    assert (await agent(site, ann))["runtime"]["options"] == options, "nothing has changed yet"
    page = await site.read(f"/governance/updates/{update_id}")
    assert "Cite sources." in page
    assert "proposed an <b>agent</b> change" in page
    update = (await site.world.admin.get(f"/api/v1/governance/updates/{update_id}")).json()
    assert (update["changes"]["lines_added"], update["changes"]["lines_deleted"]) == (1, 1)
    assert update["changes"]["agent_patch"] == {"runtime": {"options": {"system_prompt": "Be brief.\nCite sources."}}}
    answer = await site.send(path, **fields | {"model": "nobody/has-it"}, description="Another model.")
    where, _, query = answer.headers["location"].partition("?")
    assert "No provider serves this model" in await site.read(where, **dict([query.split("=")]))


@requirement("dashboard.page-agent-editing", "execution.http-hold")
async def test_that_an_endpoint_is_not_called_twice_can_be_proposed_and_is_shown(site: Site) -> None:
    runtime = {"kind": "http", "endpoint": "https://x.example.org/t"}
    ann = await site.world.register("ann", runtime=runtime)
    path = f"/agents/{ann}/edit"
    assert "Nothing is changed." in (await site.send(path, 400, repeat="send", description="x")).text
    answer = await site.send(path, repeat="hold", description="It pays.")
    update_id = last_part(answer.headers["location"])
    update = (await site.world.admin.get(f"/api/v1/governance/updates/{update_id}")).json()
    assert update["changes"]["agent_patch"] == {"runtime": {"options": {"repeat": "hold"}}}
    bob = await site.world.register("bob", runtime=runtime | {"options": {"repeat": "hold"}})
    assert re.search(r"<dt>Repeat</dt><dd[^>]*>hold</dd>", await site.read(f"/agents/{bob}"))
    assert '<option value="hold" selected>' in await site.read(f"/agents/{bob}/edit")


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


@requirement("dashboard.page-agent-editing", "dashboard.forms-change-what-differs")
async def test_a_prompt_that_nobody_touched_is_not_changed(site: Site) -> None:
    options = {"system_prompt": f"\n  You are kind to api_key={SECRET}.\n"}
    ann = await site.world.register("ann", runtime={"kind": "llm", "options": options})
    path = f"/agents/{ann}/edit"
    page = await site.read(path)
    prompt = re.search(r'<textarea name="prompt"[^>]*>\n([^<]*)</textarea>', page)
    assert prompt
    fields = {"prompt": prompt[1], "model": "", **shown(page, path), "description": "It digs."}
    assert "Nothing is changed." in (await site.send(path, 400, **fields, capabilities="echo")).text
    answer = await site.send(path, **fields, capabilities="echo dig")
    update_id = last_part(answer.headers["location"])
    update = (await site.world.admin.get(f"/api/v1/governance/updates/{update_id}")).json()
    assert update["changes"]["agent_patch"] == {"capabilities": ["echo", "dig"]}


@requirement("dashboard.page-agent-settings", "dashboard.forms-change-what-differs")
async def test_a_form_of_an_agent_that_was_opened_earlier_undoes_no_change_of_somebody_else(site: Site) -> None:
    ann = await site.world.register("ann", trust_tier="auto", capabilities=["echo"])
    edit, settings, record = f"/agents/{ann}/edit", f"/agents/{ann}/settings", f"/api/v1/registry/agents/{ann}"
    page = await site.read(edit)
    changed = {"trust_tier": "human", "accuracy_score": 0.25}
    assert (await site.world.admin.patch(record, json=changed)).status_code == 200
    fields = {"tier": "auto", "key_name": "bob", "alignment": "0.5", "accuracy": "0.5", "efficiency": "0.5"}
    await site.send(settings, **fields, **shown(page, settings))
    made = await agent(site, ann)
    assert (made["trust_tier"], made["accuracy_score"], made["key_name"]) == ("human", 0.25, "bob")
    fields = {"capabilities": "dig", "hosts": "x.example", "description": "It must."}
    before = json.loads(shown(page, edit)["shown"]) | {"capabilities": "dig"}
    refused = await site.send(edit, 409, **fields, shown=json.dumps(before | {"hosts": "y.example"}))
    assert "Somebody else changed the allow-list" in refused.text
    answer = await site.send(edit, **fields, shown=json.dumps(before))
    update = (await site.world.admin.get(f"/api/v1/governance/updates/{last_part(answer.headers['location'])}")).json()
    assert list(update["changes"]["agent_patch"]) == ["sandbox_whitelist"]


@requirement("dashboard.page-agent-editing")
async def test_nobody_changes_an_agent_of_another_tenant_or_without_the_permission(site: Site) -> None:
    ann = await site.world.register("ann")
    await site.read(f"/agents/{ann}/edit", 404, key="OTHER")
    await site.send(f"/agents/{ann}/edit", 403, key="WRITER", capabilities="x", description="y")


@requirement("dashboard.page-agent-editing")
def test_a_patch_has_what_differs_and_an_emptied_field_is_removed() -> None:
    before = {"capabilities": "a", "endpoint": "", "model": "m", "prompt": "p"}
    assert build_patch(before, before | {"model": ""}, EMPTY_WHITELIST) == {"runtime": {"options": {"model": None}}}
    assert build_patch(before, before | {"endpoint": " https://x "}, EMPTY_WHITELIST) == {
        "runtime": {"endpoint": "https://x"}
    }
    assert build_patch(before, before | {"capabilities": "a b"}, EMPTY_WHITELIST) == {"capabilities": ["a", "b"]}
    changes = describe_changes("ann", before, before | {"prompt": "p\nq"}, EMPTY_WHITELIST)
    assert (changes["lines_added"], changes["lines_deleted"], changes["lines_total"]) == (1, 0, 3)
    one_more = describe_changes("ann", before | {"capabilities": "a, b"}, before | {"capabilities": "a, b, c"}, {})
    assert (one_more["lines_added"], one_more["lines_deleted"], one_more["lines_total"]) == (1, 0, 4)


@requirement("dashboard.page-agent-editing")
def test_a_prompt_of_which_every_line_is_reworded_is_compared_by_its_lines() -> None:
    old, new = ("\n".join(f"{number}. {words}" for number in range(900)) for words in ("Be kind.", "Be kinder."))
    before = {"capabilities": "a", "prompt": old}
    changes = describe_changes("ann", before, before | {"prompt": new}, EMPTY_WHITELIST)
    assert (changes["lines_added"], changes["lines_deleted"], changes["lines_total"]) == (900, 900, 901)


@requirement("dashboard.page-agent-editing")
async def test_what_a_new_agent_may_touch_is_said_in_the_form(site: Site) -> None:
    fields = {"tool-0-name": "read_file", "tool-0-operations": "read, list", "tool-0-paths": "notes/**\r\na, b.md"}
    fields |= {"tool-0-limit": "60", "tool-1-name": "", "tool-1-paths": "left/over", "hosts": "x.example.org"}
    fields |= {"ports": "443 8443", "tool-9-name": "crafted"}
    answer = await site.send("/agents/new", name="ann", kind="worker", tier="human", **fields)
    whitelist = (await agent(site, last_part(answer.headers["location"])))["sandbox_whitelist"]
    tool = {"name": "read_file", "operations": ["read", "list"], "paths": ["notes/**", "a, b.md"], "rate_limit": 60}
    assert whitelist == {"tools": [tool], "network": {"allowlist": ["x.example.org"], "ports": [443, 8443]}}
    page = (await site.send("/agents/new", 400, name="x", kind="worker", tier="human", ports="https")).text
    assert 'value="https"' in page


@requirement("dashboard.page-agent-editing")
async def test_a_change_of_the_whitelist_is_a_proposal_and_wider_rights_need_a_person(site: Site) -> None:
    tools = [{"name": "a,b", "operations": ["x y"], "paths": ["p"], "rate_limit": 0}, {"name": "shell"}]
    ann = await site.world.register("ann", sandbox_whitelist={"tools": tools})
    page = await site.read(f"/agents/{ann}/edit")
    assert 'name="tool-3-name"' in page
    fields = {"tool-1-name": "", "tool-2-name": "read_file", "tool-2-operations": "read"}
    answer = await site.send(f"/agents/{ann}/edit", description="Reads instead.", **fields)
    update_id = last_part(answer.headers["location"])
    update = (await site.world.admin.get(f"/api/v1/governance/updates/{update_id}")).json()
    assert update["tier"] == 3
    patched = update["changes"]["agent_patch"]["sandbox_whitelist"]
    assert [tool["name"] for tool in patched["tools"]] == ["a,b", "read_file"]
    assert patched["tools"][0]["operations"] == ["x y"], "an unchanged row stays exactly as it is"
    assert (await agent(site, ann))["sandbox_whitelist"]["tools"][1]["name"] == "shell", "nothing changes by itself"
    assert "Nothing is changed." in (await site.send(f"/agents/{ann}/edit", 400, description="?")).text
    bad = await site.send(f"/agents/{ann}/edit", 400, description="?", **{"tool-0-limit": "often"})
    assert 'value="often"' in bad.text


@requirement("dashboard.page-agent-editing")
def test_a_whitelist_that_is_read_into_fields_and_built_from_them_is_the_same() -> None:
    tools = [{"name": "a", "operations": ["r", "w"], "paths": ["x y/**", "z,"], "rate_limit": 3}]
    whitelist = {"tools": tools, "network": {"allowlist": ["h"], "ports": [1]}}
    fields = read_fields(whitelist)
    assert build_whitelist(fields, fields, whitelist) == whitelist
    assert build_whitelist({}, fields, EMPTY_WHITELIST) == whitelist
