"""The pages of keys: a secret is seen once, and what a key may not do is not offered."""

from __future__ import annotations

import re

import pytest

from tests.requirements import requirement
from tests.surfaces.dashboard.signed_in import Site, shown

SECRET = re.compile(r"st_[A-Za-z0-9_-]{43}")


@requirement("dashboard.page-keys")
async def test_a_key_is_made_and_shown_once(site: Site) -> None:
    shown = await site.follow("/keys", name="dana", role="approver", description="<b>Support</b>", days="30")
    (secret,) = SECRET.findall(shown.text)
    assert (await site.world.admin.get("/api/v1/keys/dana")).json()["role"] == "approver"
    who = await site.world.admin.get("/api/v1/whoami", headers={"X-API-Key": secret})
    assert who.json()["name"] == "dana"
    # A reload of the page that has it neither creates another key nor shows this one again.
    for path in ("/keys", "/keys/dana", shown.request.url.raw_path.decode()):
        page = await site.read(path)
        assert secret not in page
        assert "&lt;b&gt;Support&lt;/b&gt;" in page
        assert re.search(r">20\d\d-\d\d-\d\d</time>", page), "the day, not a number of days"


@requirement("dashboard.page-keys")
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": "Dana", "role": "viewer"}, "name: must be 1 to 63 characters"),
        ({"name": "admin", "role": "viewer"}, "is a key of the environment"),
        ({"name": "dana", "role": "king"}, "role: "),
        ({"name": "dana", "role": "viewer", "budgets": "20 dollars"}, "budgets: "),
        ({"name": "dana", "role": "viewer", "models": "auto, gpt-5"}, "models: "),
        ({"name": "dana", "role": "viewer", "days": "soon"}, "expires_at: "),
    ],
)
async def test_what_is_wrong_with_a_key_is_shown_above_the_form(
    site: Site, fields: dict[str, str], message: str
) -> None:
    answer = await site.send("/keys", 400, **fields)
    assert message in answer.text
    assert f'name="name" value="{fields["name"]}"' in answer.text


@requirement("dashboard.page-keys", "keys.teams")
async def test_the_team_of_a_key_is_chosen_shown_and_suggested_for_others(site: Site) -> None:
    await site.follow("/keys", name="dana", role="viewer", days="0", team=" support ")
    assert (await site.world.admin.get("/api/v1/keys/dana")).json()["team"] == "support"
    page = await site.read("/keys")
    assert "team support" in page
    assert '<option value="support"></option>' in page
    await site.follow("/keys", name="eve", role="viewer", days="0")
    assert '<option value="support"></option>' in await site.read("/keys/eve")
    # A form that does not change the team, sent after somebody else has.
    shown = {"role": "viewer", "days": "keep", "shown": '{"role": "viewer", "description": "", "team": ""}'}
    await site.world.admin.patch("/api/v1/keys/eve", json={"team": "sales"})
    await site.send("/keys/eve", **shown, description="Eve", team="")
    record = (await site.world.admin.get("/api/v1/keys/eve")).json()
    assert (record["description"], record["team"]) == ("Eve", "sales")
    await site.send("/keys/dana", role="viewer", days="keep", team="")
    assert (await site.world.admin.get("/api/v1/keys/dana")).json()["team"] == ""
    refused = await site.send("/keys/dana", 400, role="viewer", days="keep", team="A team")
    assert "team: " in refused.text
    assert 'name="team" value="A team"' in refused.text


@requirement("dashboard.page-keys")
async def test_a_key_is_changed_rotated_and_revoked(site: Site) -> None:
    made = SECRET.findall((await site.follow("/keys", name="dana", role="viewer", days="0")).text)[0]
    changed = await site.send("/keys/dana", role="operator", days="keep", budgets="usd/month=20, tokens/day=1000")
    assert changed.headers["location"] == "/keys/dana?notice=saved"
    record = (await site.world.admin.get("/api/v1/keys/dana")).json()
    assert (record["role"], record["budgets"], record["expires_at"]) == (
        "operator",
        ["usd/month=20", "tokens/day=1000"],
        None,
    )
    assert "budget $20 a month, 1,000 tokens a day" in await site.read("/keys")
    rotated = SECRET.findall((await site.follow("/keys/dana/rotate")).text)[0]
    assert rotated != made
    taken = await site.send("/keys", 409, name="dana", role="viewer", days="0")
    assert "exists: rotate it, or use another name." in taken.text
    await site.send("/keys/dana/revoke")
    # Neither answer asks for what the other one refuses.
    again = await site.send("/keys", 409, name="dana", role="viewer", days="0")
    assert "use another." in again.text
    assert "rotate it" not in again.text
    page = await site.read("/keys/dana")
    assert "Rotate" not in page
    assert "by admin" in page
    assert "$20 a month, 1,000 tokens a day" in page
    assert "1 revoked" in await site.read("/keys")
    who = await site.world.admin.get("/api/v1/whoami", headers={"X-API-Key": rotated})
    assert who.status_code == 401


@requirement("dashboard.page-keys", "keys.models")
async def test_the_models_of_a_key_are_shown_and_changed(site: Site) -> None:
    await site.follow("/keys", name="dana", role="operator", models="openai/sea-s*, <b>fast</b>")
    assert (await site.world.admin.get("/api/v1/keys/dana")).json()["models"] == ["openai/sea-s*", "<b>fast</b>"]
    assert "models openai/sea-s*, &lt;b&gt;fast&lt;/b&gt;" in await site.read("/keys")
    page = await site.read("/keys/dana")
    assert "<dt>Models</dt><dd>openai/sea-s*, &lt;b&gt;fast&lt;/b&gt;</dd>" in page
    fields = {"role": "operator", "description": "", "memory": "", "days": "keep", "models": "openai/sea-s*"}
    await site.send("/keys/dana", **shown(page, "/keys/dana"), **fields)
    assert (await site.world.admin.get("/api/v1/keys/dana")).json()["models"] == ["openai/sea-s*"]
    assert 'name="models" value="openai/sea-s*"' in await site.read("/keys/dana")


@requirement("dashboard.page-keys", "dashboard.forms-change-what-differs")
async def test_saving_a_form_that_was_opened_earlier_undoes_no_change_of_somebody_else(site: Site) -> None:
    fields = {"role": "operator", "description": "Dana's", "budgets": "usd/day=9", "memory": "", "days": "keep"}
    await site.follow("/keys", **fields | {"name": "dana", "days": "0"})
    opened = shown(await site.read("/keys/dana"), "/keys/dana")
    cut = {"role": "viewer", "budgets": ["usd/day=1"], "memory": "shared:r"}
    assert (await site.world.admin.patch("/api/v1/keys/dana", json=cut)).status_code == 200
    await site.send("/keys/dana", **opened, **fields | {"description": "Dana's laptop"})
    record = (await site.world.admin.get("/api/v1/keys/dana")).json()
    assert {name: record[name] for name in (*cut, "description")} == cut | {"description": "Dana's laptop"}
    opened = shown(await site.read("/keys/dana"), "/keys/dana")
    await site.send("/keys/dana", **opened, **fields | {"memory": "shared:r"})
    record = (await site.world.admin.get("/api/v1/keys/dana")).json()
    assert (record["role"], record["budgets"], record["description"]) == ("operator", ["usd/day=9"], "Dana's")


@requirement("dashboard.page-keys", "dashboard.forms-change-what-differs")
async def test_a_refused_change_keeps_what_was_typed(site: Site) -> None:
    await site.follow("/keys", name="dana", role="viewer", days="0")
    opened = shown(await site.read("/keys/dana"), "/keys/dana")
    fields = {"role": "operator", "description": "new", "memory": "", "days": "30"}
    page = (await site.send("/keys/dana", 400, **opened, **fields, budgets="bad")).text
    for typed in ('value="operator" checked', 'name="description" value="new"', 'value="30" selected', 'value="bad"'):
        assert typed in page
    assert shown(page, "/keys/dana") == opened


@requirement("dashboard.page-keys")
async def test_keys_of_the_environment_are_listed_and_lead_nowhere(site: Site) -> None:
    page = await site.read("/keys")
    assert ">configured<" in page
    assert "limited to read" in page  # of a role that may do more
    assert "now (you)" in page
    assert 'href="/keys/reader"' not in page
    await site.read("/keys/reader", 409)


@requirement("dashboard.page-keys", "keys.roles")
async def test_an_approver_signs_in_and_decides_and_sees_no_more(site: Site) -> None:
    made = await site.world.admin.post("/api/v1/keys", json={"name": "dana", "role": "approver"})
    agent = await site.world.register("asks", trust_tier="human")
    task_id = await site.world.submit(agent_preference=agent)
    client = await site.browser_of(made.json()["key"])
    task = (await client.get(f"/tasks/{task_id}")).text
    assert f"/tasks/{task_id}/approve" in task
    assert f"/tasks/{task_id}/cancel" not in task
    token = re.search(r'name="csrf" value="([^"]+)"', task)
    assert token is not None
    assert (await client.post(f"/tasks/{task_id}/approve", data={"csrf": token[1]})).status_code == 303
    assert (await site.world.task(task_id))["status"] == "queued"
    assert (await client.get("/keys")).status_code == 403
