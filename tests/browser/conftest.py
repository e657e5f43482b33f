"""A service with something in it, and a browser whose errors are the tests' failures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import httpx
import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect

from tests.browser.chromium import browser as open_browser
from tests.browser.seed import Seed, Seeded
from tests.conftest import KEYS, Service, serving
from tests.databases import Databases, chosen, stores
from tests.system import need

WAIT = 60_000
"""Milliseconds that something may take to appear; the machine may be busy."""
SIZES = {"wide": {"width": 1280, "height": 860}, "narrow": {"width": 390, "height": 844}}


@dataclass
class Installation:
    """A running service, what was put into it, and its gateway as two admins see it."""

    service: Service
    board: str
    seed: Seed
    made: Seeded
    api: httpx.Client


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """For a module alone: while it is open, a loop of its own runs in this thread, and no asynchronous test can."""
    expect.set_options(timeout=WAIT)
    with open_browser(need("chromium")) as opened:
        yield opened


@pytest.fixture(scope="session")
def installation(tmp_path_factory: pytest.TempPathFactory, databases: Databases) -> Iterator[Installation]:
    """On one database, for what a browser makes of the pages does not depend on it; what they show, the tests in
    tests/surfaces/dashboard hold on both.
    """
    with ExitStack() as stack:
        store = stack.enter_context(stores(databases, chosen()[0]))
        service = stack.enter_context(serving(tmp_path_factory.mktemp("pages"), store))(SERVICE_EMBEDDING_MODEL="none")
        clients = [
            stack.enter_context(httpx.Client(base_url=service.address, headers={"X-API-Key": key}, timeout=200))
            for key in (KEYS["ADMIN"].split(":")[0], KEYS["SECOND"].split(":")[0])
        ]
        seed = Seed(*clients)
        yield Installation(service, service.ready["dashboard"], seed, seed.all(), clients[0])


class Tab:
    """A page of the browser; `errors` are what it complained of."""

    def __init__(self, page: Page, board: str) -> None:
        self.page = page
        self.board = board
        self.errors: list[str] = []
        page.set_default_timeout(WAIT)
        page.on("pageerror", lambda error: self.errors.append(f"{page.url}: {error}"))
        page.on("console", self._console)

    def _console(self, message: ConsoleMessage) -> None:
        # That an answer was 4xx the browser says as an error too; where a test wants one, it says so.
        if "htmx:sendAbort" in message.text and self.errors and "htmx:afterRequest" in self.errors[-1]:
            self.errors.pop()  # a search that gave way to a newer one, which htmx complains of twice
        elif message.type in ("error", "warning"):
            self.errors.append(f"{self.page.url}: {message.text}")

    def sign_in(self, key: str = "ADMIN") -> Tab:
        self.open("/sign-in")
        self.page.get_by_label("Key").fill(KEYS[key].split(":")[0])
        self.page.get_by_role("button", name="Sign in").click()
        self.page.wait_for_url(self.board + "/")
        return self

    def open(self, path: str) -> Tab:
        self.page.goto(self.board + path)
        return self

    def live(self) -> Tab:
        """Wait until the page hears of changes."""
        self.page.locator("#live.on").wait_for()
        return self


@pytest.fixture
def tab(chromium: Browser, installation: Installation) -> Iterator[Tab]:
    """Somebody who is signed in with an admin's key; fails when any page had an error."""
    context = chromium.new_context(viewport=SIZES["wide"])
    opened = Tab(context.new_page(), installation.board).sign_in()
    yield opened
    context.close()
    assert opened.errors == []
