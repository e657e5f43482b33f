"""Requests and data that somebody made to do harm: a page refuses them, and never fails."""

from __future__ import annotations

import asyncio
import re
from typing import Any
from urllib.parse import quote

import httpx
import pytest

from stentor.surfaces.dashboard.pages import app
from stentor.surfaces.dashboard.presenters import filters
from stentor.surfaces.dashboard.presenters.notes import note_rendering
from stentor.web.sse import ENDED_MESSAGE
from stentor.web.wire import encode_cursor
from tests.domains.governance.conftest import GovernanceClient
from tests.domains.streams import parse, watched
from tests.requirements import requirement
from tests.surfaces.dashboard.signed_in import Site

PARTS = ("a%00b", "%FF", "%3F", "x" * 3000, "%0d%0aX:1", "%5B", "nobody")
VALUES = ("a%00b", "%ED%A0%80", "x" * 9000, "9" * 30, quote("['\"<b>"))
CURSORS: tuple[tuple[Any, ...], ...] = ((1,), (10**40, "a"), (-5, "a"), (1, "\0"), (2**62, "x"), (1.5, "x"), ([], {}))
_PARAMETER = re.compile(r"\{[^}]+\}")
NAMES = (
    *("status", "agent", "q", "cursor", "capability", "tier", "alert", "range", "part", "before", "priority"),
    *("event", "days", "mode", "path", "version", "from", "name", "notice", "missing"),
)


def addresses(agent_id: str, task_id: str) -> list[str]:
    """Every page, and every one with parts that name nothing."""
    found = []
    for method, path, _ in app.ROUTES:
        if method == "GET" and path != "/live":
            real = path.replace("{agent_id}", agent_id).replace("{task_id}", task_id)
            real = real.replace("{task_id:path}", task_id)
            found += [_PARAMETER.sub(part, path) for part in PARTS if "{" in path]
            found += [real] if "{" not in real and not real.endswith("/stream") else []
    return found


def queries() -> list[str]:
    plain = [f"{name}={value}" for name in NAMES for value in VALUES]
    return plain + [f"cursor={quote(encode_cursor(*parts))}" for parts in CURSORS]


async def status(browser: httpx.AsyncClient, address: str, **headers: str) -> int:
    return (await browser.get(address, headers=headers)).status_code


async def test_no_page_fails_of_what_stands_in_its_address(site: Site) -> None:
    agent_id = await site.world.register()
    task_id = await site.world.do(agent_id)
    browser = await site.browser()
    pages = addresses(agent_id, task_id)
    wrong = [(one, found) for one in pages if (found := await status(browser, one)) not in (200, 303, 400, 404, 501)]
    assert wrong == []


@pytest.mark.parametrize("path", ["/", "/tasks", "/agents", "/agents/weights", "/governance", "/messages", "/models"])
async def test_no_list_fails_of_what_stands_in_its_query(site: Site, path: str) -> None:
    browser = await site.browser()
    asked = [f"{path}?{query}" for query in queries()]
    wrong = [(one, found) for one in asked if (found := await status(browser, one)) not in (200, 303, 400)]
    assert wrong == []


async def test_every_page_has_the_part_that_a_live_page_asks_for(site: Site) -> None:
    agent_id = await site.world.register()
    task_id = await site.world.do(agent_id)
    browser = await site.browser()
    real = [one for one in addresses(agent_id, task_id) if not any(part in one for part in PARTS)]
    for address in real:
        for query in ("", "?part=runs", "?cursor=x"):
            found = await status(browser, address + query, **{"HX-Request": "true", "X-Live": "1"})
            assert found in (200, 303, 400, 404, 501), (address, query)


@pytest.mark.parametrize("wanted", ["//[", "//\u2100", "/\\evil", "/\t/evil", "//evil"])
async def test_the_door_takes_any_text_for_where_somebody_wanted_to_go(site: Site, wanted: str) -> None:
    answer = await site.board.http.get("/sign-in", params={"next": wanted})
    assert (answer.status_code, 'name="next" value="/"' in answer.text) == (200, True)


@pytest.mark.parametrize("origin", ["http://[", "null", "", "http://evil.example"])
async def test_the_door_refuses_a_form_of_no_origin_that_is_ours(site: Site, origin: str) -> None:
    answer = await site.board.http.post("/sign-in", data={"key": "x"}, headers={"Origin": origin})
    assert answer.status_code == 403


@pytest.mark.parametrize("charset", ["unicode_escape", "punycode", "undefined"])
async def test_a_form_cannot_bring_an_encoding_of_its_own(site: Site, charset: str) -> None:
    body = b'--B\r\nContent-Disposition: form-data; name="instruction"\r\n\r\n\\ud800 hello\r\n--B--\r\n'
    kind = {"Content-Type": f"multipart/form-data; boundary=B; charset={charset}"}
    stranger = await site.board.http.post("/sign-in", content=body, headers=kind)
    known = await (await site.browser()).post("/console", content=body, headers=kind)
    assert (stranger.status_code, known.status_code) == (415, 415)


@pytest.mark.parametrize("timeout", ["9" * 5000, "9" * 30, "²", "-1", "1e3"])
async def test_a_timeout_that_is_no_number_of_seconds_is_told_in_the_form(site: Site, timeout: str) -> None:
    answer = await site.send("/console", 400, instruction="hello", timeout=timeout)
    assert "timeout_seconds" in answer.text


async def test_the_stream_of_a_task_that_one_may_not_see_is_no_stream(site: Site) -> None:
    await site.world.register()
    task_id = await site.world.submit()
    for address in ("/tasks/nobody/stream", f"/tasks/{task_id}/stream"):
        answer = await (await site.browser("OTHER")).get(address)
        assert (answer.status_code, answer.headers["content-type"]) == (404, "text/html; charset=utf-8")


@requirement("activity.stream-ends-with-key")
async def test_the_stream_of_an_open_page_ends_when_its_user_signs_out(site: Site) -> None:
    agent = await site.world.register()
    task_id = await site.world.submit()
    epoch = int((await site.world.claim(agent))["epoch"])
    browser = await site.browser("READER")
    token = await site.token("READER")
    reading = asyncio.create_task(browser.get(f"/tasks/{task_id}/stream"))
    await watched(site.world)
    await browser.post("/sign-out", data={"csrf": token})
    told = {"epoch": epoch, "tokens": ["secret"]}
    assert (await site.world.admin.post(f"/api/v1/tasks/{task_id}/tokens", json=told)).is_success
    found = parse((await reading).text)
    assert (found[-1].event, found[-1].data["error"]) == ("error", ENDED_MESSAGE)
    assert "token" not in [frame.event for frame in found]


async def test_buttons_are_shown_to_keys_that_may_use_them(site: Site) -> None:
    await site.world.register()
    task = f"/tasks/{await site.world.submit()}"
    assert f"{task}/cancel" in await site.read(task, key="WRITER")
    assert f"{task}/cancel" not in await site.read(task, key="READER")
    assert 'value="send"' in await site.read("/messages/new", key="WRITER")
    reader = await site.read("/messages/new", key="READER")
    assert ('value="send"' in reader, 'value="check"' in reader) == (False, True)


def table(prefix: str = "", end: str = "\n") -> str:
    """A table of a kilobyte whose rows have one cell of 256 each."""
    return end.join(prefix + line for line in ("|a" * 256 + "|", "|-" * 256 + "|", *["x"] * 256))


TABLES = [table(), table("> "), "- " + table("  ").lstrip(), table(end="\r"), "text\n" + table("\t> > ")]


@pytest.mark.parametrize("text", ["[" * 5_000_000, "[[" * 100_000, "[](" * 30_000, "<" * 300_000, *TABLES])
def test_a_text_that_takes_long_to_read_is_shown_as_it_is(text: str) -> None:
    made = (filters.render_markdown(text), note_rendering.render_note(text, {"from": "a.md"}))
    assert all(one.startswith('<pre class="code"') and len(one) < 1_300_000 for one in made)


def test_a_table_of_a_usual_size_is_rendered() -> None:
    text = "\n".join(["Found:", "", "| a | b |", "|---|:-:|", *["| ls | wc |"] * 1_000])
    made = (filters.render_markdown(text), note_rendering.render_note(text, {"from": "a.md"}))
    assert [one.count("<td") for one in made] == [2_000, 2_000]


async def test_who_may_not_list_agents_reads_no_names_of_those_that_have_none_of_the_tasks(site: Site) -> None:
    await site.world.do(await site.world.register("ann"))
    await site.world.register("bea-of-whom-nothing-is-told")
    assert "bea-of" in await site.read("/tasks")
    reader = await site.read("/tasks", key="READER")
    assert (">ann</option>" in reader, "bea-of" in reader) == (True, False)


async def test_what_waits_for_an_admin_is_not_counted_for_others(site: Site) -> None:
    await site.world.register(trust_tier="human")
    await site.world.submit()
    governance = GovernanceClient(site.world)
    await governance.propose(await governance.register_trusted(0.95), {"breaking": True})
    assert "update to review" in await site.read("/")
    reader = await site.read("/", key="READER")
    assert ("task to approve" in reader, "to review" in reader) == (False, False)


def test_two_versions_of_few_different_lines_are_compared_at_once() -> None:
    found = note_rendering.diff_texts("\n".join(["x"] * 2_000), "\n".join(["x", "y"] * 1_000))
    assert found is not None
    assert [line.text for line in found if line.kind == "add"].count("y") == 1_000
