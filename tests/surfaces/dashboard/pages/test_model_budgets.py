"""The pages on which admins set budgets, groups of models and fallbacks, as somebody without JavaScript sees them."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any
from urllib.parse import parse_qsl

import pytest

from stentor.core.clock import SECOND
from tests.conftest import MakeWorld
from tests.domains.llm.upstream import serving
from tests.requirements import requirement
from tests.surfaces.dashboard.pages.test_models import KEY, chat
from tests.surfaces.dashboard.signed_in import Site

PRICED = {"SERVICE_LLM_PRICES": "openai/sea-large=1000/2000", "SERVICE_LLM_RETRIES": "0"}


@pytest.fixture
async def site(make_world: MakeWorld, make_board: Any) -> AsyncIterator[Site]:
    async with serving() as upstream:
        environ = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": upstream.v1, **PRICED}
        environ |= {"SERVICE_LLM_BUDGETS": "key:*:tokens/day=36", "SERVICE_LLM_GROUPS": "slow=openai/sea-large*3"}
        made = Site(await make_board(await make_world(**environ)))
        yield made
        for browser in made.browsers.values():
            await browser.aclose()


async def set_budget(site: Site, status: int = 303, key: str = "ADMIN", **fields: str) -> str:
    form = {"who": "key:admin", "limit": "20", "unit": "usd", "period": "month", **fields}
    return (await site.send("/models/budgets", status, key=key, **form)).text


@requirement("dashboard.page-models")
async def test_budgets_show_what_is_spent_of_them(site: Site) -> None:
    assert "each key" in await site.read("/models/budgets")
    await chat(site.world)
    page = await site.read("/models/budgets")
    assert ("configured" in page, 'aria-label="50% used"' in page) == (True, True)
    await chat(site.world)
    assert 'class="n wrong">36<' in await site.part("/models/budgets")
    reader = await site.read("/models/budgets", key="READER")
    assert ("admin <span" in reader, 'name="limit"' in reader) == (False, False)


@requirement("dashboard.page-budgets")
async def test_a_budget_of_a_month_says_the_day_of_its_reset(site: Site) -> None:
    await set_budget(site)
    await set_budget(site, unit="tokens", period="day")
    now = datetime.fromtimestamp(site.world.clock.now() / SECOND, UTC)
    first = (now.replace(day=1) + timedelta(days=32)).replace(day=1)
    page = re.sub(r"<[^>]+>", "", await site.read("/models/budgets"))
    assert f"resets {first:%Y-%m-%d}" in page
    assert re.search(r"resets in \d+ (h|min|s)\b", page)


@requirement("dashboard.page-budgets")
async def test_a_budget_is_set_changed_and_removed_on_its_page(site: Site) -> None:
    agent = await site.world.register("ann")
    assert f'<option value="agent:{agent}" selected>ann<' in await site.read("/models/budgets", who=f"agent:{agent}")
    await set_budget(site, who=f"agent:{agent}", limit="0.5")
    await set_budget(site, who="tenant:default", limit="1000", unit="tokens", period="day")
    page = await site.read("/models/budgets")
    assert (">$0.50<" in page, "everybody" in page, "<div>admin<" in page) == (True, True, True)
    change = re.search(r'href="/models/budgets\?(who=agent[^"]+)#budget"', page)
    assert change is not None
    filled = await site.read("/models/budgets", **dict(parse_qsl(unescape(change[1]))))
    assert ('value="0.5"' in filled, f'value="agent:{agent}" selected' in filled) == (True, True)
    remove = re.search(rf'action="(/models/budgets/agent[^"]+{agent}[^"]+/remove)"', page)
    assert remove is not None
    await site.send(unescape(remove[1]))
    assert ">$0.50<" not in await site.read("/models/budgets")
    await site.send(unescape(remove[1]), 404)
    await site.send("/models/budgets/key%3A%2A%3Atokens%3Aday/remove", 409)  # of the settings


@requirement("dashboard.page-budgets", "llm.teams")
async def test_a_budget_of_a_team_is_set_on_the_page(site: Site) -> None:
    assert 'value="team:*"' not in await site.read("/models/budgets"), "there are no teams"
    for name, team in (("ann", "research"), ("old", "sales")):
        made = await site.world.admin.post("/api/v1/keys", json={"name": name, "role": "viewer", "team": team})
        assert made.status_code == 201, made.text
    await site.world.admin.post("/api/v1/keys/old/revoke")
    page = await site.read("/models/budgets")
    assert ('value="team:*"' in page, '<option value="team:research">research</option>' in page) == (True, True)
    assert "team:sales" not in page, "only a revoked key has it"
    await set_budget(site, who="team:research", limit="12")
    page = await site.read("/models/budgets")
    assert '<div>research<span class="faint under">team</span>' in page
    await set_budget(site, who="team:*", limit="3")
    assert "<div>each team</div>" in await site.read("/models/budgets")


@requirement("dashboard.page-budgets")
@pytest.mark.parametrize(
    "fields",
    [
        {"who": ""},
        {"who": "key:"},
        {"who": "agent:nobody"},
        {"who": "tenant:other"},
        {"who": "all:all"},
        {"who": "team:A team"},
        {"limit": "much"},
        {"limit": "-1"},
        {"limit": "nan"},
        {"limit": "9" * 400},
        {"limit": "1.5", "unit": "tokens"},
        {"unit": "euro"},
        {"period": "week"},
    ],
)
async def test_what_is_no_budget_is_told_above_the_form_with_what_was_typed(site: Site, fields: dict[str, str]) -> None:
    page = await set_budget(site, 404 if fields.get("who") == "agent:nobody" else 400, **fields)
    assert 'class="problem"' in page
    if fields.get("limit"):
        assert f'name="limit" value="{fields["limit"]}"' in page


@requirement("dashboard.page-budgets")
async def test_a_budget_in_dollars_warns_where_it_is_set_and_where_it_misses_calls(site: Site) -> None:
    assert "does not count calls of models without a known price" in await site.read("/models/budgets")
    await set_budget(site)
    assert "without a known price not counted" not in await site.read("/models/budgets")
    await chat(site.world, model="openai/sea-small")
    assert "1 call without a known price not counted" in await site.read("/models/budgets")


@requirement("dashboard.page-budgets")
async def test_only_admins_set_budgets_and_groups(site: Site) -> None:
    await set_budget(site, 403, key="READER")
    await site.send("/models/budgets/key%3Aadmin%3Ausd%3Amonth/remove", 403, key="READER")
    await site.send("/models/routes", 403, key="READER", kind="group", name="fast", models="openai/sea-large")
    assert 'action="/models/routes"' not in await site.read("/models/providers", key="READER")


@requirement("dashboard.page-budgets")
async def test_a_group_and_fallbacks_are_set_and_removed_on_the_page_of_the_providers(site: Site) -> None:
    assert "configured" in await site.read("/models/providers")
    await site.send("/models/routes", kind="group", name="fast", models="openai/sea-large*3, openai/sea-small")
    await chat(site.world, model="fast")
    await site.send("/models/routes", kind="fallbacks", name="openai/sea-large", models="openai/sea-small")
    page = await site.read("/models/providers")
    assert ("openai/sea-large*3" in page, "if it fails" in page) == (True, True)
    for name, models in (("", "openai/a"), ("fast", ""), ("fast", "nobody/x"), ("slow", "openai/a")):
        status = 404 if "nobody" in models else 409 if name == "slow" else 400
        refused = await site.send("/models/routes", status, kind="group", name=name, models=models)
        assert ('class="problem"' in refused.text, f'name="models" value="{models}"' in refused.text) == (True, True)
    await site.send("/models/routes/fallbacks%3Aopenai%2Fsea-large/remove")
    await site.send("/models/routes/group%3Afast/remove")
    await chat(site.world, 404, model="fast")
