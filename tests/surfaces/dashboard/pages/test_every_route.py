"""Every form against forged requests, every page against another tenant, and streams after a key has changed."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from stentor.surfaces.dashboard.pages import app
from stentor.surfaces.dashboard.site import page
from stentor.web.sse import ENDED_MESSAGE
from tests.domains.streams import parse, watched
from tests.requirements import requirement
from tests.surfaces.dashboard.board import LOCAL
from tests.surfaces.dashboard.signed_in import Site

CANARY = "canary-51c7"
_PARAMETER = re.compile(r"\{[^}]+\}")
FORMS = sorted(_PARAMETER.sub("x", path) for method, path, _ in app.ROUTES if method == "POST")


async def test_every_form_refuses_what_its_own_page_did_not_send(site: Site) -> None:
    own, other = await site.token("ADMIN"), await site.token("SECOND")
    browser = await site.browser()
    forged: list[tuple[str, dict[str, str]]] = [
        ("", {}),
        (other, {"Origin": LOCAL}),
        (own, {"Origin": "https://evil.example"}),
        (own, {"Origin": "null"}),
        (own, {"Sec-Fetch-Site": "cross-site"}),
    ]
    assert len(FORMS) > 60
    wrong = []
    for path in FORMS:
        for token, headers in forged:
            answer = await browser.post(path, data={"csrf": token}, headers=headers)
            if answer.status_code != 403 or "frame-ancestors 'none'" not in answer.headers["content-security-policy"]:
                wrong.append((path, headers, answer.status_code))
        # A form of another site may be sent as JSON or text, without a question of the browser.
        answer = await browser.post(path, content=f"csrf={own}", headers={"Content-Type": "text/plain"})
        if answer.status_code not in (403, 415):
            wrong.append((path, {"Content-Type": "text/plain"}, answer.status_code))
    assert wrong == []


async def seed(site: Site) -> dict[str, str]:
    """Make one of each kind of record, with the canary in its texts; return the parameters of their pages."""
    world = site.world
    agent_id = await world.register(CANARY, runtime={"kind": "worker"})
    task_id = await world.submit(title=CANARY, input={"text": CANARY})

    async def post(path: str, **body: Any) -> Any:
        answer = await world.admin.post(f"/api/v1{path}", json=body)
        assert answer.is_success, (path, answer.text)
        return answer.json()

    hook = await post("/webhooks", url=f"https://{CANARY}.example/hook", events=["task.completed"])
    await post("/keys", name=CANARY, role="viewer", description=CANARY)
    checkpoint = await post("/governance/checkpoints", agent_id=agent_id)
    return {
        "agent_id": agent_id,
        "task_id": task_id,
        "task_id:path": task_id,
        "webhook_id": hook["id"],
        "name": CANARY,
        "checkpoint_id": checkpoint["checkpoint_id"],
    }


async def test_no_page_shows_a_record_of_another_tenant(site: Site) -> None:
    names = await seed(site)
    pages = []
    for method, path, _ in app.ROUTES:
        if method == "GET" and path != "/live":
            pages.append(_PARAMETER.sub(lambda found: names.get(found[0][1:-1], "x"), path))
    own, other = await site.browser(), await site.browser("OTHER")
    shown, leaked, failed = [], [], []
    for address in pages:
        if not address.endswith("/stream") and CANARY in (await own.get(address)).text.replace(address, ""):
            shown.append(address)
        for query in ("", f"?q={names['task_id']}", f"?path={CANARY}.md", f"?agent={names['agent_id']}"):
            answer = await other.get(address + query)
            # What was asked for may be repeated.
            text = answer.text.replace(address, "").replace(f"{CANARY}.md", "")
            if CANARY in text and f"/{CANARY}" not in address:
                leaked.append(address + query)
            if answer.status_code not in (200, 303, 400, 403, 404, 501):
                failed.append((address + query, answer.status_code))
    assert (leaked, failed) == ([], [])
    assert len(shown) > 8, shown


@pytest.fixture
def no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a key is still valid is otherwise known for five seconds, and what happens in these is shown."""
    monkeypatch.setattr(page, "CACHE_SECONDS", 0.0)


@requirement("activity.stream-ends-with-key")
@pytest.mark.parametrize("change", ["revoke", "lower", "agent"])
async def test_the_stream_of_an_open_page_ends_when_its_key_may_no_longer_see_it(
    no_cache: None, site: Site, change: str
) -> None:
    world = site.world
    agent = await world.register()
    task_id = await world.submit()
    epoch = int((await world.claim(agent))["epoch"])
    made = await world.admin.post("/api/v1/keys", json={"name": "watcher", "role": "operator"})
    browser = await site.browser_of(made.json()["key"], "watcher")
    reading = asyncio.create_task(browser.get(f"/tasks/{task_id}/stream"))
    await watched(world)
    if change == "revoke":
        answer = await world.admin.post("/api/v1/keys/watcher/revoke")
    else:
        body = {"lower": {"permissions": ["approve"]}, "agent": {"role": "agent"}}[change]
        answer = await world.admin.patch("/api/v1/keys/watcher", json=body)
    assert answer.is_success, answer.text
    told = {"epoch": epoch, "tokens": ["secret"]}
    assert (await world.admin.post(f"/api/v1/tasks/{task_id}/tokens", json=told)).is_success
    found = parse((await reading).text)
    assert (found[-1].event, found[-1].data["error"]) == ("error", ENDED_MESSAGE)
    assert "secret" not in str([frame.data for frame in found])
