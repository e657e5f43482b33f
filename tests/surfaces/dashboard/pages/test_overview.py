"""The overview: counts, what waits, charts, components, alerts."""

from __future__ import annotations

import html
import json
import re

import pytest

from stentor.core.clock import SECOND
from stentor.domains.alerts import store as alert_store
from stentor.domains.alerts.model import Finding
from stentor.domains.llm import store as llm_store
from stentor.domains.llm.store import CallRow
from stentor.domains.tasks.reading import chart_queries
from stentor.surfaces.dashboard.pages.overview import overview
from stentor.surfaces.dashboard.site.page import PACKAGE_DIR
from tests.conftest import KEYS
from tests.requirements import requirement
from tests.surfaces.dashboard.signed_in import Site, shown

CALL = CallRow("c", "default", "admin", None, None, "chat", "openai", "m", "ok", 1, 1, 0, None, 1)


@requirement("dashboard.page-overview")
async def test_the_overview_counts_tasks_and_names_what_waits_for_a_human(site: Site) -> None:
    agent = await site.world.register("ann")
    await site.world.do(agent)
    await site.world.do(agent, ok=False)
    page = await site.read("/")
    assert "Nothing needs your attention." in page
    assert "All tasks, by status" in page
    assert '<a href="/provenance">provenance</a>' in page
    assert "numbered" not in page
    assert '<span class="n">1</span><span class="status completed">' in page
    assert '<span class="n">1</span><span class="status failed">' in page
    careful = await site.world.register("bea", trust_tier="human", capabilities=["careful"])
    await site.world.submit(required_capabilities=["careful"], agent_preference=careful)
    assert "task to approve" in await site.part("/")
    assert "to approve" not in await site.read("/", key="OTHER")
    reader = await site.read("/", key="READER")
    assert "Nothing needs your attention." in reader, "what others have to do is none of a reader's"
    assert '<a href="/agents">agents</a>' in await site.read("/")
    assert '<a href="/agents">agents</a>' not in reader, "a page that would refuse it"


@requirement("dashboard.page-overview")
@pytest.mark.parametrize("chosen", ["1h", "24h", "7d", "nonsense"])
async def test_the_charts_get_columns_of_one_length(site: Site, chosen: str) -> None:
    agent = await site.world.register("ann")
    await site.world.do(agent)
    await site.world.do(agent, ok=False)
    answer = await (await site.browser()).get("/series", params={"range": chosen})
    found = answer.json()
    n = len(found["times"])
    assert n == {"1h": 60, "24h": 24, "7d": 28, "nonsense": 60}[chosen]
    assert {name: sum(values) for name, values in found["outcomes"].items()} == {"completed": 1, "failed": 1}
    columns = [*found["outcomes"].values(), *found["durations"].values(), *found["cost"].values()]
    assert {len(values) for values in columns} == {n}
    assert [one for one in found["durations"]["p50"] if one is not None]


@requirement("dashboard.page-overview")
async def test_percentiles_of_very_many_tasks_are_those_of_a_sample_over_all_of_the_time(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chart_queries, "MAX_SAMPLED_TASKS", 4)  # of eight tasks every third microsecond
    agent = await site.world.register("ann")
    for _ in range(8):
        await site.world.do(agent)
        site.world.clock.advance(seconds=300.000_001)
    found = (await (await site.browser()).get("/series")).json()
    assert sum(found["outcomes"]["completed"]) == 8
    times = [n for n, one in enumerate(found["durations"]["p50"]) if one is not None]
    assert len(times) in (2, 3)
    assert times[-1] - times[0] >= 15


@requirement("dashboard.page-overview")
def test_the_chart_of_tasks_has_each_status_in_a_colour_of_its_own() -> None:
    static = PACKAGE_DIR / "static"
    states = re.search(r"const STATES = (\[[^]]*\])", (static / "charts.js").read_text())
    assert states
    assert sorted(json.loads(states[1])) == sorted(overview.TASK_STATUSES)
    colours = re.findall(r"--chart-(\w+): (#\w+)", (static / "css" / "tokens.css").read_text())
    assert {name for name, _ in colours} == set(overview.TASK_STATUSES)
    assert len({colour for _, colour in colours}) == len(colours)


@requirement("alerts.page", "alerts.thresholds")
async def test_a_key_that_becomes_one_of_an_agent_gets_the_page_without_thresholds(site: Site) -> None:
    made = (await site.world.admin.post("/api/v1/keys", json={"name": "dana", "role": "operator"})).json()
    browser = await site.browser_of(made["key"], "dana")
    assert 'id="thresholds"' in (await browser.get("/alerts")).text
    await site.world.admin.patch("/api/v1/keys/dana", json={"role": "agent"})
    # The session ends when the dashboard asks for the key again, some seconds later.
    page = await browser.get("/alerts")
    assert page.status_code in (200, 303), page.text
    assert 'id="thresholds"' not in page.text


@requirement("alerts.page", "alerts.thresholds")
async def test_thresholds_are_shown_changed_and_reset_on_the_page(site: Site) -> None:
    await site.world.do(await site.world.register())  # before the first task the overview has only the first steps
    page = await site.read("/alerts")
    assert "<dt>Waiting task, offline worker</dt><dd>5&nbsp;minutes</dd>" in page
    assert "Reset to the defaults" not in page
    opened = shown(page, "/alerts/thresholds")
    fields = {"failure_percent": "50", "wait_minutes": "1.5", "budget_percent": " 80 "}
    answer = await site.send("/alerts/thresholds", **opened, **fields)
    assert answer.headers["location"] == "/alerts?notice=thresholds-set"
    limits = (await site.world.admin.get("/api/v1/alerts/thresholds")).json()
    assert (limits["wait_seconds"], limits["changed"]) == (90.0, ["wait_seconds"])
    page = await site.read("/alerts")
    assert '1.5&nbsp;minutes <span class="faint">(default 5&nbsp;minutes)</span>' in page
    assert "after 1.5 minutes" in page
    # A page that was opened before undoes nothing; an empty field is the default.
    await site.send("/alerts/thresholds", **opened, **fields | {"wait_minutes": "5", "failure_percent": "0"})
    page = await site.read("/alerts")
    assert '<dt>Failed tasks of an agent</dt><dd>off <span class="faint">(default 50%)</span>' in page
    assert "1.5&nbsp;minutes" in page
    for path in ("/", "/audit"):
        assert "Thresholds of alerts set: failure_percent to 0" in (await site.read(path)).replace("<wbr>", "")
    await site.send("/alerts/thresholds", **shown(page, "/alerts/thresholds"), **fields | {"failure_percent": ""})
    assert (await site.world.admin.get("/api/v1/alerts/thresholds")).json()["changed"] == ["wait_seconds"]
    await site.send("/alerts/thresholds/reset")
    assert (await site.world.admin.get("/api/v1/alerts/thresholds")).json()["changed"] == []


@requirement("alerts.page", "alerts.thresholds")
@pytest.mark.parametrize("value", ["101", "soon", "nan", "-1", "1e999", "<b>", "1_0"])
async def test_a_refused_threshold_keeps_what_was_typed(site: Site, value: str) -> None:
    opened = shown(await site.read("/alerts"), "/alerts/thresholds")
    fields = {"failure_percent": value, "wait_minutes": "7", "budget_percent": "80"}
    page = (await site.send("/alerts/thresholds", 400, **opened, **fields)).text
    assert "Failed tasks of an agent: " in page
    assert f'name="failure_percent" value="{html.escape(value)}"' in page
    assert 'name="wait_minutes" value="7"' in page
    assert shown(page, "/alerts/thresholds") == opened


@requirement("alerts.thresholds")
async def test_thresholds_are_changed_by_admins_only(site: Site) -> None:
    page = await site.read("/alerts", key="READER")
    assert "<dd>5&nbsp;minutes</dd>" in page
    assert "Change the thresholds" not in page
    await site.send("/alerts/thresholds", 403, key="READER", wait_minutes="0")
    await site.send("/alerts/thresholds/reset", 403, key="READER")


@requirement("alerts.page")
async def test_what_is_wrong_comes_before_the_first_steps_of_a_new_installation(site: Site) -> None:
    def order(page: str) -> list[str]:
        return re.findall(">(First steps|Needs your attention)<", page)

    assert order(await site.read("/")) == ["First steps", "Needs your attention"]
    agent = await site.world.register("ann", trust_tier="human")
    await site.world.submit(agent_preference=agent)
    assert order(await site.read("/")) == ["Needs your attention", "First steps"]


@requirement("alerts.page")
async def test_a_member_of_a_team_sees_that_its_budget_is_spent(site: Site) -> None:
    made = {"name": "member", "role": "viewer", "team": "support"}
    key = (await site.world.admin.post("/api/v1/keys", json=made)).json()["key"]
    findings = [
        Finding("default", "budget", f"team:{team}:usd/day", "critical", f"The team {team} has spent all.")
        for team in ("support", "sales")
    ]

    async def find(_: object) -> list[Finding]:
        return findings

    site.world.kernel.alerts.add_check(find)
    await site.world.kernel.alerts.check()
    browser = await site.browser_of(key)
    for path in ("/", "/alerts"):
        page = (await browser.get(path)).text
        assert "The team support has spent all." in page
        assert "The team sales" not in page


@requirement("alerts.page")
async def test_what_is_wrong_is_on_the_overview_and_on_its_page_until_it_is_over(site: Site) -> None:
    agent = await site.world.register("ann")
    assert "No open alerts." in await site.read("/")
    task_id = await site.world.submit()
    site.world.clock.advance(seconds=600)
    await site.world.kernel.alerts.check()
    text = "1 task waits in the queue, for 10 minutes."
    for path in ("/", "/alerts"):
        assert f'<a href="/tasks?status=queued">{text}</a>' in await site.read(path)
        assert text not in await site.read(path, key="OTHER")
    await site.world.admin.post(f"/api/v1/tasks/{task_id}/cancel")
    for seconds in (0, 60):
        site.world.clock.advance(seconds=seconds)
        await site.world.kernel.alerts.check()
    page = await site.read("/")
    assert f'<a href="/tasks?status=queued">{text}</a>' not in page
    assert f">Resolved: {text}</a>" in page
    assert "Resolved alerts" in (page := await site.read("/alerts"))
    assert text in page
    for _ in range(5):
        await site.world.do(agent, ok=False)
    await site.world.kernel.alerts.check()
    assert f'<a href="/agents/{agent}">ann failed 5 of its last 5 tasks' in await site.read("/alerts")


@requirement("alerts.page", "dashboard.overview-changes")
async def test_an_alert_of_an_agent_leads_readers_to_no_page_that_refuses_them(site: Site) -> None:
    agent = await site.world.register("ann")
    for _ in range(5):
        await site.world.do(agent, ok=False)
    await site.world.kernel.alerts.check()
    for path in ("/", "/alerts"):
        page = await site.read(path, key="READER")
        assert '<a href="/tasks?status=failed">ann failed 5 of its last 5 tasks' in page
        assert f'"/agents/{agent}"' not in page


@requirement("alerts.page")
async def test_offline_agents_are_one_row_and_hide_no_critical_alert(site: Site) -> None:
    db = site.world.kernel.infra.db
    urgent = Finding("default", "budget", "key:admin:usd/day used up", "critical", "No call is possible.")
    await db.write(lambda tx: alert_store.insert(tx, urgent))
    site.world.clock.advance(seconds=1)
    offline = [Finding("default", "agent_offline", f"a{n}", "warning", f"a{n} is offline.", f"a{n}") for n in range(8)]
    await db.write(lambda tx: [alert_store.insert(tx, finding) for finding in offline])
    for path in ("/", "/alerts"):
        page = await site.read(path)
        assert page.index("No call is possible.") < page.index("8 agents are offline")
        assert '<a href="/agents/a7">a7 is offline.</a>' in page
        assert "More alerts" not in page


@requirement("alerts.page")
async def test_more_offline_agents_than_a_page_lists_hide_no_critical_alert(site: Site) -> None:
    urgent = Finding("default", "budget", "key:admin:usd/day used up", "critical", "No call is possible.")
    findings = [
        Finding("default", "agent_offline", f"a{n}", "warning", f"a{n} is offline.", f"a{n}") for n in range(120)
    ]
    await site.world.kernel.infra.db.write(lambda tx: alert_store.insert(tx, urgent))
    site.world.clock.advance(seconds=1)
    await site.world.kernel.infra.db.write(lambda tx: [alert_store.insert(tx, finding) for finding in findings])
    for path in ("/", "/alerts"):
        page = await site.read(path)
        assert page.index("No call is possible.") < page.index("99+ agents are offline")


@requirement("alerts.page")
async def test_alerts_that_somebody_may_not_see_hide_no_others(site: Site) -> None:
    await site.world.register("ann")
    await site.world.submit()
    site.world.clock.advance(seconds=600)
    await site.world.kernel.alerts.check()
    site.world.clock.advance(seconds=1)
    spent = [Finding("default", "budget", f"key:k{n}:usd:day", "warning", f"k{n} spent") for n in range(7)]
    await site.world.kernel.infra.db.write(lambda tx: [alert_store.insert(tx, finding) for finding in spent])
    overview = await site.read("/")
    assert "k6 spent" in overview
    assert overview.count("opened <time") == 6
    assert '<a href="/alerts">More alerts</a>' in overview
    page = await site.read("/", key="READER")
    assert '<a href="/tasks?status=queued">1 task waits' in page
    assert "spent" not in page
    assert "More alerts" not in page


@requirement("alerts.page")
async def test_a_test_of_emails_says_what_is_missing_and_only_admins_see_it(site: Site) -> None:
    assert "SERVICE_SMTP_URL" in (await site.send("/alerts/test", 409)).text
    assert "Send a test" not in await site.read("/alerts", key="READER")


@requirement("dashboard.page-overview")
async def test_alerts_without_a_metrics_backend_say_how_to_get_one(site: Site) -> None:
    assert "SERVICE_METRICS_URL" in await site.part("/alerts/prometheus")


@requirement("dashboard.page-overview")
async def test_a_reader_sees_the_overview_and_another_tenant_nothing_of_it(site: Site) -> None:
    agent = await site.world.register("ann")
    await site.world.do(agent)
    assert '<span class="n">1</span>' in await site.read("/", key="READER")
    assert '<span class="n">1</span>' not in await site.read("/", key="OTHER")


@requirement("dashboard.first-steps")
async def test_the_first_steps_tick_themselves_off(site: Site) -> None:
    page = await site.read("/")
    assert page.count('<span class="tick" aria-hidden="true"></span>') == 5
    assert "stentor task submit" in page
    assert 'class="tiles"' not in page
    assert "data-series" not in page
    agent = await site.world.register("ann")
    task_id = await site.world.do(agent)
    page = await site.read("/")
    assert page.count('class="done"') == 2
    assert 'class="tiles"' in page
    await site.world.admin.post(f"/api/v1/tasks/{task_id}/grade", json={"grade": 1})
    await site.world.admin.post("/api/v1/keys", json={"name": "worker", "role": "agent"})
    assert (await site.part("/")).count('class="done"') == 3, "the key of a worker is not one of a colleague"
    await site.world.admin.post("/api/v1/keys", json={"name": "dana", "role": "viewer"})
    assert (await site.part("/")).count('class="done"') == 4
    await site.world.kernel.infra.db.write(lambda tx: llm_store.insert_call(tx, CALL))
    assert "First steps" not in await site.read("/")


@requirement("dashboard.first-steps")
async def test_the_first_steps_can_be_hidden_and_are_for_admins(site: Site) -> None:
    assert "First steps" not in await site.read("/", key="READER")
    assert "First steps" in await site.read("/")
    await site.send("/first-steps/hide")
    page = await site.read("/")
    assert "First steps" not in page
    assert 'class="tiles"' in page


def _changed(page: str) -> str:
    """The part of the page about what changed, as text."""
    part = page.partition("What changed")[2].partition("</section>")[0]
    return " ".join(re.sub("<[^>]+>", " ", part).split())


@requirement("dashboard.overview-changes")
async def test_what_changed_lately_is_a_line_with_a_link_and_what_is_old_is_not(site: Site) -> None:
    agent = await site.world.register("ann")
    await site.world.do(agent)
    # Suspended at the end, so that it is no alert and no change that it is offline a day later.
    for status in ("suspend", "activate", "suspend"):
        answer = await site.world.admin.post(f"/api/v1/registry/agents/{agent}/{status}", json={"reason": "tried"})
        assert answer.status_code == 200, answer.text
    await site.world.admin.post("/api/v1/keys", json={"name": "dana", "role": "viewer"})
    await site.world.admin.post("/api/v1/keys/dana/revoke")
    budget = {"kind": "agent", "subject": agent, "unit": "usd", "period": "day", "limit": 2}
    await site.world.admin.post("/api/v1/llm/budgets", json=budget)
    page = await site.read("/")
    for url, text in (
        (f"/agents/{agent}", "ann is new"),
        (f"/agents/{agent}", "ann was suspended"),
        ("/keys/dana", "dana was created by admin"),
        ("/keys/dana", "dana was revoked by admin"),
        ("/models/budgets", "agent ann set to $2.00 a day by admin"),
    ):
        assert f'<a href="{url}">{text}</a>' in page
    assert "ann was suspended 2 times" in _changed(page)
    assert _changed(page).index("revoked") < _changed(page).index("is new"), "the latest is first"
    site.world.clock.advance(seconds=25 * 3600)
    assert "Nothing changed." in _changed(await site.read("/"))


@requirement("dashboard.overview-changes")
async def test_at_most_ten_changes_are_listed_and_the_others_counted(site: Site) -> None:
    agent = await site.world.register("ann")
    await site.world.do(agent)
    for n in range(12):
        await site.world.register(f"a{n}", capabilities=["other"])
    page = await site.read("/")
    assert page.count('class="kind faint"') == 10
    assert "3 more on the page Audit" in _changed(page)


@requirement("dashboard.overview-changes")
async def test_agents_that_went_offline_are_one_change_and_hide_no_other(site: Site) -> None:
    await site.world.do(await site.world.register("ann"))
    db = site.world.kernel.infra.db
    full = Finding("default", "budget", "key:admin:usd/day used up", "critical", "No call is possible.")
    await db.write(lambda tx: alert_store.insert(tx, full))
    site.world.clock.advance(seconds=1)
    found = [Finding("default", "agent_offline", f"a{n}", "warning", f"a{n} is offline.", f"a{n}") for n in range(60)]
    ids = await db.write(lambda tx: [alert_store.insert(tx, finding) for finding in found[:2]])
    assert "Opened: a0 is offline." in _changed(await site.read("/"))
    ids += await db.write(lambda tx: [alert_store.insert(tx, finding) for finding in found[2:5]])
    page = await site.read("/")
    assert '<a href="/alerts">Opened: 5 agents are offline</a>' in page
    assert "a0 is offline" not in _changed(page)
    await db.write(lambda tx: [alert_store.resolve(tx, alert_id) for alert_id in ids])
    assert "Resolved: 5 agents were offline" in _changed(await site.read("/"))
    await db.write(lambda tx: [alert_store.insert(tx, finding) for finding in found[5:]])
    changed = _changed(await site.read("/"))
    assert "Opened: No call is possible." in changed
    assert "Opened: 49+ agents are offline" in changed, "55 are, but only so many are read"


@requirement("dashboard.overview-changes")
async def test_somebody_sees_the_changes_whose_pages_they_may_open(site: Site) -> None:
    agent = await site.world.register("ann")
    await site.world.do(agent)
    await site.world.admin.post("/api/v1/keys", json={"name": "dana", "role": "viewer"})
    for _ in range(5):
        await site.world.do(agent, ok=False)
    await site.world.kernel.alerts.check()
    changed = _changed(await site.read("/", key="READER"))
    assert "Opened: ann failed 5 of its last 6 tasks" in changed
    assert "dana" not in changed
    assert "is new" not in changed
    assert "audit" not in changed
    assert "ann" not in await site.read("/", key="OTHER")


@requirement("dashboard.overview-changes")
async def test_after_a_longer_absence_the_changes_since_the_last_visit_are_listed(site: Site) -> None:
    agent = await site.world.register("ann")
    await site.world.do(agent)
    browser = await site.browser()
    key = {"key": KEYS["ADMIN"].split(":")[0]}
    assert "in the last 24 hours" in await site.read("/")
    site.world.clock.advance(seconds=3 * 24 * 3600)
    # Not that nothing changed: meanwhile the alerts may have noticed that ann is offline.
    assert "ann is new" not in _changed(await site.read("/")), "the last visit is the one before the sign-in"
    browser.cookies.clear()
    for visited, heading, is_listed in (
        (site.world.clock.now() // SECOND - 3 * 24 * 3600 - 60, "since your last visit, 3 d ago", True),
        (site.world.clock.now() // SECOND - 2 * 24 * 3600, "since your last visit, 2 d ago", False),
        (1, "since your last visit, 30 d ago", True),
        ("9" * 11, "in the last 24 hours", False),
        ("nonsense", "in the last 24 hours", False),
    ):
        headers = {"Cookie": f"stentor_visited={visited}"}
        answer = await browser.post("/sign-in", data=key, headers=headers)
        session = answer.headers["set-cookie"].partition(";")[0]
        page = (await browser.get("/", headers={"Cookie": session})).text
        assert heading in _changed(page), visited
        assert ("ann is new" in _changed(page)) is is_listed, visited


@requirement("dashboard.overview-rates")
async def test_rates_stand_beside_those_of_the_day_before(site: Site) -> None:
    agent = await site.world.register("ann")
    for ok in (True, False):
        await site.world.do(agent, ok=ok)
    site.world.clock.advance(seconds=24 * 3600)
    for ok in (True, True, True, False):
        await site.world.do(agent, ok=ok)
    text = " ".join(re.sub("<[^>]+>", " ", (await site.read("/")).partition('class="rates"')[2]).split())
    assert "Success 75.0% ▲ up 25 points 1 failed, 25.0% of those that ended" in text
    assert re.search(r"Tasks per hour 0\.2 ▲ up 1\d\d% 4 since \d\d:00 UTC", text), text
    assert "Wait, median &lt; 1 ms 95% within &lt; 1 ms" in text
    assert "Duration, median &lt; 1 ms" in text
    assert "Spent today" not in text


@requirement("dashboard.overview-rates")
async def test_there_are_no_rates_without_tasks_of_the_last_day(site: Site) -> None:
    await site.world.do(await site.world.register("ann"))
    site.world.clock.advance(seconds=25 * 3600)
    assert 'class="rates"' not in await site.read("/")


@requirement("dashboard.overview-changes", "dashboard.overview-rates")
async def test_an_empty_installation_has_neither_rates_nor_changes(site: Site) -> None:
    page = await site.read("/")
    assert "First steps" in page
    assert "What changed" not in page
    assert 'class="rates"' not in page
