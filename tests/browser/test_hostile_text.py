"""Markup and script in every text that an agent can write stay text on every page of a real browser."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Dialog

from tests.browser.conftest import SIZES, Tab
from tests.browser.pages import pages
from tests.browser.seed import NAMES, Seed
from tests.conftest import KEYS, serving
from tests.databases import Databases, chosen, stores
from tests.requirements import requirement

pytestmark = [pytest.mark.slow, pytest.mark.together("browser")]
SCRIPT = "<img src=x onerror=alert(1)></script><script>alert(2)</script>"
HOSTILE = (
    f'{SCRIPT}"\' onfocus=alert(3) autofocus a=" [a](javascript:alert(4)) ![b](data:text/html,{SCRIPT}) {{{{7*7}}}}'
)
INJECTED = """() => [...document.querySelectorAll(
    'img[src="x"], script:not([src]), iframe, object, embed, base, [onerror], [onfocus], [autofocus][a], '
    + '[href^="javascript:" i], [href^="data:" i], [src^="data:text" i], [action^="javascript:" i]'
)].map(one => one.outerHTML.slice(0, 200))"""


class HostileClient:
    """Adds markup to the texts of each request, to fewer of them or none if the service refuses it."""

    def __init__(self, client: httpx.Client) -> None:
        self._client = client
        self.get = client.get

    def post(self, path: str, json: Any) -> httpx.Response:
        return self._send("POST", path, json)

    def put(self, path: str, json: Any) -> httpx.Response:
        return self._send("PUT", path, json)

    def _send(self, method: str, path: str, body: Any) -> httpx.Response:
        for kinds in (ALL, FREE, frozenset[str]()):
            answer = self._client.request(method, path, json=spoil(body, kinds), headers={"User-Agent": HOSTILE})
            if answer.status_code < 300:
                break
        return answer


FREE = frozenset(
    "text title description input result message question content value summary reason details arguments comment "
    "specialNotes context metadata customer initiated_by".split()
)
ALL = FREE | {"name", "options", "place", "team"}


def spoil(value: Any, kinds: frozenset[str], kind: str = "") -> Any:
    if isinstance(value, dict):
        return {name: spoil(member, kinds, name) for name, member in value.items()}
    if isinstance(value, list):
        return [spoil(member, kinds, kind) for member in value]
    # The seed finds its agents by these names.
    return f"{value} {HOSTILE}" if isinstance(value, str) and kind in kinds and value not in NAMES else value


@requirement("dashboard.pages-in-a-browser")
def test_markup_in_texts_is_shown_as_text_on_every_page(
    chromium: Browser, tmp_path_factory: pytest.TempPathFactory, databases: Databases
) -> None:
    with ExitStack() as stack:
        store = stack.enter_context(stores(databases, chosen()[0]))
        service = stack.enter_context(serving(tmp_path_factory.mktemp("hostile"), store))(
            SERVICE_EMBEDDING_MODEL="none"
        )
        first, second = (
            HostileClient(
                stack.enter_context(
                    httpx.Client(base_url=service.address, headers={"X-API-Key": KEYS[key].split(":")[0]}, timeout=200)
                )
            )
            for key in ("ADMIN", "SECOND")
        )
        made = Seed(first, second).all(12)  # type: ignore[arg-type] - has what the seed calls
        context = chromium.new_context(viewport=SIZES["wide"])
        tab = Tab(context.new_page(), service.ready["dashboard"]).sign_in()
        dialogs, found, shown = list[str](), list[str](), list[str]()

        def dismiss(dialog: Dialog) -> None:
            dialogs.append(f"{tab.page.url}: {dialog.message}")
            dialog.dismiss()

        tab.page.on("dialog", dismiss)
        for name, path, _ in pages(made):
            page = tab.open(path).live().page
            found += [f"{name}: {element}" for element in page.evaluate(INJECTED)]
            shown += [name] if "onerror=alert(1)" in page.locator("body").inner_text() else []
        context.close()
        assert [*dialogs, *found, *tab.errors] == []
        assert {"task", "task-failed", "task-asking", "session", "note", "update", "rollback", "agent"} <= set(shown)
