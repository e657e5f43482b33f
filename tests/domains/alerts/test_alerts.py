"""What opens an alert and what resolves it, seen through the API, on both databases."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from stentor.bootstrap.tls import certificate_check, certificate_findings, open_certificate
from stentor.core.clock import DAY, MINUTE, format_iso, micros_from_datetime
from stentor.core.ids import new_id
from stentor.core.settings import load
from stentor.domains.alerts.model import Finding, describe_duration, failure_findings
from stentor.domains.alerts.service import AlertService
from stentor.domains.llm import store as llm_store
from stentor.domains.llm.store import CallRow
from stentor.domains.monitoring.service import fixed_check
from stentor_vault.server.certificate import RENEWAL_MARGIN
from tests.authority import Authority
from tests.conftest import MakeWorld, World
from tests.requirements import requirement

Found = list[dict[str, Any]]


async def alerts(world: World, kind: str, state: str = "open", key: str = "READER") -> Found:
    answer = await world.clients[key].get("/api/v1/alerts", params={"state": state})
    assert answer.status_code == 200, answer.text
    return [alert for alert in answer.json()["alerts"] if alert["kind"] == kind]


async def check(world: World, *others: World, minutes: float = 0) -> None:
    """Let time pass, and check. Events of before are numbered: one that waits for minutes is an alert of its own.

    `others` share the database: the first of all numbers the events.
    """
    for numbering in (world, *others):
        await numbering.kernel.provenance.sequencer.drain()
    world.clock.advance(seconds=minutes * 60)
    await world.kernel.alerts.check()


async def messages(world: World, kind: str, state: str = "open") -> list[str]:
    return [alert["message"] for alert in await alerts(world, kind, state)]


@requirement("alerts.waiting")
async def test_many_tasks_that_wait_are_counted_as_in_the_lists(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.register()
    await world.submit()
    monkeypatch.setattr(
        "stentor.domains.tasks.queries.find_oldest", lambda *_: (1_000, world.clock.now() - 10 * MINUTE)
    )
    await check(world)
    assert await messages(world, "queue") == ["1,000+ tasks wait in the queue, the oldest for 10 minutes."]


@requirement("alerts.waiting", "alerts.resolve")
async def test_a_task_that_waits_too_long_opens_an_alert_that_resolves_a_minute_after_it_is_taken(world: World) -> None:
    agent = await world.register()
    task_id = await world.submit()
    await check(world, minutes=4.9)
    assert await messages(world, "queue") == []
    await check(world, minutes=0.2)
    assert await messages(world, "queue") == ["1 task waits in the queue, for 5 minutes."]
    await world.submit()
    await check(world, minutes=3)
    (alert,) = await alerts(world, "queue")
    assert (alert["message"], alert["severity"]) == ("2 tasks wait in the queue, the oldest for 8 minutes.", "warning")
    for _ in range(2):
        claim = await world.claim(agent)
        await world.admin.post(f"/api/v1/tasks/{claim['task_id']}/complete", json={"epoch": 1, "result": 1})
    await check(world)
    world.clock.jump(-3_600)
    await check(world, minutes=0.9)
    assert len(await alerts(world, "queue")) == 1
    await check(world, minutes=0.2)
    assert await alerts(world, "queue") == []
    (resolved,) = await alerts(world, "queue", "resolved")
    assert (resolved["alert_id"], resolved["resolved_at"] is None) == (alert["alert_id"], False)
    assert (await world.task(task_id))["status"] == "completed"


@requirement("alerts.waiting")
async def test_a_task_that_waits_for_approval_opens_an_alert(world: World) -> None:
    await world.register("boss", trust_tier="human")
    task_id = await world.submit()
    await check(world, minutes=90)
    assert await messages(world, "approvals") == ["1 task waits for approval, for 1 hour."]
    await world.admin.post(f"/api/v1/tasks/{task_id}/reject", json={"reason": "no"})
    await check(world)
    await check(world, minutes=1)
    assert await alerts(world, "approvals") == []


@requirement("alerts.failures")
async def test_an_agent_that_fails_opens_an_alert_with_its_name_and_not_about_others(world: World) -> None:
    bad = await world.register("bad")
    for _ in range(4):
        await world.do(bad, ok=False)
    await check(world)
    assert await alerts(world, "failures") == []
    await world.do(bad, ok=False)
    await check(world)
    (alert,) = await alerts(world, "failures")
    assert alert["message"] == "bad failed 5 of its last 5 tasks, in 15 minutes."
    assert (alert["agent_id"], alert["severity"]) == (bad, "critical")
    await check(world, minutes=16)
    await check(world, minutes=1)
    assert await alerts(world, "failures") == []


@requirement("alerts.failures")
async def test_an_agent_whose_tasks_time_out_fails_and_one_that_did_not_get_its_tasks_does_not(world: World) -> None:
    bad = await world.register("bad")
    for _ in range(5):
        await world.submit(timeout_seconds=60)
        await world.claim(bad, lease_seconds=3600)
    await world.register("idle", capabilities=["other"])
    for _ in range(5):
        await world.submit(required_capabilities=["other"], queue_timeout_seconds=60)
    world.clock.advance(seconds=61)
    await world.kernel.tasks.reconciler.tick(0)
    await check(world)
    assert await messages(world, "failures") == ["bad failed 5 of its last 5 tasks, in 15 minutes."]


@requirement("alerts.failures")
async def test_tasks_that_no_agent_can_take_open_an_alert(world: World) -> None:
    for _ in range(5):
        body = {"type": "x", "input": 1, "required_capabilities": ["none"]}
        assert (await world.admin.post("/api/v1/tasks", json=body)).status_code == 422
    await check(world)
    text = "5 tasks failed in 15 minutes because no agent could take them."
    assert await messages(world, "failures") == [text]


@requirement("alerts.failures")
def test_failures_of_many_agents_together_open_one_alert() -> None:
    outcomes = {"a": (3, 5), "b": (3, 5)}
    (found,) = failure_findings("default", outcomes, {}, 50)
    assert found.message == "6 of the last 10 tasks failed, in 15 minutes."
    assert failure_findings("default", outcomes, {}, 61) == []


@requirement("alerts.agents")
async def test_a_worker_that_stops_opens_an_alert_which_a_restart_does_not_resolve(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only the test checks: else the first world, which lives on, would not know of the suspension.
    monkeypatch.setattr(AlertService, "run", lambda *_: asyncio.Event().wait())
    world: World = await make_world()
    agent, never = await world.register("ann"), await world.register("never", capabilities=["other"])
    await world.do(agent)
    await check(world, minutes=4)
    assert await alerts(world, "agent_offline") == []
    await check(world, minutes=2)
    (alert,) = await alerts(world, "agent_offline")
    assert alert["message"] == "ann is offline. Start its worker, or archive the agent."
    restarted: World = await make_world()
    for _ in range(8):
        await check(restarted, minutes=0.25)
        assert [one["alert_id"] for one in await alerts(restarted, "agent_offline")] == [alert["alert_id"]]
    await restarted.admin.post(f"/api/v1/registry/agents/{agent}/suspend", json={"reason": "retired"})
    await check(restarted)
    await check(restarted, minutes=1)
    assert await alerts(restarted, "agent_offline") == []
    assert never not in {one["agent_id"] for one in await alerts(restarted, "agent_offline", "all")}


@requirement("alerts.agents")
async def test_a_worker_that_stops_with_the_service_and_does_not_return_opens_an_alert(make_world: MakeWorld) -> None:
    world: World = await make_world()
    agent, never = await world.register("ann"), await world.register("never", capabilities=["other"])
    await world.do(agent)
    restarted: World = await make_world()
    await check(restarted, minutes=4)
    assert await alerts(restarted, "agent_offline") == []
    await check(restarted, minutes=2)
    (alert,) = await alerts(restarted, "agent_offline")
    assert alert["agent_id"] == agent != never


@requirement("alerts.agents")
async def test_a_worker_that_was_never_started_opens_an_alert_when_its_first_task_has_waited(world: World) -> None:
    agent = await world.register("ann")
    await check(world, minutes=10)
    await world.submit()
    await check(world, minutes=4)
    assert await alerts(world, "agent_offline") == []
    await world.submit()
    await check(world, minutes=2)
    (alert,) = await alerts(world, "agent_offline")
    assert alert["agent_id"] == agent


@requirement("alerts.agents")
async def test_an_agent_whose_model_no_provider_serves_opens_an_alert_that_says_so(world: World) -> None:
    runtime = {"kind": "llm", "options": {"model": "sea/sea-large"}}
    agent = await world.register("helper", runtime=runtime)
    await check(world)
    (alert,) = await alerts(world, "agent_offline")
    assert (alert["agent_id"], alert["severity"]) == (agent, "warning")
    assert alert["message"] == "helper is offline: no provider serves sea/sea-large."


@requirement("alerts.agents")
async def test_an_endpoint_that_does_not_answer_has_one_alert_until_a_task_reaches_it(world: World) -> None:
    agent = await world.register("ann", runtime={"kind": "http", "endpoint": "https://agent.example.com/tasks"})
    presence = world.kernel.agents.presence
    for _ in range(2):
        presence.record_failed_delivery(agent)
    await check(world)
    assert await alerts(world, "agent_offline") == []
    for _ in range(4):
        presence.record_failed_delivery(agent)
        await check(world)
        # Its pause ends, and nothing shows that it is back.
        world.clock.advance(seconds=120)
        presence.release_endpoints()
        await check(world)
        await check(world, minutes=2)
    (alert,) = await alerts(world, "agent_offline", "all")
    assert (alert["agent_id"], alert["message"]) == (agent, "The endpoint of ann does not answer.")
    assert alert["resolved_at"] is None
    presence.record_delivery(agent)
    await check(world)
    await check(world, minutes=1)
    (alert,) = await alerts(world, "agent_offline", "all")
    assert alert["resolved_at"] is not None


@requirement("alerts.agents")
async def test_a_quarantined_agent_opens_an_alert(world: World) -> None:
    agent = await world.register("ann")
    for _ in range(3):
        body = {"tool": "shell", "operation": "run"}
        await world.admin.post(f"/api/v1/registry/agents/{agent}/authorize", json=body)
    await check(world)
    (alert,) = await alerts(world, "agent_quarantined")
    assert alert["message"].startswith("ann is quarantined")
    assert (alert["agent_id"], alert["severity"]) == (agent, "critical")


@requirement("alerts.budgets")
async def test_a_budget_opens_a_warning_and_then_an_alert_that_its_calls_are_refused(make_world: MakeWorld) -> None:
    world: World = await make_world(SERVICE_LLM_BUDGETS="key:admin:tokens/day=1000")
    made = {"name": "ci", "role": "operator", "budgets": ["tokens/month=100"]}
    assert (await world.admin.post("/api/v1/keys", json=made)).status_code == 201

    async def spend(subject: str, tokens: int) -> None:
        call = CallRow(new_id(), "default", subject, None, None, "chat", "openai", "m", "ok", tokens, 0, 0, None, 1)
        await world.kernel.infra.db.write(lambda tx: llm_store.insert_call(tx, call))

    await spend("admin", 799)
    await check(world)
    assert await alerts(world, "budget", key="ADMIN") == []
    await spend("admin", 1)
    await spend("ci", 100)
    await check(world)
    assert await alerts(world, "budget") == [], "a reader does not see what others spend"
    assert sorted(one["message"] for one in await alerts(world, "budget", key="ADMIN")) == [
        "The key admin has spent 800 of 1,000 tokens today (UTC).",
        "The key ci has spent 100 of 100 tokens this month; its calls are refused.",
    ]


@requirement("alerts.budgets")
async def test_a_budget_for_each_key_opens_an_alert_for_every_key_that_has_spent_it(make_world: MakeWorld) -> None:
    world: World = await make_world(SERVICE_LLM_BUDGETS=f"key:*:tokens/day=1000,key:*:usd/day={10**20}")
    calls = [
        CallRow(new_id(), "default", f"key-{n}", None, None, "chat", "openai", "m", "ok", 799 + n, 0, 0, None, 1)
        for n in range(13)
    ]
    await world.kernel.infra.db.write(lambda tx: [llm_store.insert_call(tx, call) for call in calls])
    await check(world)
    subjects = {one["subject"].split(":")[1] for one in await alerts(world, "budget", key="ADMIN")}
    assert subjects == {f"key-{n}" for n in range(1, 13)}


@requirement("alerts.list")
async def test_a_limit_counts_only_the_alerts_that_the_caller_sees(world: World) -> None:
    subjects = ("key:reader:tokens/day", "key:reader_2:tokens/day", "tenant:reader:usd/day")
    findings = [Finding("default", "component", "vault", "critical", "The component vault is unavailable.")]

    async def find(_: object) -> list[Finding]:
        return findings

    world.kernel.alerts.add_check(find)
    await check(world)
    findings += [Finding("default", "budget", subject, "warning", "spent") for subject in subjects]
    await check(world, minutes=1)

    async def first(limit: int, **params: str) -> list[str]:
        answer = await world.clients["READER"].get("/api/v1/alerts", params={"limit": limit, **params})
        return [alert["subject"] for alert in answer.json()["alerts"]]

    assert await first(1) == ["key:reader:tokens/day"]
    assert await first(2, state="all") == ["key:reader:tokens/day", "vault"]


@requirement("alerts.list")
async def test_a_member_of_a_team_sees_the_alerts_of_its_budgets(world: World) -> None:
    subjects = ("team:support:usd/day", "team:support-2:usd/day", "key:other:usd/day")

    async def find(_: object) -> list[Finding]:
        return [Finding("default", "budget", subject, "warning", "spent") for subject in subjects]

    world.kernel.alerts.add_check(find)
    await check(world)
    made = {"name": "member", "role": "viewer", "team": "support"}
    secret = (await world.admin.post("/api/v1/keys", json=made)).json()["key"]
    answer = await world.admin.get("/api/v1/alerts", headers={"X-API-Key": secret})
    assert [alert["subject"] for alert in answer.json()["alerts"]] == ["team:support:usd/day"]
    who = await world.admin.get("/api/v1/whoami", headers={"X-API-Key": secret})
    assert who.json()["team"] == "support"
    assert await alerts(world, "budget", key="READER") == []


@requirement("alerts.components")
async def test_a_component_that_does_not_answer_opens_an_alert_of_the_default_tenant(world: World) -> None:
    world.kernel.health.set_check("vault", fixed_check("unavailable", "the folder is gone"))
    await check(world)
    assert "The component vault is unavailable: the folder is gone." in await messages(world, "component")
    assert await alerts(world, "component", key="OTHER") == []


@requirement("alerts.certificate")
async def test_a_certificate_opens_a_warning_and_then_an_alert_that_it_has_expired(
    world: World, tmp_path: Path
) -> None:
    authority = Authority(tmp_path)
    authority.issue("127.0.0.1", days=400)
    settings = load({**authority.settings, "SERVICE_DATA_DIR": str(tmp_path)})
    served = open_certificate(settings)
    assert served is not None
    world.kernel.alerts.add_check(certificate_check(settings, world.clock, served))
    left = (micros_from_datetime(served.loaded.expires_at) - world.clock.now()) / MINUTE
    await check(world, minutes=left - 15 * 1_440)
    assert await alerts(world, "certificate") == []
    await check(world, minutes=2 * 1_440)
    (alert,) = await alerts(world, "certificate")
    day = alert["message"].partition(", on ")[2].partition(".")[0]
    assert alert["message"] == (
        f"The HTTPS certificate expires in 13 days, on {day}. Renew {authority.certificate_file}: it is read again "
        "when it changes."
    )
    assert alert["severity"] == "warning"
    assert await alerts(world, "certificate", key="OTHER") == []
    await check(world, minutes=14 * 1_440)
    await check(world, minutes=1)
    (alert,) = await alerts(world, "certificate")
    assert alert["message"].startswith(f"The HTTPS certificate expired on {day}, and clients refuse to connect.")
    assert alert["severity"] == "critical"
    authority.issue("127.0.0.1", days=4_000)
    assert served.reload()
    await check(world)
    await check(world, minutes=1)
    assert await alerts(world, "certificate") == []
    assert len(await alerts(world, "certificate", "resolved")) == 2


@requirement("alerts.key")
async def test_a_key_that_expires_soon_opens_a_warning_and_then_an_alert_that_it_has_expired(world: World) -> None:
    async def make(name: str, days: int) -> str:
        ends = format_iso(world.clock.now() + days * DAY)
        made = await world.admin.post("/api/v1/keys", json={"name": name, "role": "viewer", "expires_at": ends})
        assert made.status_code == 201, made.text
        return str(made.json()["key"])

    secret = await make("reports", 90)
    await make("deploy", 10)  # short-lived on purpose: no alert
    await make("gone", 90)
    await check(world, minutes=82 * 1_440)
    assert await alerts(world, "key") == []
    assert (await world.admin.post("/api/v1/keys/gone/revoke")).status_code == 200
    await check(world, minutes=2 * 1_440)
    (alert,) = await alerts(world, "key", key="ADMIN")
    day = format_iso(world.clock.now() + 6 * DAY)[:10]
    advice = "Extend it (stentor keys change reports --expires 90d) or revoke it (stentor keys revoke reports)."
    assert alert["message"] == f"The key reports expires in 6 days, on {day}. {advice}"
    assert alert["severity"] == "warning"
    assert await alerts(world, "key", key="READER") == []
    own = await world.admin.get("/api/v1/alerts", headers={"X-API-Key": secret})
    assert [each["message"] for each in own.json()["alerts"]] == [alert["message"]]
    await check(world, minutes=6 * 1_440)
    await check(world, minutes=1)
    (expired,) = await alerts(world, "key", key="ADMIN")
    assert expired["message"] == f"The key reports expired on {day}, and its requests are refused. {advice}"
    ends = format_iso(world.clock.now() + 90 * DAY)
    assert (await world.admin.patch("/api/v1/keys/reports", json={"expires_at": ends})).status_code == 200
    await check(world)
    await check(world, minutes=1)
    assert await alerts(world, "key", key="ADMIN") == []
    assert len(await alerts(world, "key", "resolved", key="ADMIN")) == 2


@requirement("alerts.certificate")
async def test_one_that_stentor_makes_is_renewed_before_an_alert_opens(world: World, tmp_path: Path) -> None:
    settings = load({"SERVICE_TLS": "true", "SERVICE_DATA_DIR": str(tmp_path)})
    served = open_certificate(settings)
    assert served is not None
    expires_at = micros_from_datetime(served.loaded.expires_at)
    assert certificate_findings(settings, expires_at - RENEWAL_MARGIN.days * DAY, served) == []
    (finding,) = certificate_findings(settings, expires_at - 13 * DAY, served)
    assert "could not renew" in finding.message
    assert open_certificate(load({"SERVICE_DATA_DIR": str(tmp_path)})) is None


@requirement("alerts.resolve")
async def test_a_check_that_fails_resolves_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    await world.register()
    await world.submit()
    await check(world, minutes=6)

    async def fail(_: object) -> None:
        raise RuntimeError("unreadable")

    monkeypatch.setattr(world.kernel.alerts, "_checks", [fail])
    for _ in range(3):
        with pytest.raises(RuntimeError):
            await check(world, minutes=2)
    assert len(await alerts(world, "queue")) == 1


@requirement("alerts.run-log", "alerts.webhooks")
async def test_an_alert_is_an_event_of_the_run_log_and_of_webhooks_once(world: World) -> None:
    await world.register()
    await world.submit()
    body = {"url": "https://example.com/hook", "events": ["alert.*"]}
    hook = (await world.admin.post("/api/v1/webhooks", json=body)).json()
    await check(world, minutes=6)
    await check(world, minutes=0.25)
    answer = await world.admin.get(f"/api/v1/webhooks/{hook['id']}/deliveries")
    assert [one["event"] for one in answer.json()["deliveries"]] == ["alert.opened"] * len(
        (await world.admin.get("/api/v1/alerts")).json()["alerts"]
    )


@requirement("alerts.settings")
async def test_a_threshold_of_0_switches_a_check_off(make_world: MakeWorld) -> None:
    names = ("FAILURE_PERCENT", "WAIT_SECONDS", "BUDGET_PERCENT")
    world: World = await make_world(**{f"SERVICE_ALERT_{name}": "0" for name in names})
    agent = await world.register()
    for _ in range(6):
        await world.do(agent, ok=False)
    await world.submit()
    await check(world, minutes=1_000)
    kinds = {alert["kind"] for alert in (await world.admin.get("/api/v1/alerts")).json()["alerts"]}
    assert kinds <= {"component"}


@requirement("alerts.list")
async def test_what_a_caller_asks_wrongly_is_answered(world: World) -> None:
    for params in ({"state": "closed"}, {"limit": "0"}, {"limit": "501"}):
        assert (await world.admin.get("/api/v1/alerts", params=params)).status_code == 400
    assert (await world.clients["WRITER"].post("/api/v1/alerts/test")).status_code == 403
    assert (await world.clients["BOB"].get("/api/v1/alerts")).status_code == 403, "an agent learns nothing of others"
    refused = await world.admin.post("/api/v1/alerts/test")
    assert refused.status_code == 409
    assert "SERVICE_SMTP_URL" in refused.text


@pytest.mark.parametrize(
    ("minutes", "text"),
    [(0, "less than a minute"), (1, "1 minute"), (61, "1 hour"), (1_441, "1 day"), (4_320, "3 days")],
)
def test_durations_are_said_in_whole_units(minutes: int, text: str) -> None:
    assert describe_duration(minutes * MINUTE) == text
