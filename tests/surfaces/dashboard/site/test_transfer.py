"""How pages are sent: compressed, and a live part only when it changed."""

from __future__ import annotations

import re
from base64 import urlsafe_b64decode

import httpx

from stentor.surfaces.dashboard.pages.overview.recent_changes import VISIT_COOKIE
from tests.patience import soon
from tests.requirements import requirement
from tests.surfaces.dashboard.signed_in import Site


@requirement("dashboard.live-unchanged")
async def test_a_live_part_is_sent_again_only_when_it_changed(site: Site) -> None:
    agent = await site.world.register("ann")
    task_id = await site.world.do(agent)
    browser = await site.browser()
    live = {"HX-Request": "true", "X-Live": "1"}
    first = await browser.get(f"/tasks/{task_id}", headers=live)
    known = live | {"If-None-Match": first.headers["etag"]}
    await site.world.submit()  # the page hears of each task
    again = await browser.get(f"/tasks/{task_id}", headers=known)
    assert (first.status_code, again.status_code, again.content) == (200, 304, b"")
    await site.send(f"/tasks/{task_id}/grade", grade="0.5")
    changed = await browser.get(f"/tasks/{task_id}", headers=known)
    assert (changed.status_code, "0.50" in changed.text) == (200, True)
    assert "etag" not in (await browser.get(f"/tasks/{task_id}")).headers


@requirement("dashboard.live-unchanged")
async def test_an_unchanged_overview_counts_as_a_visit(site: Site) -> None:
    browser = await site.browser()
    live = {"HX-Request": "true", "X-Live": "1"}
    etag = (await browser.get("/", headers=live)).headers["etag"]

    async def unchanged() -> httpx.Response | None:
        nonlocal etag
        answer = await browser.get("/", headers=live | {"If-None-Match": etag})
        etag = answer.headers["etag"]
        return answer if answer.status_code == 304 else None

    again = await soon(unchanged)
    assert (again.content, VISIT_COOKIE in again.headers["set-cookie"]) == (b"", True)
    assert not {"content-type", "content-length"} & set(again.headers)


@requirement("dashboard.compressed")
async def test_pages_are_compressed_where_no_other_site_can_ask_for_them(site: Site) -> None:
    browser = await site.browser()
    for origin, is_compressed in (("same-origin", True), ("none", True), ("same-site", False), ("cross-site", False)):
        page = await browser.get("/tasks", headers={"Sec-Fetch-Site": origin})
        assert ("gzip" in page.headers.get("content-encoding", "")) is is_compressed, origin
    assert "content-encoding" not in (await browser.get("/tasks")).headers
    style = re.search(r'href="(/static/app.css[^"]*)"', page.text)
    assert style
    assert (await browser.get(style[1])).headers["content-encoding"] == "gzip"
    plain = await browser.get("/tasks", headers={"Sec-Fetch-Site": "none", "Accept-Encoding": "identity"})
    assert "content-encoding" not in plain.headers


@requirement("dashboard.compressed")
async def test_the_token_of_a_session_is_another_text_in_each_page(site: Site) -> None:
    one, other = await site.token(), await site.token()
    assert one != other
    masked = urlsafe_b64decode(one)
    bare = bytes(a ^ b for a, b in zip(masked[: len(masked) // 2], masked[len(masked) // 2 :], strict=True)).decode()
    assert bare not in await site.read("/tasks")
    task_id = await site.world.do(await site.world.register("ann"))
    for token in ("", bare, one[:-4], one.replace(one[0], "é"), "a", "x" * 5, "====", other[:20] + one[20:]):
        answer = await (await site.browser()).post(f"/tasks/{task_id}/cancel", data={"csrf": token})
        assert answer.status_code == 403, token
    for token in (one, other):
        answer = await (await site.browser()).post(f"/tasks/{task_id}/grade", data={"csrf": token, "grade": "9"})
        assert answer.status_code == 400
