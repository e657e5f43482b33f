"""The pages of governance: ADMIN proposes, SECOND decides."""

from __future__ import annotations

import asyncio
import html
import re
from typing import Any
from urllib.parse import parse_qsl

import pytest

from tests.domains.governance.conftest import GovernanceClient
from tests.requirements import requirement
from tests.surfaces.dashboard.signed_in import Site

Query = dict[str, Any]
EVIL = '<script>alert("x")</script>'
WIDER = {"agent_patch": {"capabilities": ["echo", "shout"]}}


@pytest.fixture
def governance(site: Site) -> GovernanceClient:
    return GovernanceClient(site.world)


def asked(query: str) -> Query:
    """The values of an address's query."""
    return dict(parse_qsl(query))


def listed(page: str) -> list[str]:
    """Descriptions of the updates in a list."""
    return [html.unescape(name) for name in re.findall(r'<td class="title"><a [^>]*>([^<]*)</a>', page)]


def diff(page: str) -> list[str]:
    """Lines of the diff with their signs."""
    found = re.findall(r'<span class="sign">(.)</span><code>([^<]*)</code>', page)
    return [sign + html.unescape(line) for sign, line in found]


def address(update: dict[str, Any]) -> str:
    return f"/governance/updates/{update['update_id']}"


@requirement("dashboard.page-governance")
async def test_the_inbox_shows_what_waits_and_filters_it(site: Site, governance: GovernanceClient) -> None:
    ann = await governance.register_trusted(0.95)
    await governance.propose(ann, description="small")
    site.world.clock.advance(seconds=1)
    await governance.propose(ann, {"breaking": True}, description=f"big {EVIL}\nmore")
    site.world.clock.advance(seconds=1)
    await governance.propose(ann, {"lines_added": 50}, description="middle")
    page = await site.read("/governance")
    assert listed(page) == ["middle", f"big {EVIL}"]
    assert EVIL not in page
    assert '<b class="n">2</b> pending' in page
    assert '<b class="n">3</b> all' in page
    filters: list[tuple[Query, list[str]]] = [
        ({"status": "pending", "tier": "human"}, [f"big {EVIL}"]),
        ({"tier": "2"}, ["middle"]),
        ({"status": "approved"}, ["small"]),
        ({"status": "all", "agent": ann}, ["middle", f"big {EVIL}", "small"]),
        ({"agent": "018f3a2e-0000-7000-8000-000000000002"}, []),
    ]
    for query, names in filters:
        assert listed(await site.part("/governance", **query)) == names, query


@requirement("dashboard.page-governance")
async def test_the_overview_counts_the_updates_that_wait(site: Site, governance: GovernanceClient) -> None:
    await governance.propose(await governance.register_trusted(0.8), {"breaking": True})
    assert '<b class="n">1</b> update to review' in await site.read("/")


@requirement("dashboard.page-governance")
async def test_what_waits_too_long_is_marked(site: Site, governance: GovernanceClient) -> None:
    update = await governance.propose(await governance.register_trusted(0.8), {"breaking": True})
    assert "overdue" not in await site.read("/governance")
    site.world.clock.advance(days=3.5)
    page = await site.read("/governance")
    assert "1 overdue" in page
    assert "3 d ago" in page
    assert '<span class="status overdue">overdue</span>' in await site.read(address(update))


@requirement("dashboard.page-governance")
async def test_many_updates_come_in_pages(site: Site, governance: GovernanceClient) -> None:
    ann = await governance.register_trusted(0.8)
    for n in range(52):
        await governance.propose(ann, {"breaking": True}, description=f"u{n:02}")
        site.world.clock.advance(seconds=1)
    page = await site.read("/governance", tier="human")
    assert len(listed(page)) == 50
    following = re.search(r'hx-get="/governance\?([^"]+)"', page)
    assert following
    query = asked(html.unescape(following[1]))
    assert query["tier"] == "human"
    assert listed(await site.part("/governance", **query)) == ["u01", "u00"]


@requirement("dashboard.page-governance")
async def test_an_update_shows_why_what_and_by_whom(site: Site, governance: GovernanceClient) -> None:
    ann = await governance.register_trusted(0.8)
    update = await governance.propose(ann, WIDER, description=f"Let it shout.\n\n**Because** {EVIL}")
    page = await site.read(address(update))
    assert '<h1 dir="auto">Let it shout.</h1>' in page
    assert "<strong>Because</strong>" in page
    assert EVIL not in page
    assert diff(page) == [' "echo"', '+"shout"']
    assert "the patch widens what the agent may do" in page
    assert "widens access" in page
    assert "0.800" in page
    assert "update submitted" in page
    assert "by admin" in page
    assert "<form" not in await site.part(address(update))
    assert "<form" not in await site.part(address(update), part="head")


@requirement("dashboard.page-governance")
async def test_no_text_of_a_proposer_can_change_the_direction_of_what_a_reviewer_reads(
    site: Site, governance: GovernanceClient
) -> None:
    ann = await governance.register_trusted(0.8)
    changes = {"files_modified": ["a\u202egpj.sh"]}
    update = await governance.propose(ann, changes, description="Fix \u202eopyt\u202c.\n\nMore \u2066of\u2069 it.")
    for page in (await site.read(address(update)), await site.read("/governance")):
        assert "Fix \\u202eopyt\\u202c." in page
        assert not set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069") & set(page)


@requirement("dashboard.page-governance")
async def test_a_decision_names_the_approver_of_the_request_only_if_it_is_another(
    site: Site, governance: GovernanceClient
) -> None:
    for named, is_shown in (("dana", True), ("second", False)):
        update = await governance.propose(await governance.register_trusted(0.8), {"breaking": True})
        await governance.approve(update, approved_by=named, rationale="Fine.", override_risk=True)
        assert ("<dt>Named in the request</dt>" in await site.read(address(update))) is is_shown
        site.world.clock.advance(seconds=1)


@requirement("dashboard.approval-offered")
async def test_an_approval_is_offered_to_those_who_can_give_it_before_the_changes(
    site: Site, governance: GovernanceClient
) -> None:
    update = await governance.propose(await governance.register_trusted(0.8), WIDER)
    page = await site.read(address(update))
    assert f"{address(update)}/approve" not in page
    assert "You proposed this: another person with the role approver or admin approves it." in page
    assert f"{address(update)}/reject" in page
    page = await site.read(address(update), key="SECOND")
    assert page.index(f"{address(update)}/approve") < page.index('id="changes"')
    assert "You proposed this" not in page
    for key, allowed in (("ADMIN", False), ("SECOND", True)):
        answer = await site.world.clients[key].get(f"/api/v1{address(update)}")
        assert answer.json()["may_approve"] is allowed
        assert (answer.json()["approval_problem"] is None) is allowed
    await governance.approve(update, override_risk=True)
    decided = await governance.update(update["update_id"])
    assert (decided["may_approve"], decided["approval_problem"]) == (
        False,
        "The update is already deployed, so it cannot be approved.",
    )


@requirement("dashboard.page-governance", "keys.roles")
async def test_an_approver_reviews_and_approves_and_cannot_roll_back(site: Site, governance: GovernanceClient) -> None:
    made = await site.world.admin.post("/api/v1/keys", json={"name": "dana", "role": "approver"})
    site.world.clock.advance(seconds=1)
    update = await governance.propose(await governance.register_trusted(0.8), {"breaking": True})
    browser = await site.browser_of(made.json()["key"])
    page = (await browser.get(address(update))).text
    assert f"{address(update)}/approve" in page
    queue = (await browser.get("/governance")).text
    assert "/governance/checkpoints" not in queue, "a page that would refuse it"
    assert "/governance/checkpoints" in await site.read("/governance")
    token = re.search(r'name="csrf" value="([^"]+)"', page)
    assert token is not None
    fields = {"csrf": token[1], "reason": "It is right.", "override_risk": "on"}
    answer = await browser.post(f"{address(update)}/approve", data=fields)
    assert answer.status_code == 303, answer.text
    after = await governance.update(update["update_id"])
    assert (after["status"], after["decision"]["rationale"]) == ("approved", "It is right.")
    page = (await browser.get(address(update))).text
    assert f"{address(update)}/deployed" not in page
    queue = (await browser.get("/governance")).text
    assert "stentor governance propose" in queue
    assert 'href="/agents"' not in queue, "a page that would refuse it"


@requirement("dashboard.page-governance")
async def test_the_proposer_is_refused_in_the_place_of_the_review(site: Site, governance: GovernanceClient) -> None:
    update = await governance.propose(await governance.register_trusted(0.8), {"breaking": True})
    answer = await site.send(f"{address(update)}/approve", 403, reason=f"Mine. {EVIL}")
    assert "Somebody else must approve this" in answer.text
    assert "GOVERNANCE_SELF_APPROVAL" in answer.text
    assert f"Mine. {html.escape(EVIL).replace('&quot;', '&#34;')}" in answer.text, "what was typed stays"
    assert (await governance.update(update["update_id"]))["status"] == "submitted"


@requirement("dashboard.page-governance")
async def test_a_risk_is_accepted_in_so_many_words_and_then_it_is_deployed(
    site: Site, governance: GovernanceClient
) -> None:
    ann = await governance.register_trusted(0.8)
    update = await governance.propose(ann, WIDER)
    answer = await site.send(f"{address(update)}/approve", 409, key="SECOND", reason="Fine.")
    assert "This has a risk that was not accepted" in answer.text
    assert "check the box that accepts the risk" in answer.text
    assert "override_risk." not in answer.text, "a field of the API"
    answer = await site.send(f"{address(update)}/approve", key="SECOND", reason="Fine.", override_risk="on")
    assert answer.headers["location"] == f"{address(update)}?notice=approved"
    await governance.wait_until_idle()
    assert (await governance.agent(ann))["capabilities"] == ["echo", "shout"]
    page = await site.read(address(update))
    for event in ("update submitted", "update approved", "update deploying", "update deployed"):
        assert event in page
    assert "Fine." in page
    assert "Roll back" in page
    assert 'data-ask="Roll the agent back' in page
    assert "Your review" not in page


@requirement("dashboard.page-governance")
async def test_an_update_is_rejected_with_a_reason(site: Site, governance: GovernanceClient) -> None:
    update = await governance.propose(await governance.register_trusted(0.8), {"breaking": True})
    fields: Query = {"reason": "It drops the sources.", "feedback": "Keep them."}
    await site.send(f"{address(update)}/reject", key="SECOND", **fields)
    found = await governance.update(update["update_id"])
    assert found["status"] == "rejected"
    page = await site.read(address(update), notice="rejected")
    for text in ("Rejected.", *fields.values(), "update rejected"):
        assert text in page
    again = await site.send(f"{address(update)}/approve", 409, key="SECOND", reason="Fine.")
    assert "Request rejected" in again.text


@requirement("dashboard.page-governance")
async def test_tests_of_an_update_that_lives_outside_are_reported_and_shown(
    site: Site, governance: GovernanceClient
) -> None:
    update = await governance.propose(await governance.register_trusted(0.8), {"breaking": True})
    await governance.approve(update, override_risk=True)
    assert "Report deployment" in await site.read(address(update))
    # A key that may work as the agent would be refused.
    assert "Report deployment" not in await site.read(address(update), key="BOSS")
    bad: list[Query] = [{}, {"unit_tests_passed": "many"}, {"unit_tests_passed": "-1"}]
    for fields in bad:
        answer = await site.send(f"{address(update)}/deployed", 400, **fields)
        assert "Request rejected" in answer.text
    await site.send(f"{address(update)}/deployed", unit_tests_passed="1120", unit_tests_failed="3")
    await governance.wait_until_idle()
    assert (await governance.update(update["update_id"]))["status"] == "rolled_back"
    page = await site.read(address(update))
    assert "unit tests" in page
    assert "1,120" in page
    assert '<td class="num wrong">3</td>' in page


@requirement("dashboard.page-governance")
async def test_a_checkpoint_shows_its_state_and_what_a_rollback_would_change(
    site: Site, governance: GovernanceClient
) -> None:
    ann = await governance.register_trusted(0.8)
    taken = await governance.checkpoint(ann)
    path = f"/governance/checkpoints/{taken['checkpoint_id']}"
    page = await site.read(path)
    assert taken["state_hash"] in page
    assert "Nothing: the agent has not changed since." in page
    await site.world.admin.patch(f"/api/v1/registry/agents/{ann}", json={"accuracy_score": 0.9})
    page = await site.read(path)
    assert diff(page) == ["−0.9", "+0.5"]
    assert "accuracy_score" in page


@requirement("dashboard.page-governance")
async def test_a_rollback_is_started_with_a_reason_and_shown_until_it_is_verified(
    site: Site, governance: GovernanceClient
) -> None:
    ann = await governance.register_trusted(0.8)
    taken = await governance.checkpoint(ann)
    await site.world.admin.patch(f"/api/v1/registry/agents/{ann}", json={"accuracy_score": 0.9})
    path = f"/governance/checkpoints/{taken['checkpoint_id']}/rollback"
    await site.send(path, 400, reason="")
    # A key that may work as the agent does not roll it back.
    for key, expected in (("ADMIN", True), ("BOSS", False)):
        assert (f'action="{path}"' in await site.read(path.removesuffix("/rollback"), key=key)) is expected
    await site.send(path, 403, key="BOSS", reason="x")
    answer = await site.send(path, reason=f"It got worse. {EVIL}")
    await governance.wait_until_idle()
    assert (await governance.agent(ann))["accuracy_score"] == 0.5
    where, _, query = answer.headers["location"].partition("?")
    page = await site.read(where, **asked(query))
    assert "Rollback started." in page
    assert EVIL not in page
    for text in ("rollback started", "rollback in progress", "rollback completed", "verified", "It got worse."):
        assert text in page
    assert "It got worse." in await site.read("/governance/rollbacks", agent=ann)
    assert "never rolled back" in await site.read("/governance/rollbacks", agent="none")


@requirement("dashboard.page-governance")
async def test_a_damaged_checkpoint_is_not_shown_and_not_restored(site: Site, governance: GovernanceClient) -> None:
    ann = await governance.register_trusted(0.8)
    taken = await governance.checkpoint(ann)
    await governance.execute_sql("update checkpoints set state = :state", state="{}")
    path = f"/governance/checkpoints/{taken['checkpoint_id']}"
    page = await site.read(path)
    assert "damaged" in page
    assert "Roll back to" not in page
    assert "damaged" in await site.read("/governance/checkpoints", agent=ann)
    answer = await site.send(f"{path}/rollback", 409, reason="x")
    assert "corrupt" in answer.text


@requirement("dashboard.page-governance")
async def test_a_reader_sees_nothing_of_governance_and_decides_nothing(
    site: Site, governance: GovernanceClient
) -> None:
    update = await governance.propose(await governance.register_trusted(0.8), {"breaking": True})
    for path in ("/governance", address(update), "/governance/checkpoints", "/governance/rollbacks"):
        page = await site.read(path, 403, key="READER")
        assert "Shorter answers." not in page
        assert "Approve" not in page
    for verb in ("approve", "reject"):
        await site.send(f"{address(update)}/{verb}", 403, key="READER", reason="x")
    assert (await governance.update(update["update_id"]))["status"] == "submitted"


@requirement("dashboard.page-governance")
async def test_an_update_that_was_undone_leads_to_the_rollback(site: Site, governance: GovernanceClient) -> None:
    ann = await governance.register_trusted(0.8)
    update = await governance.propose(ann, WIDER)
    await governance.approve(update, override_risk=True)
    await governance.wait_until_idle()
    checkpoint_id = (await governance.update(update["update_id"]))["checkpoint_id"]
    rollback_id = (await governance.rollback(checkpoint_id))["rollback_id"]
    await governance.wait_until_idle()
    page = await site.read(address(update))
    assert "by the service" in page
    assert "by system" not in page
    assert f'Undone by <a href="/governance/rollbacks/{rollback_id}">a rollback</a>.' in page
    assert f"rollback {rollback_id}" not in page


@requirement("dashboard.page-governance")
async def test_records_of_another_tenant_are_not_there(site: Site, governance: GovernanceClient) -> None:
    ann = await governance.register_trusted(0.8)
    update = await governance.propose(ann, {"breaking": True})
    taken = await governance.checkpoint(ann)
    rolled = await governance.rollback(taken["checkpoint_id"])
    for path in (
        address(update),
        f"/governance/checkpoints/{taken['checkpoint_id']}",
        f"/governance/rollbacks/{rolled['rollback_id']}",
    ):
        await site.read(path, 404, key="OTHER")
    await site.send(f"{address(update)}/approve", 404, key="OTHER")
    await site.send(f"/governance/checkpoints/{taken['checkpoint_id']}/rollback", 404, key="OTHER", reason="x")
    page = await site.read("/governance", key="OTHER")
    assert "Nothing waits for approval" in page
    assert "Shorter answers." not in page


@requirement("dashboard.page-governance")
async def test_bad_input_is_told_and_never_breaks_a_page(site: Site) -> None:
    for query in ({"status": "gone"}, {"tier": "4"}, {"cursor": "%%"}, {"agent": "a\0"}, {"agent": "x" * 99}):
        await site.read("/governance", 400, **query)
    for kind in ("checkpoints", "rollbacks"):
        await site.read(f"/governance/{kind}", 400, cursor="%%")
        await site.read(f"/governance/{kind}", 400, agent="a\0")
    browser = await site.browser()
    answers = await asyncio.gather(
        *(
            browser.get(f"/governance/{kind}/{record}")
            for kind in ("updates", "checkpoints", "rollbacks")
            for record in ("none", "a%00b", "%F0%9F%90%99", "a%2Fb", "x" * 3000)
        )
    )
    assert {answer.status_code for answer in answers} <= {400, 404}
