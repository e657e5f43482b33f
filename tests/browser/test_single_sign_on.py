"""Sign-in with a real OpenID Connect provider (npm `oidc-provider`) in a real browser, with a real service."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.conftest import SIZES, WAIT
from tests.conftest import KEYS, Service
from tests.identity_provider import CLIENT, SECRET
from tests.ports import free_port
from tests.requirements import requirement
from tests.system import need

IDENTITY = Path(sys.prefix) / "identity"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not (IDENTITY / "node_modules").exists(), reason="make test-all sets the provider up"),
]


@pytest.fixture
def office(serve: Callable[..., Service]) -> Iterator[Service]:
    """A service whose people sign in with the provider; their groups are in their names."""
    port, board = free_port(), free_port()
    words = [need("node"), "provider.mjs", str(port), f"http://127.0.0.1:{board}/sign-in/callback"]
    with subprocess.Popen(
        words, cwd=IDENTITY, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as provider:
        assert provider.stdout is not None
        assert provider.stdout.readline() == "ready\n"
        yield serve(
            SERVICE_DASHBOARD_PORT=str(board),
            SERVICE_OIDC_ISSUER=f"http://localhost:{port}",
            SERVICE_OIDC_CLIENT_ID=CLIENT,
            SERVICE_OIDC_CLIENT_SECRET=SECRET,
            SERVICE_OIDC_SCOPES="openid email groups",
            SERVICE_OIDC_ROLES="platform=admin,staff=viewer",
            SERVICE_OIDC_LABEL="Example ID",
        )
        provider.terminate()


def sign_in(page: Page, board: str, name: str, path: str = "/") -> None:
    """Over the button and the provider's own forms."""
    page.goto(board + path)
    page.get_by_role("link", name="Sign in with Example ID").click()
    page.get_by_placeholder("Enter any login").fill(name)
    page.get_by_placeholder("and password").fill("any")
    page.get_by_role("button", name="Sign-in").click()
    page.get_by_role("button", name="Continue").click()


@requirement("people.sign-in", "people.claims", "dashboard.single-sign-on")
def test_people_sign_in_with_a_real_provider(chromium: Browser, office: Service) -> None:
    board = office.ready["dashboard"]
    contexts = [chromium.new_context(viewport=SIZES["narrow"]) for _ in range(3)]
    admin, viewer, stranger = (context.new_page() for context in contexts)
    for page in (admin, viewer, stranger):
        page.set_default_timeout(WAIT)
    sign_in(admin, board, "anna-platform", "/tasks?status=failed")
    admin.wait_for_url(board + "/tasks?status=failed")
    admin.goto(board + "/people")
    expect(admin.get_by_role("strong").filter(has_text="anna-platform@example.com")).to_be_visible()
    sign_in(viewer, board, "vera-staff")
    viewer.wait_for_url(board + "/")
    expect(viewer.get_by_role("link", name="Keys & people")).to_have_count(0)
    admin.reload()
    admin.on("dialog", lambda dialog: dialog.accept())
    admin.get_by_role("button", name="Block").click()
    expect(admin.get_by_text("Blocked: all sessions have ended.")).to_be_visible()
    viewer.goto(board + "/tasks")
    expect(viewer.get_by_role("link", name="Sign in with Example ID")).to_be_visible()
    sign_in(stranger, board, "eve-sales")
    expect(stranger.get_by_role("alert")).to_contain_text("none of its groups has a role")
    headers = {"X-API-Key": KEYS["ADMIN"].split(":")[0]}
    audit = httpx.get(f"{office.address}/api/v1/audit", headers=headers).json()["events"]
    kinds = {event["event_type"] for event in audit}
    assert kinds >= {"signed_in", "sign_in_refused", "person_changed"}
    if folder := os.environ.get("STENTOR_PICTURES"):
        admin.screenshot(path=f"{folder}/people-narrow.png", full_page=True)
        stranger.screenshot(path=f"{folder}/sign-in-refused.png", full_page=True)
    for context in contexts:
        context.close()
