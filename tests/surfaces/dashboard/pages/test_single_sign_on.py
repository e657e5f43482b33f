"""Sign-in with a provider over the pages: the way there and back, and responses that somebody else began."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterator
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from stentor.core.clock import SECOND
from stentor.surfaces.dashboard.site import sessions
from stentor.testing import FixedClock
from tests.conftest import MakeWorld
from tests.identity_provider import Account, IdentityProvider, identity_provider
from tests.patience import soon
from tests.requirements import requirement
from tests.stub import Answer
from tests.surfaces.dashboard.board import LOCAL, Board
from tests.surfaces.dashboard.signed_in import Site

ANNA = Account("u-1", "anna@example.com", ["platform"])
VERA = Account("u-2", "vera@example.com", ["staff"])


@pytest.fixture
def provider(clock: FixedClock) -> Iterator[IdentityProvider]:
    with identity_provider(lambda: clock.now() / SECOND) as made:
        yield made


@pytest.fixture
async def office(make_board: Any, make_world: MakeWorld, provider: IdentityProvider) -> AsyncIterator[Site]:
    world = await make_world(**provider.settings, SERVICE_OIDC_LABEL="Example ID")
    site = Site(await make_board(world, **provider.settings, SERVICE_OIDC_LABEL="Example ID"))
    yield site
    for browser in site.browsers.values():
        await browser.aclose()


def new_browser(board: Board) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=board.http._transport, base_url=LOCAL, timeout=200)


async def begin(browser: httpx.AsyncClient, path: str = "") -> str:
    """Follow the button to the provider; answers the provider's address."""
    answer = await browser.get("/sign-in/provider", params={"next": path} if path else {})
    assert answer.status_code == 303, answer.text
    return answer.headers["location"]


async def sign_in(site: Site, provider: IdentityProvider, account: Account, path: str = "") -> httpx.Response:
    browser = site.browsers.setdefault(account.email, new_browser(site.board))
    return await browser.get(provider.sign_in(await begin(browser, path), account))


@requirement("dashboard.single-sign-on")
async def test_somebody_signs_in_with_the_provider_and_out_again(office: Site, provider: IdentityProvider) -> None:
    assert "Sign in with Example ID" in (await office.board.http.get("/sign-in")).text
    answer = await sign_in(office, provider, ANNA, "/tasks?status=failed")
    assert (answer.status_code, answer.headers["location"]) == (303, "/tasks?status=failed"), answer.text
    browser = office.browsers[ANNA.email]
    page = (await browser.get("/people")).text
    assert "anna@example.com" in page
    assert "st_" not in page
    (made,) = (await office.world.admin.get("/api/v1/people")).json()["people"]
    assert (made["sessions"], made["role"]) == (1, "admin")
    await office.send("/sign-out", key=ANNA.email)
    assert (await office.world.admin.get("/api/v1/people")).json()["people"][0]["sessions"] == 0
    assert (await browser.get("/tasks")).headers["location"].startswith("/sign-in")


@requirement("dashboard.single-sign-on")
@pytest.mark.parametrize("long", ["/tasks?q=" + "x" * 2_500, "/tasks?q=" + "\u00fc" * 1_500, "/" + "\x01" * 700])
async def test_a_long_address_is_forgotten_because_browsers_drop_a_large_cookie(
    office: Site, provider: IdentityProvider, long: str
) -> None:
    begun = await office.board.http.get("/sign-in/provider", params={"next": long})
    assert len(begun.headers["set-cookie"]) < 4_096
    answer = await sign_in(office, provider, ANNA, long)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")


@requirement("dashboard.single-sign-on")
async def test_what_somebody_may_not_do_is_not_offered(office: Site, provider: IdentityProvider) -> None:
    await sign_in(office, provider, VERA)
    page = (await office.browsers[VERA.email].get("/")).text
    assert 'href="/tasks"' in page
    assert 'href="/keys"' not in page
    refused = await office.browsers[VERA.email].get("/people")
    assert refused.status_code == 403
    assert f"permission &#39;admin&#39;, which &#39;{VERA.email}&#39; does not have" in refused.text


@requirement("dashboard.single-sign-on")
async def test_blocking_ends_the_pages_of_somebody_at_once(
    office: Site, provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stentor.surfaces.dashboard.site.page.CACHE_SECONDS", 0.0)
    await sign_in(office, provider, VERA)
    vera = office.browsers[VERA.email]
    assert (await vera.get("/tasks")).status_code == 200
    await office.send("/people/vera@example.com/block")
    answer = await vera.get("/webhooks")
    assert answer.status_code == 303
    refused = await sign_in(office, provider, VERA)
    assert refused.status_code == 403
    assert "blocked" in refused.text
    await office.send("/people/vera@example.com/unblock")
    assert (await sign_in(office, provider, VERA)).status_code == 303


@requirement("dashboard.single-sign-on-own")
async def test_a_response_counts_once_and_in_the_browser_that_began(office: Site, provider: IdentityProvider) -> None:
    mine, other = new_browser(office.board), new_browser(office.board)
    back = provider.sign_in(await begin(mine), ANNA)
    assert (await other.get(back)).status_code == 400  # login CSRF: a link that signs somebody in as the attacker
    await begin(other)
    assert (await other.get(back)).status_code == 400
    assert (await mine.get(f"{back}x")).status_code == 400
    for wrong in ("é", "\u2603", ""):
        assert (await mine.get("/sign-in/callback", params={"code": "x", "state": wrong})).status_code == 400
    spoiled = {b"Cookie": "stentor_sign_in=\xe9".encode("latin-1")}
    assert (await other.get("/sign-in/callback?code=x&state=y", headers=spoiled)).status_code == 400
    assert (await mine.get(back)).status_code == 303
    assert (await mine.get(back)).status_code == 400
    assert (await office.world.admin.get("/api/v1/people")).json()["people"][0]["sessions"] == 1
    await mine.aclose()
    await other.aclose()


@requirement("dashboard.single-sign-on-own")
async def test_over_tls_a_sibling_domain_cannot_plant_the_cookie_of_its_own_sign_in(
    office: Site, provider: IdentityProvider
) -> None:
    mine, other = new_browser(office.board), new_browser(office.board)
    for browser in (mine, other):
        browser.headers["X-Forwarded-Proto"] = "https"
    begun = await mine.get("/sign-in/provider")
    name, _, rest = begun.headers["set-cookie"].partition("=")
    value, *attributes = rest.split("; ")
    assert name.startswith("__Host-")
    assert {"Secure", "HttpOnly", "Path=/", "SameSite=lax"} <= set(attributes)
    back = urlsplit(provider.sign_in(begun.headers["location"], ANNA))
    # A browser takes no `__Host-` cookie from a sibling domain, but this one.
    planted = {"Cookie": f"stentor_sign_in={value}"}
    assert (await other.get(f"{back.path}?{back.query}", headers=planted)).status_code == 400
    answer = await mine.get(f"{back.path}?{back.query}", headers={"Cookie": f"{name}={value}"})
    assert answer.status_code == 303
    assert f'{name}="";' in answer.headers.get_list("set-cookie")[-1]
    await mine.aclose()
    await other.aclose()


@requirement("dashboard.single-sign-on-own")
@pytest.mark.parametrize("address", ["http://169.254.169.254/token", "file:///etc/passwd", ""])
@pytest.mark.parametrize("endpoint", ["token_endpoint", "jwks_uri"])
async def test_an_address_of_the_provider_that_may_not_be_called_is_its_failure(
    office: Site, provider: IdentityProvider, endpoint: str, address: str
) -> None:
    provider.description = {endpoint: address}
    answer = await sign_in(office, provider, ANNA)
    assert (answer.status_code, "The sign-in provider named" in answer.text) == (503, True), answer.text


@requirement("dashboard.single-sign-on-own")
async def test_a_code_of_another_sign_in_is_refused_by_its_challenge(office: Site, provider: IdentityProvider) -> None:
    mine, thief = new_browser(office.board), new_browser(office.board)
    code = parse_qs(urlsplit(provider.sign_in(await begin(mine), ANNA)).query)["code"][0]
    state = parse_qs(urlsplit(await begin(thief)).query)["state"][0]
    answer = await thief.get("/sign-in/callback", params={"code": code, "state": state})
    assert answer.status_code == 403
    assert "The code is not valid" in answer.text
    await mine.aclose()
    await thief.aclose()


@requirement("dashboard.single-sign-on-own")
async def test_what_the_provider_says_is_shown_as_text_and_leads_nowhere_else(
    office: Site, provider: IdentityProvider
) -> None:
    browser = new_browser(office.board)
    state = parse_qs(urlsplit(await begin(browser, "//evil.example/")).query)["state"][0]
    query = {"error": "access_denied", "error_description": "<script>alert(1)</script>", "state": state}
    answer = await browser.get("/sign-in/callback", params=query)
    assert answer.status_code == 403
    assert "<script>alert" not in answer.text
    back = provider.sign_in(await begin(browser, "//evil.example/"), ANNA)
    assert (await browser.get(back)).headers["location"] == "/"
    await browser.aclose()


@requirement("dashboard.single-sign-on")
async def test_failed_sign_ins_of_others_at_one_address_keep_nobody_out_and_fill_no_log(
    office: Site, provider: IdentityProvider, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "THROTTLE_WINDOW_SECONDS", math.inf)
    browser = new_browser(office.board)
    for _ in range(22):
        state = parse_qs(urlsplit(await begin(browser)).query)["state"][0]
        query = {"error": "access_denied", "error_description": "no\n2026-11-28 WARNING forged\x1b[2J", "state": state}
        assert (await browser.get("/sign-in/callback", params=query)).status_code == 403
    lines = [record.getMessage() for record in caplog.records if "failed with the provider" in record.getMessage()]
    assert len(lines) == 20
    assert all(line.isprintable() for line in lines)
    assert (await sign_in(office, provider, ANNA)).status_code == 303
    await browser.aclose()


@requirement("audit.refused-sign-ins")
async def test_a_response_that_cannot_be_trusted_is_in_the_audit_and_an_outage_of_the_provider_is_not(
    office: Site, provider: IdentityProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as outage:
        outage.setattr(provider, "_exchange", lambda _: Answer(503, {}))
        failed = await sign_in(office, provider, ANNA)
    assert (failed.status_code, "has failed: HTTP status 503" in failed.text) == (503, True)
    monkeypatch.setattr(provider, "change_claims", lambda claims: claims | {"nonce": "another"})
    assert (await sign_in(office, provider, ANNA)).status_code == 403

    async def recorded() -> Any:
        answer = await office.world.admin.get("/api/v1/audit", params={"category": "sign-ins"})
        return answer.json()["events"]

    (event,) = await soon(recorded)
    assert (event["event_type"], event["metadata"]["count"]) == ("sign_in_refused", 1)


@requirement("dashboard.single-sign-on")
async def test_without_a_provider_there_is_no_button_and_no_way(site: Site) -> None:
    assert "/sign-in/provider" not in (await site.board.http.get("/sign-in")).text
    for path in ("/sign-in/provider", "/sign-in/callback"):
        assert (await site.board.http.get(path)).headers["location"].startswith("/sign-in?")
    assert "SERVICE_OIDC_ISSUER" in await site.read("/people")


@requirement("dashboard.single-sign-on")
async def test_a_provider_that_is_down_leaves_the_keys(make_board: Any, make_world: MakeWorld) -> None:
    settings = {
        "SERVICE_OIDC_ISSUER": "http://127.0.0.1:1",
        "SERVICE_OIDC_CLIENT_ID": "x",
        "SERVICE_OIDC_ROLES": "*=viewer",
    }
    site = Site(await make_board(await make_world(**settings), **settings))
    answer = await site.board.http.get("/sign-in/provider")
    assert answer.status_code == 503
    assert "cannot be reached" in answer.text
    await (await site.browser()).aclose()
