"""The pages of agents, as somebody without JavaScript sees them."""

from __future__ import annotations

import html
import re
from typing import Any
from urllib.parse import parse_qsl

from stentor.core.clock import DAY
from stentor.core.db import Sql, Tx
from stentor.domains.llm import queries as llm_queries
from stentor.domains.llm import store as llm_store
from stentor.domains.llm.store import CallRow
from stentor.domains.tasks.reading import chart_queries
from tests.requirements import requirement
from tests.surfaces.dashboard.signed_in import Site

Query = dict[str, Any]
EVIL = '<script>alert("x")</script>'


def asked(query: str) -> Query:
    """The values of an address's query."""
    return dict(parse_qsl(query))


async def trust(site: Site, agent: str, score: float) -> None:
    answer = await site.world.admin.put(f"/api/v1/trust/{agent}", json={"score": score})
    assert answer.status_code == 200, answer.text


async def violate(site: Site, agent: str) -> None:
    answer = await site.world.admin.post(
        f"/api/v1/registry/agents/{agent}/authorize", json={"tool": "shell", "operation": "run"}
    )
    assert answer.status_code == 200, answer.text


async def record(site: Site, agent: str) -> dict[str, Any]:
    return dict((await site.world.admin.get(f"/api/v1/registry/agents/{agent}")).json())


def shown(page: str) -> list[str]:
    """Names of the agents in a list."""
    return [
        html.unescape(name) for name in re.findall(r"<tr data-row>\s*<td>(?:<input [^>]*> )?<a [^>]*>([^<]*)</a>", page)
    ]


@requirement("dashboard.page-agents")
async def test_the_list_shows_each_agent_with_its_standing(site: Site) -> None:
    ann = await site.world.register("ann", alignment_score=1, accuracy_score=0.5, efficiency_score=0.5)
    await site.world.register(EVIL, capabilities=["a<b"], trust_tier="human")
    await trust(site, ann, 0.876)
    await violate(site, ann)
    page = await site.read("/agents")
    assert shown(page) == ["ann", EVIL]
    assert EVIL not in page
    assert "a&lt;b" in page
    assert "0.88" in page
    assert page.count("unscored") == 1
    assert "1 violation<" in page
    assert "2 agents" in page


@requirement("dashboard.page-agents")
async def test_the_list_shows_what_each_agent_did_in_a_week_and_what_it_cost(site: Site) -> None:
    ann = await site.world.register("ann")
    await site.world.register("idle", capabilities=["rest"])
    for ok in (True, True, True, False):
        await site.world.do(ann, ok=ok)
    await site.world.submit()
    call = CallRow("c", "default", "admin", ann, None, "chat", "openai", "m", "ok", 1, 1, 0, 2_500_000_000, 1)
    await site.world.kernel.infra.db.write(lambda tx: llm_store.insert_call(tx, call))
    page = await site.read("/agents")
    assert 'aria-label="tasks by day: 0, 0, 0, 0, 0, 0, 5"' in page
    assert "75%" in page
    assert "$2.50" in page
    later = site.world.clock.now() + 8 * DAY
    read = site.world.kernel.infra.db.read
    assert await read(lambda tx: chart_queries.read_agent_results(tx, "default", later, 7)) == {}
    assert await read(lambda tx: llm_queries.read_agent_costs(tx, "default", later // DAY - 6)) == {}


@requirement("dashboard.page-agents")
async def test_the_list_is_filtered_by_each_of_its_filters(site: Site) -> None:
    ann = await site.world.register("Ann One", capabilities=["echo", "Echo2"])
    await site.world.register("bob", capabilities=["echo2"], trust_tier="human")
    for _ in range(3):
        await violate(site, ann)
    filters: list[tuple[Query, list[str]]] = [
        ({"status": "quarantined"}, ["Ann One"]),
        ({"status": "active"}, ["bob"]),
        ({"tier": "human"}, ["bob"]),
        ({"capability": "echo2"}, ["bob"]),
        ({"capability": "echo"}, ["Ann One"]),
        ({"q": "nn o"}, ["Ann One"]),
        ({"q": "%"}, []),
        ({"alert": "open"}, []),
        ({"status": "", "q": ""}, ["Ann One", "bob"]),
    ]
    for query, names in filters:
        assert shown(await site.part("/agents", **query)) == names, query
    assert "No agent matches" in await site.part("/agents", q="nobody")


@requirement("dashboard.page-agents")
async def test_an_agent_with_an_open_alert_is_found_and_says_so(site: Site) -> None:
    ann = await site.world.register("ann")
    await site.world.register("bob", capabilities=["other"])
    for n in range(50):
        await site.world.do(ann, ok=n % 2 == 0)
    assert shown(await site.part("/agents", alert="open")) == ["ann"]
    page = await site.read(f"/agents/{ann}")
    assert "results alternate" in page
    assert "98% of 50 outcomes" in page
    assert "25 successes among the last 50 outcomes" in page
    assert "50 of 50 entries" in page
    weights = await site.read("/agents/weights")
    assert re.search(r'<td class="h\d"[^>]*>\d\.\d\d</td>', weights)
    assert "bob" not in weights


@requirement("dashboard.page-agents")
async def test_the_pages_say_who_is_online_and_when_a_worker_was_seen(site: Site) -> None:
    ann = await site.world.register("ann")
    await site.world.register("bob")
    await site.world.admin.post(f"/api/v1/agents/{ann}/claims", json={})
    page = await site.read("/agents")
    assert page.count("online, seen <time") == 1
    assert page.count("not seen yet") == 1, "no program has worked as bob"
    site.world.clock.advance(seconds=120)
    page = await site.read("/agents", q="ann")
    assert "offline, seen <time" in page
    assert "2 min ago" in page
    assert "offline, seen <time" in await site.read(f"/agents/{ann}")


@requirement("dashboard.page-agents")
async def test_a_worker_of_before_the_last_start_is_not_said_to_be_new(site: Site) -> None:
    ann = await site.world.register("ann")
    await site.world.do(ann)
    site.world.kernel.agents.presence._seen.clear()  # as a start does
    site.world.clock.advance(seconds=120)
    for address in ("/agents", f"/agents/{ann}"):
        page = await site.read(address)
        assert "offline</span>" in page
        assert "not seen yet" not in page
        assert "No program has asked" not in page


@requirement("dashboard.page-agents")
async def test_many_agents_come_in_pages_of_fifty(site: Site) -> None:
    for n in range(53):
        await site.world.register(f"a{n:02}")
    page = await site.part("/agents", status="active")
    assert len(shown(page)) == 50
    following = re.search(r'hx-get="(/agents\?[^"]+)"', page)
    assert following
    assert "status=active" in following[1]
    path, _, query = html.unescape(following[1]).partition("?")
    rest = await site.part(path, **asked(query))
    assert shown(rest) == ["a50", "a51", "a52"]
    assert "Show more" not in rest
    assert "<table" not in rest
    empty = await site.read(path, **asked(query) | {"status": "suspended", "capability": "a&b"})
    assert "Nothing follows" in empty
    assert 'href="/agents?status=suspended&amp;capability=a%26b"' in empty, "with the filters"


@requirement("dashboard.page-agents")
async def test_a_heat_map_has_the_number_in_each_cell_and_a_legend(site: Site) -> None:
    assert "No weights yet" in await site.read("/agents/weights")
    ann, bob = await site.world.register("ann"), await site.world.register("bob", capabilities=["other"])
    await site.world.do(ann)

    def learn(tx: Tx) -> None:
        columns = "agent_id, task_type, weight, mean_ms, samples, recent, updated_at"
        sql = Sql(f"insert into hebbian_weights ({columns}) values (:agent, :type, :weight, 1, 9, 'S', :now)")
        tx.run(sql, agent=bob, type=EVIL, weight=0.01, now=tx.now)
        for n in range(12):
            tx.run(sql, agent=bob, type=f"t{n}", weight=1.5, now=tx.now)

    await site.world.kernel.infra.db.write(learn)
    page = await site.read("/agents/weights")
    assert EVIL not in page
    assert 'class="h0"' in page
    assert 'class="h9"' in page
    assert ">1.50</td>" in page
    assert "The 12 task types with most outcomes of 14" in page
    assert "from 0.01" in page


@requirement("dashboard.page-agents")
async def test_a_heat_map_of_many_agents_comes_in_pages_and_misses_nobody(site: Site) -> None:
    agents = [await site.world.register(f"a{n:02}") for n in range(54)]
    columns = "agent_id, task_type, weight, mean_ms, samples, recent, updated_at"
    sql = Sql(f"insert into hebbian_weights ({columns}) values (:agent, :type, 1.5, 1, :n, 'S', :now)")

    def learn(tx: Tx) -> None:
        tx.run(sql, agent=agents[0], type="rare", n=1, now=tx.now)
        for agent in agents[1:]:
            for n in range(12):
                tx.run(sql, agent=agent, type=f"t{n}", n=9, now=tx.now)

    await site.world.kernel.infra.db.write(learn)
    page = await site.read("/agents/weights")
    names = re.findall(r'<th scope="row"><a [^>]*>(a\d\d)</a>', page)
    assert names == [f"a{n:02}" for n in range(1, 51)]
    following = re.search(r'href="/agents/weights\?([^"]+)"', page)
    assert following
    rest = await site.read("/agents/weights", **asked(html.unescape(following[1])))
    assert re.findall(r'<th scope="row"><a [^>]*>(a\d\d)</a>', rest) == ["a51", "a52", "a53"]
    assert "More agents" not in rest


@requirement("dashboard.page-agents")
async def test_an_agent_shows_its_record_its_trust_and_what_it_did(site: Site) -> None:
    address = "https://critic.example.org/hook/T0K3N"
    runtime = {"kind": "http", "endpoint": address, "options": {"api_key": "sk-12345678"}}
    ann = await site.world.register(EVIL, runtime=runtime)
    bob = await site.world.register("bob", capabilities=["other"])
    await trust(site, ann, 0.8)
    site.world.clock.advance(seconds=3_600)
    await trust(site, ann, 0.6)
    await violate(site, ann)
    task_id = await site.world.submit()
    assert (await site.world.ended(task_id))["status"] == "failed", "nobody is at the address of the endpoint"
    body = {"agent1": ann, "agent2": bob, "delta": 0.25}
    await site.world.admin.put("/api/v1/trust/hebbian/weights", json=body)
    page = await site.read(f"/agents/{ann}")
    assert EVIL not in page
    for secret in ("T0K3N", "sk-12345678"):
        assert secret not in page
    assert "https://critic.example.org" in page
    assert "0.600" in page
    assert "level medium" in page
    assert re.findall(r'class="stroke trust" d="([^"]+)"', page) == ["M0.0 20.0 H600.0 V40.0 H600.0 V45.0"], (
        "a failure costs trust"
    )
    assert "-0.200" in page
    assert "unauthorized tool" in page
    assert f"/tasks/{task_id}" in page
    assert f"/tasks?agent={ann}" in page
    assert "1.250" in page
    assert f'href="/agents/{bob}"' in page
    part = await site.part(f"/agents/{ann}")
    assert "<form" not in part, "what is typed stays when the rest is brought up to date"


@requirement("dashboard.page-agents")
async def test_a_new_worker_is_told_how_to_start_and_a_quarantined_one_how_to_get_back(site: Site) -> None:
    ann = await site.world.register("ann", key_name="bob", trust_tier="human")
    page = await site.read(f"/agents/{ann}")
    assert "Next: start its program" in page
    assert "It works with the key <b>bob</b>" in page
    assert "Each of its tasks waits until a person approves it." in page
    assert "Clear violations" not in page
    for tool in ("shell", "files", "web"):
        call = {"tool": tool, "operation": "read", "path": "/etc/passwd"}
        await site.world.admin.post(f"/api/v1/registry/agents/{ann}/authorize", json=call)
    page = await site.read(f"/agents/{ann}")
    assert "<b>Quarantined: 3 violations.</b>" in page
    assert "Clear violations" in page
    assert "Next: start its program" not in page
    assert "The tool 'web' is not on the allow-list (read '/etc/passwd')." in html.unescape(page)


@requirement("dashboard.page-agents")
async def test_an_agent_without_trust_is_unscored(site: Site) -> None:
    ann = await site.world.register("ann")
    page = await site.read(f"/agents/{ann}")
    assert "unscored" in page
    assert "0.000" not in page
    assert "No trust score yet" in page
    events = Sql("select count(*) from events where event_type = 'trust_changed'")
    assert (await site.world.kernel.infra.db.read(lambda tx: tx.rows(events)))[0][0] == 0, "a look stores nothing"


@requirement("dashboard.page-agents")
async def test_the_card_is_the_text_that_the_dashboards_route_gives(site: Site) -> None:
    ann = await site.world.register("ann & co")
    page = await site.read(f"/agents/{ann}/card")
    found = re.search(r'<pre class="code aligned" tabindex="0">(.*?)</pre>', page, re.S)
    assert found
    answer = await site.board.http.get(f"/api/agents/{ann}/card")
    assert html.unescape(found[1]) == answer.text


@requirement("dashboard.page-agents")
async def test_an_agent_is_suspended_and_activated_through_the_gateway(site: Site) -> None:
    ann = await site.world.register("ann")
    assert (await site.send(f"/agents/{ann}/suspend", 400, reason="")).status_code == 400
    answer = await site.send(f"/agents/{ann}/suspend", reason=f"It sleeps. {EVIL}")
    assert answer.headers["location"] == f"/agents/{ann}?notice=suspended"
    assert (await record(site, ann))["status"] == "suspended"
    page = await site.read(f"/agents/{ann}", notice="suspended")
    assert "It sleeps." in page
    assert EVIL not in page
    assert "no new tasks are assigned" in page
    await site.send(f"/agents/{ann}/suspend", 409, reason="again")
    await site.send(f"/agents/{ann}/activate")
    assert (await record(site, ann))["status"] == "active"


@requirement("dashboard.page-agents")
async def test_violations_are_cleared_and_stay_in_sight(site: Site) -> None:
    ann = await site.world.register("ann")
    for _ in range(3):
        await violate(site, ann)
    assert "quarantined" in await site.read(f"/agents/{ann}")
    assert 'data-ask="Clear the violations' in await site.read(f"/agents/{ann}")
    await site.send(f"/agents/{ann}/clear-violations", 400, override_tier="none", rationale="x")
    await site.send(f"/agents/{ann}/clear-violations", override_tier="human", rationale="A mistake of the list.")
    found = await record(site, ann)
    assert (found["status"], found["violation_count"], found["trust_tier"]) == ("active", 0, "human")
    page = await site.read(f"/agents/{ann}")
    assert page.count("cleared") >= 3
    assert page.count("unauthorized tool") == 3


@requirement("dashboard.page-agents")
async def test_a_checkpoint_is_taken_and_shown(site: Site) -> None:
    ann = await site.world.register("ann")
    answer = await site.send(f"/agents/{ann}/checkpoints")
    address = answer.headers["location"]
    assert address.startswith("/governance/checkpoints/")
    path, _, query = address.partition("?")
    assert "Checkpoint created." in await site.read(path, **asked(query))


@requirement("dashboard.page-agents")
async def test_a_reader_sees_no_agent_and_changes_none(site: Site) -> None:
    ann = await site.world.register("ann")
    for path in ("/agents", "/agents/weights", f"/agents/{ann}", f"/agents/{ann}/card"):
        page = await site.read(path, 403, key="READER")
        assert "ann" not in shown(page)
        assert "Suspend" not in page
    await site.send(f"/agents/{ann}/suspend", 403, key="READER", reason="x")
    await site.send(f"/agents/{ann}/checkpoints", 403, key="READER")
    assert (await record(site, ann))["status"] == "active"


@requirement("dashboard.page-agents")
async def test_agents_of_another_tenant_are_not_there(site: Site) -> None:
    ann = await site.world.register("ann")
    await site.world.do(ann)
    assert "No agents yet" in await site.read("/agents", key="OTHER")
    assert "No weights yet" in await site.read("/agents/weights", key="OTHER")
    for path in (f"/agents/{ann}", f"/agents/{ann}/card"):
        await site.read(path, 404, key="OTHER")
    await site.send(f"/agents/{ann}/suspend", 404, key="OTHER", reason="x")


@requirement("dashboard.page-agents")
async def test_bad_input_is_told_and_never_breaks_a_page(site: Site) -> None:
    for query in (
        {"status": "gone"},
        {"tier": "7"},
        {"alert": "shut"},
        {"cursor": "%%%"},
        {"cursor": "WzEsMl0"},
        {"q": "a\0b"},
        {"capability": "a\0b"},
        {"capability": "x" * 300},
    ):
        await site.read("/agents", 400, **query)
    await site.read("/agents/weights", 400, cursor="zzz")
    for agent in ("none", "a%00b", "%F0%9F%90%99", "a%2Fb", "x" * 5000):
        page = await (await site.browser()).get(f"/agents/{agent}")
        assert page.status_code in (400, 404), agent
        card = await (await site.browser()).get(f"/agents/{agent}/card")
        assert card.status_code in (400, 404), agent


@requirement("dashboard.page-agents")
async def test_a_damaged_record_does_not_take_the_list_away(site: Site) -> None:
    ann = await site.world.register("ann")
    await site.world.register("bob")
    sql = Sql("update agents set capabilities = '{', runtime = '[]' where agent_id = :agent")
    await site.world.kernel.infra.db.write(lambda tx: tx.run(sql, agent=ann))
    page = await site.read("/agents")
    assert shown(page) == ["ann", "bob"]
    assert "cannot be read" in page


@requirement("dashboard.page-agents", "dashboard.page-tasks")
async def test_an_agents_key_with_admin_sees_no_button_that_it_may_not_use(site: Site) -> None:
    own = await site.world.register("own", trust_tier="human", capabilities=["own"])  # without a key: any such key's
    other = await site.world.register("other", key_name="bob", trust_tier="human", capabilities=["other"])
    for agent, expected in ((own, False), (other, True)):
        page = await site.read(f"/agents/{agent}", key="BOSS")
        assert f'action="/agents/{agent}/suspend"' in page
        assert (f'action="/agents/{agent}/archive"' in page) is expected
        assert f'action="/agents/{agent}/archive"' in await site.read(f"/agents/{agent}")
        form = f'action="/agents/{agent}/settings"'
        assert (form in await site.read(f"/agents/{agent}/edit", key="BOSS")) is expected
        assert form in await site.read(f"/agents/{agent}/edit")
        task_id = await site.world.submit(
            agent_preference=agent, required_capabilities=["own" if agent == own else "other"]
        )
        listed = await site.read(f"/tasks?agent={agent}", key="BOSS")
        assert ('name="action" value="approve"' in listed) is expected
        assert 'name="action" value="reject"' in listed
        page = await site.read(f"/tasks/{task_id}", key="BOSS")
        assert (f'action="/tasks/{task_id}/approve"' in page) is expected
        assert (await site.send(f"/tasks/{task_id}/approve", 303 if expected else 403, key="BOSS")).status_code
        if not expected:
            assert f'action="/tasks/{task_id}/approve"' in await site.read(f"/tasks/{task_id}")
            assert f'action="/tasks/{task_id}/reject"' in page
            await site.send(f"/tasks/{task_id}/reject", key="BOSS", reason="Too dear.")
    for path, form in (
        ("/keys", "/keys"),
        ("/models/budgets", "/models/budgets"),
        ("/models/providers", "/models/routes"),
    ):
        assert f'method="post" action="{form}"' in await site.read(path)
        assert f'method="post" action="{form}"' not in await site.read(path, key="BOSS")
