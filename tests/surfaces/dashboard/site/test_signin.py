"""The door of the pages: sessions, forms, and what every answer forbids the browser."""

from __future__ import annotations

import math
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.requests import ClientDisconnect

from stentor.auth.principal import Principal
from stentor.core.errors import ServiceUnavailable
from stentor.surfaces.dashboard.gateway import GatewayError, InProcessGatewayClient
from stentor.surfaces.dashboard.pages.app import MAX_TEXT_BYTES
from stentor.surfaces.dashboard.site import sessions
from stentor.surfaces.dashboard.site.sessions import (
    HOST_SESSION_COOKIE,
    IDLE_SECONDS,
    MAX_SESSIONS,
    SESSION_COOKIE,
    SessionStore,
    read_session_cookie,
)
from tests.requirements import requirement
from tests.surfaces.dashboard.board import LOCAL
from tests.surfaces.dashboard.signed_in import Site

KEY = "admin-key-7c1e"
FORM_TYPE = "application/x-www-form-urlencoded"


@pytest.fixture
async def stranger(site: Site) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=site.board.http._transport, base_url=LOCAL)


@requirement("dashboard.sign-in")
async def test_without_a_session_every_page_leads_to_the_door_and_back(stranger: httpx.AsyncClient) -> None:
    answer = await stranger.get("/tasks", params={"status": "failed"})
    assert (answer.status_code, answer.headers["location"]) == (303, "/sign-in?next=%2Ftasks%3Fstatus%3Dfailed")
    form = await stranger.get(answer.headers["location"])
    assert 'value="/tasks?status=failed"' in form.text
    entered = await stranger.post("/sign-in", data={"key": KEY, "next": "/tasks?status=failed"})
    assert (entered.status_code, entered.headers["location"]) == (303, "/tasks?status=failed")


@requirement("dashboard.sign-in")
async def test_the_cookie_is_a_random_name_for_a_key_that_lies_nowhere_else(site: Site) -> None:
    browser = await site.browser()
    answer = await browser.post("/sign-in", data={"key": KEY})
    cookie = answer.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
    assert KEY not in cookie
    assert "Secure" not in cookie
    by_tls = await browser.post("/sign-in", data={"key": KEY}, headers={"Origin": LOCAL.replace("http:", "https:")})
    planted = by_tls.headers["set-cookie"]
    assert planted.startswith(f"{HOST_SESSION_COOKIE}=")
    assert {"Secure", "Path=/"} <= set(planted.split("; "))
    assert "domain" not in planted.lower()
    for path in ("/", "/tasks"):
        assert KEY not in (await browser.get(path)).text


@requirement("dashboard.sign-in")
@pytest.mark.parametrize(("key", "status"), [("wrong", 401), ("", 400), ("\x00ü" * 9_000, 401)])
async def test_what_is_no_key_opens_nothing(stranger: httpx.AsyncClient, key: str, status: int) -> None:
    answer = await stranger.post("/sign-in", data={"key": key})
    assert answer.status_code == status
    assert 'role="alert"' in answer.text
    assert "set-cookie" not in answer.headers


@requirement("dashboard.sign-in")
async def test_wrong_keys_become_too_many_and_a_right_key_still_opens_a_session(
    stranger: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "THROTTLE_WINDOW_SECONDS", math.inf)
    for _ in range(20):
        assert (await stranger.post("/sign-in", data={"key": "wrong"})).status_code == 401
    assert (await stranger.post("/sign-in", data={"key": "wrong"})).status_code == 429
    # Behind a proxy everybody has one address.
    assert (await stranger.post("/sign-in", data={"key": KEY})).status_code == 303
    elsewhere = httpx.ASGITransport(stranger._transport.app, client=("10.0.0.7", 1))  # pyrefly: ignore[missing-attribute] - private
    async with httpx.AsyncClient(transport=elsewhere, base_url=LOCAL) as other:
        assert (await other.post("/sign-in", data={"key": "wrong"})).status_code == 401


@requirement("dashboard.sign-in")
@pytest.mark.parametrize(
    "wanted", ["https://evil.test/", "//evil.test", "/\\evil.test", "javascript:alert(1)", "/a\nb"]
)
async def test_the_door_leads_to_pages_of_this_site_alone(stranger: httpx.AsyncClient, wanted: str) -> None:
    assert (await stranger.post("/sign-in", data={"key": KEY, "next": wanted})).headers["location"] == "/"


@requirement("dashboard.sign-in")
async def test_signing_out_ends_the_session_for_every_copy_of_its_cookie(site: Site) -> None:
    copy = httpx.AsyncClient(transport=site.board.http._transport, base_url=LOCAL)
    copy.cookies = (await site.browser()).cookies
    await site.send("/sign-out")
    assert (await copy.get("/tasks")).status_code == 303


@requirement("dashboard.sign-in")
async def test_a_key_that_is_taken_back_ends_its_session(site: Site) -> None:
    browser = await site.browser("WRITER")
    site.world.ring._principals = {
        digest: one for digest, one in site.world.ring._principals.items() if one.name != "writer"
    }
    assert (await browser.get("/tasks")).headers["location"].startswith("/sign-in")
    part = await browser.get("/tasks", headers={"HX-Request": "true"})
    assert part.status_code == 401
    assert "hx-redirect" not in part.headers, "it would take away what was typed into the rest of the page"


@requirement("dashboard.sign-in")
async def test_a_form_without_a_session_returns_its_texts_but_no_key(stranger: httpx.AsyncClient) -> None:
    form = {"csrf": "tok-7c1e", "text": "\n<b>A long</b> note", "apiKey": "sk-7c1e", "shown": '{"a": 1}'}
    headers = {"Sec-Fetch-Site": "same-origin", "Referer": f"{LOCAL}/memory/edit?path=n.md"}
    answer = await stranger.post("/memory/edit", data=form, headers=headers)
    assert (answer.status_code, answer.headers["content-type"]) == (401, "text/html; charset=utf-8")
    assert re.findall("<textarea[^>]*>([^<]*)<", answer.text) == ["\n\n&lt;b&gt;A long&lt;/b&gt; note"]
    assert "Your session has ended" in answer.text
    assert 'value="/memory/edit?path=n.md"' in answer.text
    assert not any(secret in answer.text for secret in ("sk-7c1e", "tok-7c1e"))
    # Some scripts have no white space between words.
    japanese = await stranger.post("/console", data={"instruction": "この文書を要約してください"}, headers=headers)
    assert re.findall("<textarea[^>]*>\n([^<]*)<", japanese.text) == ["この文書を要約してください"]
    foreign = await stranger.post("/memory/edit", data=form, headers={"Origin": "https://evil.test"})
    assert (foreign.status_code, "textarea" in foreign.text) == (401, False)
    long = await stranger.post("/memory/edit", data={"text": "a b" * (MAX_TEXT_BYTES // 3)}, headers=headers)
    assert (long.status_code, "textarea" in long.text) == (401, False)
    too_many = await stranger.post("/memory/edit", content="a=1+2&" * 2_000, headers={"Content-Type": FORM_TYPE})
    assert (too_many.status_code, "textarea" in too_many.text) == (401, False)


@requirement("dashboard.sign-in")
@pytest.mark.parametrize("path", ["/memory/edit", "/sign-in"])
async def test_a_client_that_leaves_within_its_form_is_no_error(
    stranger: httpx.AsyncClient, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    async def leave() -> AsyncIterator[bytes]:
        yield b"text=a+b"
        raise ClientDisconnect

    headers = {"Content-Type": FORM_TYPE, "Content-Length": "1000"}
    assert (await stranger.post(path, content=leave(), headers=headers)).status_code == 400
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@requirement("dashboard.sign-in")
async def test_pages_that_ask_the_gateway_nothing_end_with_the_key_too(site: Site) -> None:
    browser = await site.browser("WRITER")
    site.world.ring._principals = {
        digest: one for digest, one in site.world.ring._principals.items() if one.name != "writer"
    }
    assert (await browser.get("/series")).headers["location"].startswith("/sign-in")


@requirement("dashboard.sign-in")
@pytest.mark.parametrize(
    ("path", "change", "status"),
    [
        ("/audit", {"role": "viewer"}, 403),
        ("/", {"role": "viewer"}, 200),
        ("/series", {"role": "agent"}, 303),
        ("/series", {"role": "agent", "permissions": ["write"]}, 303),
    ],
)
async def test_a_session_has_the_permissions_that_its_key_has_now(
    site: Site, path: str, change: dict[str, Any], status: int
) -> None:
    made = await site.world.admin.post("/api/v1/keys", json={"name": "dana", "role": "admin"})
    browser = await site.browser_of(made.json()["key"])
    changed = await site.world.admin.patch("/api/v1/keys/dana", json=change)
    assert changed.status_code == 200, changed.text
    assert (await browser.get(path)).status_code == status


@requirement("dashboard.sign-in")
@pytest.mark.parametrize(("status", "is_valid"), [(429, True), (500, True), (None, True), (401, False), (403, False)])
async def test_an_outage_of_the_gateway_ends_no_session(
    site: Site, monkeypatch: pytest.MonkeyPatch, status: int | None, is_valid: bool
) -> None:
    browser = await site.browser("WRITER")

    async def refuse(*_: object) -> None:
        raise ServiceUnavailable("no answer") if status is None else GatewayError(status, "", "refused")

    monkeypatch.setattr(InProcessGatewayClient, "call", refuse)
    answer = await browser.get("/series")
    assert (answer.status_code == 303) is not is_valid


@requirement("dashboard.sign-in")
async def test_a_key_that_may_not_read_does_not_come_in(site: Site, stranger: httpx.AsyncClient) -> None:
    digest = next(d for d, p in site.world.ring._principals.items() if p.name == "bob")
    site.world.ring._principals[digest] = Principal("bob", "agent", frozenset(("write",)))
    answer = await stranger.post("/sign-in", data={"key": "bob-key-7c1e"})
    assert (answer.status_code, "no read permission" in answer.text) == (403, True)


@requirement("dashboard.csrf")
async def test_a_form_of_another_session_or_site_does_nothing(site: Site) -> None:
    await site.world.register("ann")
    task_id = await site.world.submit()
    browser = await site.browser()
    other = re.search(r'name="csrf" value="([^"]+)"', await site.read("/tasks", key="SECOND"))
    own = re.search(r'name="csrf" value="([^"]+)"', await site.read("/tasks"))
    assert other
    assert own
    for token, headers in (
        ("", {}),
        (other[1], {}),
        (own[1], {"Origin": "https://evil.test"}),
        (own[1], {"Sec-Fetch-Site": "cross-site"}),
        (own[1], {"Sec-Fetch-Site": "same-site"}),
    ):
        answer = await browser.post(f"/tasks/{task_id}/cancel", data={"csrf": token}, headers=headers)
        assert answer.status_code == 403, (token, headers)
    assert (await site.world.task(task_id))["status"] == "queued"
    as_header = await browser.post(f"/tasks/{task_id}/cancel", headers={"X-CSRF": own[1], "Origin": LOCAL})
    assert as_header.status_code == 303


@requirement("dashboard.csp")
@pytest.mark.parametrize("path", ["/", "/tasks", "/tasks/none", "/sign-in", "/nowhere"])
async def test_no_page_lets_the_browser_run_what_is_not_a_file_of_ours(site: Site, path: str) -> None:
    answer = await (await site.browser()).get(path)
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-store"
    assert not re.search(r"<script(?![^>]* src=)|<style| style=| on[a-z]+=", answer.text)


@requirement("dashboard.sign-in", "dashboard.csrf")
async def test_a_form_of_an_earlier_session_returns_its_texts_and_leads_back(site: Site) -> None:
    earlier, form = await site.token("SECOND"), {"text": "A long note", "apiKey": "sk-7c1e"}
    browser, origin = await site.browser(), {"Origin": LOCAL, "Referer": f"{LOCAL}/memory/edit?path=n.md"}
    answer = await browser.post("/memory/edit", data=form | {"csrf": earlier}, headers=origin)
    assert answer.status_code == 403
    assert re.findall("<textarea[^>]*>\n([^<]*)<", answer.text) == ["A long note"]
    assert 'href="/memory/edit?path=n.md">Back</a>' in answer.text
    foreign = await browser.post("/memory/edit", data=form, headers=origin | {"Origin": "https://evil.test"})
    assert (foreign.status_code, "A long note" in foreign.text, ">Back<" in foreign.text) == (403, False, False)


@requirement("dashboard.refused-texts")
@pytest.mark.parametrize(
    ("path", "key", "status"),
    [("/console", "READER", 403), ("/tasks/unknown/reject", "ADMIN", 404), ("/tasks/unknown/grade", "ADMIN", 400)],
)
async def test_a_form_that_is_refused_returns_its_texts(site: Site, path: str, key: str, status: int) -> None:
    fields = {"instruction": "A <b>long</b> text", "comment": "役に立たない", "apiKey": "Key: sk-7c1e"}
    page = (await site.send(path, status, key=key, **fields)).text
    texts = ["A &lt;b&gt;long&lt;/b&gt; text", "役に立たない"]
    assert re.findall('<textarea[^>]*aria-label="What you wrote">\n([^<]*)<', page) == texts
    assert "sk-7c1e" not in page


@requirement("dashboard.refused-texts")
async def test_a_form_that_an_error_of_the_dashboard_ends_returns_its_texts(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*args: object, **options: object) -> None:
        raise RuntimeError("no answer")

    await site.token()  # signs in
    monkeypatch.setattr(InProcessGatewayClient, "call", fail)
    page = (await site.send("/tasks/unknown/reject", 500, comment="A long text")).text
    assert re.findall('<textarea[^>]*aria-label="What you wrote">\n([^<]*)<', page) == ["A long text"]


@requirement("dashboard.csp")
async def test_files_are_kept_by_the_browser_under_addresses_of_their_content(site: Site) -> None:
    page = await site.read("/")
    addresses = re.findall(r'(?:src|href)="(/static/[^"]+)"', page)
    assert len(addresses) >= 5
    browser = await site.browser()
    for address in addresses:
        answer = await browser.get(address)
        assert answer.status_code == 200, address
        assert "immutable" in answer.headers["cache-control"]
    assert (await browser.get("/static/../app.py")).status_code in (303, 404)
    assert (await browser.get("/static/%2e%2e/site/app.py")).status_code == 404


ANN = {"name": "ann", "role": "admin", "permissions": ["read"], "tenant": "default"}


@requirement("dashboard.sign-in")
def test_sessions_end_when_they_are_not_used_and_when_there_are_too_many() -> None:
    now = [0.0]
    sessions = SessionStore(lambda: now[0])
    first = sessions.create("k", ANN)
    now[0] = IDLE_SECONDS - 1
    assert sessions.find(first) is not None
    now[0] = 2 * IDLE_SECONDS
    assert sessions.find(first) is None
    tokens = []
    for _ in range(MAX_SESSIONS + 1):
        now[0] += 1
        tokens.append(sessions.create("k", ANN))
    assert sessions.find(tokens[0]) is None
    assert sessions.find(tokens[-1]) is not None


@requirement("dashboard.session-lifetime")
def test_a_session_ends_at_its_lifetime_however_busy_it_is() -> None:
    now = [0.0]
    sessions = SessionStore(lambda: now[0], lifetime=3 * IDLE_SECONDS)
    token = sessions.create("k", ANN)
    for _ in range(6):
        now[0] += IDLE_SECONDS / 2
        assert sessions.find(token) is not None
    now[0] += 1
    assert sessions.find(token) is None


@requirement("dashboard.session-lifetime")
def test_over_tls_a_cookie_without_the_prefix_is_no_session() -> None:
    plain, prefixed = {SESSION_COOKIE: "planted"}, {HOST_SESSION_COOKIE: "own", SESSION_COOKIE: "planted"}
    assert (read_session_cookie(plain, is_tls=True), read_session_cookie(plain, is_tls=False)) == ("", "planted")
    assert (read_session_cookie(prefixed, is_tls=True), read_session_cookie(prefixed, is_tls=False)) == ("own", "own")


@requirement("dashboard.session-lifetime")
async def test_behind_a_proxy_with_tls_a_cookie_without_the_prefix_is_no_session(stranger: httpx.AsyncClient) -> None:
    answer = await stranger.post("/sign-in", data={"key": KEY}, headers={"X-Forwarded-Proto": "https"})
    token = answer.cookies[HOST_SESSION_COOKIE]
    for name, status in ((HOST_SESSION_COOKIE, 200), (SESSION_COOKIE, 303)):
        headers = {"Cookie": f"{name}={token}", "X-Forwarded-Proto": "https"}
        assert (await stranger.get("/tasks", headers=headers)).status_code == status


@requirement("dashboard.sign-in")
async def test_an_agents_key_opens_no_pages(stranger: httpx.AsyncClient) -> None:
    answer = await stranger.post("/sign-in", data={"key": "bob-key-7c1e"})
    assert answer.status_code == 403
    assert "Agent keys cannot sign in" in answer.text
