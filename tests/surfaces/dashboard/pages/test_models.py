"""The pages of models and cost, as somebody without JavaScript sees them."""

from __future__ import annotations

import csv
import html
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from stentor.surfaces.dashboard.pages import downloads
from tests.conftest import MakeWorld, World
from tests.domains.llm.upstream import Upstream, serving, status
from tests.requirements import requirement
from tests.surfaces.dashboard.signed_in import Site

KEY = "canary-up-4e1f-secret"


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    async with serving() as made:
        yield made


@pytest.fixture
async def site(make_world: MakeWorld, make_board: Any, upstream: Upstream) -> Any:
    """A world with one provider of the operator, priced, and with budgets."""
    world = await make_world(
        OPENAI_API_KEY=KEY,
        OPENAI_BASE_URL=upstream.v1,
        SERVICE_LLM_RETRIES="0",
        SERVICE_LLM_PRICES="openai/sea-large=1000/2000,openai/sea-small=1/2",
        SERVICE_LLM_BUDGETS="key:*:tokens/day=36,agent:*:usd/month=1",
        SERVICE_OUTBOUND_ALLOW="127.0.0.1",
    )
    made = Site(await make_board(world))
    yield made
    for browser in made.browsers.values():
        await browser.aclose()


async def chat(world: World, status: int = 200, model: str = "openai/sea-large") -> None:
    body = {"messages": [{"role": "user", "content": "Why?"}], "model": model}
    answer = await world.admin.post("/api/v1/llm/chat", json=body)
    assert answer.status_code == status, answer.text


@requirement("dashboard.page-models")
async def test_usage_is_shown_by_day_provider_and_model(site: Site) -> None:
    assert "No model calls in this period" in await site.read("/models")
    await chat(site.world)
    page = await site.read("/models")
    assert "$0.0250" in page  # 11 tokens at 1,000 and 7 at 2,000 dollars a million
    assert "openai/sea-large" in page
    assert page.count('<rect class="value"') == 2 * 7
    assert '<a href="/models/calls?key=admin&amp;from=' in page
    assert "By key" not in await site.read("/models", key="READER")
    assert (await site.read("/models", days="30")).count('<rect class="value"') == 2 * 30
    assert (await site.read("/models", days="90")).count('<rect class="value"') == 2 * 90
    site.world.clock.advance(seconds=8 * 86_400)
    assert "No model calls in this period" in await site.part("/models", days="7")
    assert "openai/sea-large" in await site.part("/models", days="30")
    for wrong in ("0", "-7", "x", "7" * 5000, "٧"):
        assert "7 days" in await site.read("/models", days=wrong)


@requirement("dashboard.page-models", "llm.teams")
async def test_what_teams_spent_is_shown_to_admins(site: Site) -> None:
    made = await site.world.admin.post("/api/v1/keys", json={"name": "ann", "role": "operator", "team": "<b>"})
    assert made.status_code == 400
    made = await site.world.admin.post("/api/v1/keys", json={"name": "ann", "role": "operator", "team": "research"})
    await chat(site.world)
    assert "By team" not in await site.read("/models"), "no key of a team has called"
    body = {"model": "openai/sea-large", "messages": [{"role": "user", "content": "Hello"}]}
    headers = {"X-API-Key": made.json()["key"]}
    assert (await site.world.admin.post("/api/v1/llm/chat", json=body, headers=headers)).status_code == 200
    page = await site.read("/models")
    assert "<h2>By team</h2>" in page
    assert '<a href="/models/calls?team=research&amp;from=' in page
    calls = await site.part("/models/calls", team="research")
    assert calls.count("<tr data-row>") == 1
    (call,) = re.findall('href="(/models/calls/[^"?]+)"', calls)
    assert "key ann of team research" in await site.read(call)
    assert "Newest first" in await site.part("/models/calls", team="research", order="cost")
    assert "By team" not in await site.read("/models", key="READER")


@requirement("dashboard.page-models")
async def test_a_small_part_of_the_cost_is_not_shown_as_none(site: Site) -> None:
    for model in ("openai/sea-large", "openai/sea-small"):
        await chat(site.world, model=model)
    page = await site.read("/models")
    assert "under 1% of the cost" in page
    assert "0%" not in page.replace("100%", "")


@requirement("dashboard.page-models")
async def test_providers_show_health_models_and_whether_a_key_is_set_but_never_the_key(
    site: Site, upstream: Upstream
) -> None:
    await chat(site.world)
    page = await site.read("/models/providers")
    assert '<span class="n">1</span> call</div>' in page
    assert '<td data-label="Key"><div>set</div></td>' in page
    assert KEY not in page
    assert '<span class="status available">' in page
    assert "openai/sea-small" in page
    assert "$1,000.00" in page
    await chat(site.world)
    page = await site.part("/models/providers")
    assert "<html" not in page
    assert "<b>openai</b>" in page


@requirement("dashboard.page-models")
async def test_a_provider_is_registered_and_removed_and_its_key_shown_nowhere(site: Site, upstream: Upstream) -> None:
    fields: dict[str, Any] = {
        "provider": "acme",
        "apiKey": KEY,
        "baseUrl": upstream.v1,
        "default_model": "sea-small",
        "format": "",
    }
    answer = await site.send("/models/providers", **fields)
    assert answer.headers["location"] == "/models/providers?notice=saved"
    page = await site.read("/models/providers")
    assert KEY not in page
    assert "acme/sea-small" in page
    assert 'action="/models/providers/acme/remove"' in page
    assert 'action="/models/providers/openai/remove"' not in page
    await chat(site.world, model="acme/sea-small")
    assert upstream.asked[-1]["headers"]["authorization"] == f"Bearer {KEY}"
    assert (await site.send("/models/providers/acme/remove")).headers["location"].endswith("notice=removed")
    assert "acme/sea-small" not in await site.read("/models/providers")
    await site.send("/models/providers/acme/remove", 404)
    await site.send("/models/providers/openai/remove", 404)


@requirement("dashboard.page-models")
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"provider": "<b>"},
        {"provider": "acme"},
        {"provider": "acme", "baseUrl": "ftp://x"},
        {"provider": "acme", "baseUrl": "http://169.254.1.1/v1"},
        {"provider": "acme", "baseUrl": "https://a.example/v1", "format": "none"},
    ],
)
async def test_what_the_gateway_refuses_is_told_above_the_form_without_the_key(
    site: Site, fields: dict[str, Any]
) -> None:
    answer = await site.send("/models/providers", 400, **{**fields, "apiKey": KEY})
    assert 'class="problem"' in answer.text
    assert KEY not in answer.text
    assert re.search(r'type="password" name="apiKey" autocomplete="new-password"', answer.text)


@requirement("dashboard.page-models")
async def test_a_server_in_a_private_network_is_refused_with_the_setting_that_allows_it(site: Site) -> None:
    fields = {"provider": "vllm", "baseUrl": "http://10.0.0.5:8000/v1", "default_model": "m", "apiKey": KEY}
    page = (await site.send("/models/providers", 400, **fields)).text
    assert "add 10.0.0.5:8000 to SERVICE_OUTBOUND_ALLOW" in page
    assert "restart `stentor serve`" in page
    for field in ("provider", "baseUrl", "default_model"):
        assert f'name="{field}" value="{fields[field]}"' in page
    assert (KEY in page, "type it again" in page) == (False, True)


@requirement("dashboard.page-models")
async def test_a_readers_key_sees_usage_and_no_addresses_keys_or_buttons(site: Site, upstream: Upstream) -> None:
    await chat(site.world)
    assert "openai/sea-large" in await site.read("/models", key="READER")
    page = await site.read("/models/providers", key="READER")
    assert "<b>openai</b>" in page
    assert upstream.v1 not in page
    assert 'name="apiKey"' not in page
    await site.send("/models/providers", 403, key="READER", provider="acme", baseUrl=upstream.v1)
    await site.send("/models/providers/acme/remove", 403, key="READER")


@requirement("dashboard.page-models")
async def test_another_tenant_sees_nothing_of_this_ones_use(site: Site, upstream: Upstream) -> None:
    await chat(site.world)
    await site.send("/models/providers", provider="acme", baseUrl=upstream.v1)
    assert "No model calls in this period" in await site.read("/models", key="OTHER")
    page = await site.read("/models/providers", key="OTHER")
    assert "acme" not in page
    await site.send("/models/providers/acme/remove", 404, key="OTHER")


@requirement("dashboard.page-models")
async def test_failed_calls_of_the_last_hour_are_counted(site: Site, upstream: Upstream) -> None:
    from aiohttp import web

    async def broken(request: web.Request) -> web.Response:
        return web.Response(status=500, text="no")

    upstream.mood = upstream.list_mood = broken
    await chat(site.world, 502)
    page = await site.read("/models/providers")
    assert '<span class="status unavailable">' in page
    assert 'title="PROVIDER_ERROR 1">1 failed' in page
    site.world.clock.advance(seconds=3_700)
    assert "1 failed" not in await site.read("/models/providers")


@requirement("dashboard.page-calls")
async def test_calls_are_listed_filtered_and_one_is_shown(site: Site) -> None:
    empty = await site.read("/models/calls")
    assert "Point any OpenAI client" in empty
    assert '<a href="/models/providers">register a provider</a>' in empty
    await chat(site.world)
    page = await site.read("/models/calls")
    found = re.search(r'href="(/models/calls/[^"?]+)"', page)
    assert found
    assert "$0.0250" in page
    assert "No calls" in await site.part("/models/calls", outcome="failed")
    assert 'href="/models/calls.csv?outcome=ok" download' in await site.read("/models/calls", outcome="ok")
    assert found[1] in (await (await site.browser()).get("/models/calls?model=sea-large&key=admin")).text
    one = await site.read(found[1])
    assert "SERVICE_LLM_LOG_CONTENT=true" in one
    assert "$0.0250" in one
    await site.read(found[1], 404, key="WRITER")
    await site.read("/models/calls", 400, outcome="maybe")
    await site.read("/models/calls/nothing", 404)


@requirement("dashboard.page-calls")
async def test_failures_of_a_provider_lead_to_the_failed_calls(site: Site, upstream: Upstream) -> None:
    upstream.mood = status(500)
    await chat(site.world, 502)
    providers = await site.read("/models/providers")
    assert "/models/calls?outcome=failed&amp;provider=openai" in providers
    assert "provider error" in await site.read("/models/calls", outcome="failed", provider="openai")


@requirement("dashboard.page-calls")
async def test_kept_content_is_shown_as_text(make_world: MakeWorld, make_board: Any, upstream: Upstream) -> None:
    world = await make_world(OPENAI_API_KEY=KEY, OPENAI_BASE_URL=upstream.v1, SERVICE_LLM_LOG_CONTENT="1")
    site = Site(await make_board(world))
    body = {"messages": [{"role": "user", "content": "<script>alert(1)</script>"}], "model": "openai/sea-large"}
    assert (await world.admin.post("/api/v1/llm/chat", json=body)).status_code == 200
    call = (await world.admin.get("/api/v1/llm/calls")).json()["calls"][0]
    page = await site.read(f"/models/calls/{call['call_id']}")
    assert "&lt;script&gt;alert(1)" in page
    assert "<script>alert(1)" not in page
    assert "The sea" in page
    assert KEY not in page
    upstream.mood = status(400, {"error": {"message": "max_tokens is too large"}})
    assert (await world.admin.post("/api/v1/llm/chat", json=body)).status_code >= 400
    call = (await world.admin.get("/api/v1/llm/calls")).json()["calls"][0]
    page = await site.read(f"/models/calls/{call['call_id']}")
    assert "Error message" in page
    assert "max_tokens is too large" in page
    await (await site.browser()).aclose()


@requirement("dashboard.page-calls")
async def test_prompt_and_answer_are_shown_as_messages_and_deleted_by_an_admin(
    make_world: MakeWorld, make_board: Any, upstream: Upstream
) -> None:
    world = await make_world(OPENAI_API_KEY=KEY, OPENAI_BASE_URL=upstream.v1, SERVICE_LLM_LOG_CONTENT="1")
    site = Site(await make_board(world))
    upstream.tool = {"name": "look_up", "args": {"where": "sea"}}
    secret = "sk-" + "proj-Zq7x9Kd0mWn3Lp5Rt8Vb"
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"Why? {secret}"}]
    body = {"messages": messages, "model": "openai/sea-large"}
    assert (await world.clients["WRITER"].post("/api/v1/llm/chat", json=body)).status_code == 200
    path = f"/models/calls/{(await world.admin.get('/api/v1/llm/calls')).json()['calls'][0]['call_id']}"
    page = await site.read(path)
    assert "<b>system</b>" in page
    assert "Why? [redacted: api key]" in page
    assert "<code>look_up</code>" in page
    assert "Prompt and answer are deleted" in page
    assert secret not in page
    listed = await site.read("/models/calls")
    assert ">Why? [redacted: api key]</span>" in listed
    assert ">→ look_up()</span>" in listed
    assert "Be brief." not in listed
    assert "Why?" not in await site.read("/models/calls", key="WRITER")
    assert "delete-content" not in await site.read(path, key="WRITER")
    await site.send(f"{path}/delete-content", 403, key="WRITER")
    await site.send("/models/calls/delete-content", 400)
    assert (await site.send(f"{path}/delete-content")).headers["location"] == f"{path}?notice=content-deleted"
    page = await site.read(path)
    assert "Be brief." not in page
    assert "or have been deleted" in page
    assert "Why?" not in await site.read("/models/calls")
    await site.send("/models/calls/delete-content", before="2099-01-01")
    for browser in site.browsers.values():
        await browser.aclose()


@requirement("dashboard.task-waterfall", "dashboard.page-calls")
async def test_the_bar_of_a_call_opens_to_its_prompt_answer_tokens_and_cost(
    make_world: MakeWorld, make_board: Any, upstream: Upstream
) -> None:
    world = await make_world(OPENAI_API_KEY=KEY, OPENAI_BASE_URL=upstream.v1, SERVICE_LLM_LOG_CONTENT="1")
    site = Site(await make_board(world))
    agent, task_id = await world.register("ann"), await world.submit()
    await world.claim(agent)
    upstream.words = ["Because."]
    body = {"messages": [{"role": "user", "content": "Why is it so?"}], "model": "openai/sea-large"}
    answer = await world.admin.post("/api/v1/llm/chat", json=body, headers={"X-Task-Id": task_id})
    assert answer.status_code == 200, answer.text
    bar = re.search(r'hx-get="(/models/calls/[^"]+)" hx-trigger="intersect once"', await site.read(f"/tasks/{task_id}"))
    assert bar
    opened = await site.part(bar[1])
    for text in ("Why is it so?", "Because.", "<dt>Tokens</dt>", "<dt>Cost</dt>"):
        assert text in opened
    assert "<h1" not in opened
    # A key that may not read the call of another one sees in the bar what the activity of the task has.
    await site.read(bar[1], 404, key="READER")
    waterfall = (await site.read(f"/tasks/{task_id}", key="READER")).partition("<h2>Time</h2>")[2].partition("</ol>")[0]
    assert "input_tokens" in waterfall
    await (await site.browser()).aclose()


@requirement("dashboard.page-calls")
async def test_calls_are_filtered_by_day(site: Site) -> None:
    await chat(site.world)
    today = (await site.world.admin.get("/api/v1/llm/calls")).json()["calls"][0]["happened_at"][:10]
    address = "/models/calls/"
    assert address in await site.part("/models/calls", **{"from": today, "to": today})
    for days in ({"from": "2099-01-01"}, {"to": "2001-01-01"}):
        page = await site.part("/models/calls", **days)
        assert f'href="{address}' not in page
        assert "No calls" in page
    await site.read("/models/calls", 400, to="yesterday")


@requirement("dashboard.page-playground")
async def test_the_playground_asks_a_model_and_shows_answer_cost_and_record(site: Site) -> None:
    await site.world.register("ann", capabilities=["echo"])
    page = await site.read("/models/playground", model="openai/sea-large")
    for known in ("auto", "openai/sea-large", "agent:echo"):
        assert f'<option value="{known}">' in page
    fields = {"prompt": "Why?", "system": "Be brief.", "max_tokens": "9", "temperature": "0.5"}
    page = (await site.follow("/models/playground", model0="openai/sea-large", **fields)).text
    assert 'class="assistant wrong"' not in page
    assert "$0.0250" in page
    call = re.search(r'href="(/models/calls/[^"?]+)"', page)
    assert call
    assert "sea-large" in await site.read(call[1])


@requirement("dashboard.page-playground", "keys.models")
async def test_the_playground_offers_and_asks_only_models_that_the_key_may_call(site: Site) -> None:
    body = {"name": "dana", "role": "operator", "models": ["sea-small"]}
    secret = (await site.world.admin.post("/api/v1/keys", json=body)).json()["key"]
    await site.browser_of(secret, "dana")
    page = await site.read("/models/playground", key="dana")
    assert '<option value="openai/sea-small">' in page
    assert "sea-large" not in page
    page = (await site.follow("/models/playground", key="dana", model0="openai/sea-large", prompt="Why?")).text
    assert "may not use the model &#39;openai/sea-large&#39;. It may use: sea-small." in page
    page = (await site.follow("/models/playground", key="dana", model0="openai/sea-small", prompt="Why?")).text
    assert "may not use" not in page


@requirement("dashboard.page-playground")
async def test_the_playground_without_a_provider_says_how_to_get_one_and_what_answers_now(
    make_world: MakeWorld, make_board: Any
) -> None:
    site = Site(await make_board(await make_world()))
    await site.world.register("ann", capabilities=["echo"])
    page = await site.read("/models/playground")
    assert 'No provider lists a model yet: <a href="/models/providers">set one up</a>.' in page
    assert 'placeholder="agent:echo"' in page
    assert "set one up" not in await site.read("/models/playground", key="READER")


@requirement("dashboard.page-playground")
async def test_the_playground_leads_to_the_task_of_an_agent_that_did_not_answer(site: Site) -> None:
    await site.world.register("careful", trust_tier="human", capabilities=["ask"])
    page = (await site.follow("/models/playground", model0="agent:ask", prompt="May I?")).text
    assert "waits for the approval" in page
    task = re.search(r'<a href="(/tasks/[^"]+)">The task</a>', page)
    assert task
    assert "May I?" in await site.read(task[1])


@requirement("dashboard.page-playground")
async def test_the_playground_has_no_form_for_somebody_who_cannot_ask(site: Site) -> None:
    page = await site.read("/models/playground", key="READER")
    assert "this needs the permission <i>write</i>, which reader does not have" in page
    assert 'name="prompt"' not in page


def history_of(page: str, number: int = 0) -> str:
    """What the form sends back of a side's conversation."""
    found = re.search(rf'name="history{number}" value="([^"]*)"', page)
    assert found
    return html.unescape(found[1])


@requirement("dashboard.page-playground")
async def test_a_conversation_goes_on_with_the_answers_of_each_side(
    make_world: MakeWorld, make_board: Any, upstream: Upstream
) -> None:
    site = Site(await make_board(await make_world(OPENAI_API_KEY=KEY, OPENAI_BASE_URL=upstream.v1)))
    fields = {"model0": "openai/sea-large", "model1": "openai/sea-small", "system": "Be brief."}
    first = (await site.follow("/models/playground", prompt="Why <b>?", **fields)).text
    assert "Why &lt;b&gt;?" in first
    upstream.words = ["Because."]
    histories = {f"history{n}": history_of(first, n) for n in range(2)}
    fields["model1"] = "agent:nobody"
    second = (await site.follow("/models/playground", prompt="And why that?", **fields, **histories)).text
    (sent,) = [call["body"]["messages"] for call in upstream.asked if len(call["body"]["messages"]) > 2]
    assert [message["role"] for message in sent] == ["system", "user", "assistant", "user"]
    assert (sent[1]["content"], sent[3]["content"]) == ("Why <b>?", "And why that?")
    assert "Because." in second
    # Another model in the place of one begins anew, and an error is not a part of the conversation.
    turns = json.loads(history_of(second, 1))[1]
    assert (len(turns), turns[0]["error"] != "") == (1, True)
    await site.follow("/models/playground", prompt="Still?", **fields, history1=history_of(second, 1))
    for damaged in ("{", "[]", '["openai/sea-large", [{"prompt": 5}]]', "9" * 5000):
        await site.follow("/models/playground", prompt="Why?", model0="openai/sea-large", history0=damaged)
    await (await site.browser()).aclose()


@requirement("dashboard.page-playground")
async def test_a_reload_of_the_answers_asks_nobody_again(site: Site, upstream: Upstream) -> None:
    browser, fields = await site.browser(), {"prompt": "Why?", "model0": "openai/sea-large"}
    address = (await site.send("/models/playground", **fields)).headers["location"]
    asked = len(upstream.asked)
    pages = {history_of((await browser.get(address)).text) for _ in range(2)}
    assert (len(pages), json.loads(pages.pop())[1][0]["prompt"], len(upstream.asked)) == (1, "Why?", asked)
    assert "Next prompt" not in await site.read("/models/playground", conversation="of-an-earlier-session")


@requirement("dashboard.page-playground")
async def test_with_javascript_each_side_is_asked_by_a_request_of_its_own(site: Site, upstream: Upstream) -> None:
    browser, headers = await site.browser(), {"HX-Request": "true"}
    fields = {"csrf": await site.token("ADMIN"), "prompt": "Why?", "model0": "openai/sea-large", "model1": "auto"}
    before = len(upstream.asked)
    page = (await browser.post("/models/playground", data=fields, headers=headers)).text
    assert page.count('hx-post="/models/playground/answer"') == 2
    assert len(upstream.asked) == before
    side = {"number": "1", "target": "openai/sea-large", "history": "", "prompt": "Why?", "csrf": fields["csrf"]}
    answer = await browser.post("/models/playground/answer", data=side, headers=headers)
    assert (answer.status_code, answer.text.count("<section")) == (200, 1)
    assert 'name="history1"' in answer.text
    assert "$0.0250" in answer.text
    del side["csrf"]
    assert (await browser.post("/models/playground/answer", data=side)).status_code == 403


@requirement("dashboard.page-playground")
async def test_an_answer_that_fails_stands_beside_the_others_with_its_reason(site: Site, upstream: Upstream) -> None:
    fields = {"prompt": "Why?", "model0": "openai/sea-large", "model1": "nobody/at-all"}
    page = (await site.follow("/models/playground", **fields)).text
    assert page.count('class="assistant wrong"') == 1
    assert "nobody" in page
    wrong = {"prompt": "Why?", "model0": "openai/sea-large", "max_tokens": "many"}
    page = (await site.follow("/models/playground", **wrong)).text
    assert "max_tokens" in page
    await site.follow("/models/playground", key="READER", **fields)
    assert "Playground" not in await site.read("/models", key="READER")


@requirement("dashboard.downloads")
async def test_calls_are_downloaded_with_the_filters_of_the_list(site: Site) -> None:
    for model in ("openai/sea-large", "openai/sea-small"):
        await chat(site.world, model=model)

    async def rows(key: str = "ADMIN", **filters: str) -> list[dict[str, str]]:
        answer = await (await site.browser(key)).get("/models/calls.csv", params=filters)
        assert (answer.status_code, answer.headers["content-type"]) == (200, "text/csv; charset=utf-8")
        return list(csv.DictReader(answer.content.decode("utf-8-sig").splitlines()))

    found = await rows()
    assert [row["model"] for row in found] == ["sea-small", "sea-large"]
    assert (found[0]["cost_usd"], found[1]["cost_usd"]) == ("0.000025", "0.025")
    assert (found[0]["key"], found[0]["input_tokens"], found[0]["estimated"]) == ("admin", "11", "false")
    assert len(await rows(model="sea-small")) == 1
    assert await rows(outcome="failed") == []
    assert [row["model"] for row in await rows(order="cost")] == ["sea-large", "sea-small"]
    listed = await site.read("/models/calls", order="cost", outcome="ok")
    assert 'href="/models/calls.csv?outcome=ok&amp;order=cost" download' in listed
    assert f"Download up to {downloads.ROWS_PER_READ} as CSV" in listed, "in this order the gateway has no next page"
    assert await rows("READER") == [], "only admins read the calls of other keys"
