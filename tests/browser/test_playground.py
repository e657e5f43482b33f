"""Conversations with models in a real browser: several turns, answers as they come, and a stop."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from axe_playwright_python.base import AXE_FILE_PATH
from playwright.sync_api import Browser, expect

from tests.browser.conftest import SIZES, Tab
from tests.browser.test_pages import violations
from tests.conftest import KEYS, Service
from tests.patience import until
from tests.requirements import requirement
from tests.stub import Answer, Asked, serving

pytestmark = [pytest.mark.slow, pytest.mark.together("browser")]


class Provider:
    """Answers with how many messages it got; a prompt "wait" is answered when `go` is set."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def __call__(self, asked: Asked, _: int) -> Answer:
        if asked.method == "GET":
            models = [{"id": name, "object": "model"} for name in ("large", "small")]
            return Answer(body={"object": "list", "data": models})
        body = json.loads(asked.body)
        prompt = body["messages"][-1]["content"]
        if prompt.startswith("wait") and body["model"] == "small":
            self.go.wait(60)
        message: dict[str, Any] = {"role": "assistant", "content": f"{body['model']} has read {len(body['messages'])}."}
        usage = {"prompt_tokens": 120, "completion_tokens": 30, "prompt_tokens_details": {"cached_tokens": 64}}
        return Answer(body={"id": "x", "choices": [{"message": message, "finish_reason": "stop"}], "usage": usage})


@pytest.fixture
def provider() -> Iterator[tuple[Provider, str]]:
    made = Provider()
    with serving(made) as (address, _):
        yield made, address
        made.go.set()


@pytest.fixture
def service(serve: Any, provider: tuple[Provider, str]) -> Service:
    started: Service = serve(
        SERVICE_EMBEDDING_MODEL="none",
        OPENAI_API_KEY="x",
        OPENAI_BASE_URL=f"{provider[1]}/v1",
        SERVICE_LLM_LOG_CONTENT="true",
        SERVICE_LLM_PRICES="openai/*=1/2",
    )
    return started


@requirement("dashboard.page-playground", "dashboard.page-calls")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_conversation_goes_on_side_by_side_and_one_side_is_stopped(
    chromium: Browser, service: Service, provider: tuple[Provider, str], scheme: Any, tmp_path: Path
) -> None:
    context = chromium.new_context(viewport=SIZES["narrow"], color_scheme=scheme)
    tab = Tab(context.new_page(), service.ready["dashboard"]).sign_in()
    page = tab.open("/models/playground").live().page
    page.locator("[name=model0]").fill("openai/large")
    page.locator("[name=model1]").fill("openai/small")
    prompt = page.locator("#prompt")
    prompt.fill("Hello")
    page.get_by_role("button", name="Ask", exact=True).click()
    large, small = page.locator(".turns").nth(0), page.locator(".turns").nth(1)
    expect(large).to_contain_text("large has read 1.")
    expect(small).to_contain_text("small has read 1.")
    prompt.fill("wait for me")
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(large).to_contain_text("large has read 3.")
    small.get_by_role("button", name="Stop").click()
    expect(small).to_contain_text("Stopped")
    api = httpx.Client(base_url=service.address, headers={"X-API-Key": KEYS["ADMIN"].split(":")[0]}, timeout=200)
    until(lambda: "CANCELLED" in [call["outcome"] for call in api.get("/api/v1/llm/calls").json()["calls"]])
    prompt.fill("And now?")
    page.get_by_role("button", name="Ask", exact=True).click()
    expect(large).to_contain_text("large has read 5.")
    # What was stopped is not a part of the conversation.
    expect(small).to_contain_text("small has read 3.")
    rules = AXE_FILE_PATH.read_text()
    found = violations(page, rules)
    page.screenshot(path=tmp_path / f"playground-{scheme}.png", full_page=True)
    large.get_by_role("link", name="The call").last.click()
    expect(page.locator(".chat").first).to_contain_text("And now?")
    expect(page.get_by_role("button", name="Delete prompt and answer")).to_be_visible()
    found += violations(page, rules)
    page.screenshot(path=tmp_path / f"call-{scheme}.png", full_page=True)
    for name in ("models", "models/calls"):
        tab.open(f"/{name}").live()
        found += violations(page, rules)
        assert not page.evaluate("document.documentElement.scrollWidth > innerWidth")
    page.on("dialog", lambda dialog: dialog.accept())
    tab.open("/models/calls").page.get_by_text("Delete kept prompts and answers").click()
    page.get_by_label("Of the key").fill("admin")
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("status").filter(has_text="deleted")).to_be_visible()
    calls = api.get("/api/v1/llm/calls").json()["calls"]
    assert {api.get(f"/api/v1/llm/calls/{call['call_id']}").json()["content"] for call in calls} == {"none"}
    context.close()
    assert [error for error in [*found, *tab.errors] if "htmx:" not in error] == []
