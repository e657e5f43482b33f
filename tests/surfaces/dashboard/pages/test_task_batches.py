"""Actions on all tasks that match the filters of the list, also those beyond its first rows."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import httpx
import pytest

from stentor.surfaces.dashboard.pages.tasks import task_batches, task_list
from stentor.surfaces.dashboard.pages.tasks.task_batches import Batch
from stentor.surfaces.dashboard.site.sessions import MAX_KEPT
from tests.domains.tasks.search.test_task_search import index
from tests.patience import soon
from tests.requirements import requirement
from tests.surfaces.dashboard.signed_in import Site


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_batches, "TASKS_PER_PART", 2)
    monkeypatch.setattr(task_list, "PAGE_SIZE", 2)


async def choose(site: Site, action: str, key: str = "ADMIN", query: str = "") -> httpx.Response:
    """Choose all that match in the list; return the page that asks for confirmation."""
    return await site.follow("/tasks/selected", key=key, action=action, all="1", query=query)


def selection(asked: httpx.Response) -> str:
    found = re.search(r"selection=([\w-]+)", str(asked.request.url))
    assert found
    return found[1]


async def confirm(site: Site, asked: httpx.Response, key: str = "ADMIN", **fields: str) -> str:
    """Confirm, and return the page once the work has ended."""
    answer = await site.send("/tasks/matching/confirm", key=key, selection=selection(asked), **fields)

    async def ended() -> str | None:
        page = await site.read(answer.headers["location"], key=key)
        return None if "every 1s" in page else page

    page: str = await soon(ended)
    return page


async def statuses(site: Site, ids: list[str]) -> list[str]:
    return [(await site.world.task(task_id))["status"] for task_id in ids]


@requirement("dashboard.page-matching")
async def test_all_that_match_are_changed_and_no_others(site: Site) -> None:
    ann = await site.world.register("ann")
    ended = await site.world.do(ann)
    waiting = [await site.world.submit() for _ in range(7)]
    other = await site.world.submit(type="sum")
    page = await site.read("/tasks", type="echo")
    assert 'name="all"' in page
    assert "All 8 that match" in page
    assert 'name="all"' not in await site.read("/tasks", type="sum"), "the row is the whole list"
    asked = await choose(site, "cancel", query="type=echo")
    assert "Cancel all 7 tasks?" in asked.text
    assert 'type <b dir="auto">echo</b>' in asked.text
    assert "Each ends as cancelled." in asked.text
    assert await statuses(site, waiting) == ["queued"] * 7
    site.world.clock.advance(seconds=1)
    later = await site.world.submit()
    done = await confirm(site, asked)
    assert "7 tasks cancelled" in done
    assert 'href="/tasks?type=echo"' in done
    assert await statuses(site, waiting) == ["cancelled"] * 7
    assert await statuses(site, [ended, other, later]) == ["completed", "queued", "queued"]
    assert "7 tasks cancelled" in await confirm(site, asked), "a second click begins nothing"


@requirement("dashboard.page-matching")
async def test_the_page_says_what_a_restart_does_to_the_work(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    async def never_ends(batch: Batch, page: object) -> None:
        del batch, page

    monkeypatch.setattr(Batch, "run", never_ends)
    await site.world.register("ann")
    await site.world.submit()
    asked = await choose(site, "cancel")
    running = await site.follow("/tasks/matching/confirm", selection=selection(asked))
    assert "A restart of the service ends it: what is done stays done" in running.text


@requirement("dashboard.page-matching")
async def test_after_a_restart_the_page_shows_the_tasks_that_are_left(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    await site.world.register("ann")
    waiting = [await site.world.submit() for _ in range(7)]
    other = await site.world.submit(type="sum")
    asked = await choose(site, "cancel", query="type=echo&since=1h")
    change = Batch._change

    async def change_once(batch: Batch, page: Any, rows: dict[str, Any]) -> None:
        await change(batch, page, rows)
        await asyncio.Event().wait()  # as a process that is killed here

    monkeypatch.setattr(Batch, "_change", change_once)
    running = (await site.send("/tasks/matching/confirm", selection=selection(asked))).headers["location"]

    async def changed() -> bool:
        return (await statuses(site, waiting)).count("cancelled") == 2

    await soon(changed)
    monkeypatch.setattr(Batch, "_change", change)
    site.world.clock.advance(seconds=3590)
    later = await site.world.submit()
    part = await (await site.browser("OTHER")).get(running, headers={"HX-Request": "true"})
    assert part.headers["HX-Redirect"].startswith("/tasks/matching?"), "a page that was open is not half a page"
    left = await (await site.browser("SECOND")).get(running, follow_redirects=True)
    assert "These tasks are left." in left.text
    assert "Cancel all 5 tasks?" in left.text
    assert left.text.count('<li><a dir="auto" href="/tasks/') == 5
    assert "5 tasks cancelled" in await confirm(site, left, key="SECOND")
    assert await statuses(site, waiting) == ["cancelled"] * 7
    assert await statuses(site, [other, later]) == ["queued"] * 2


@requirement("dashboard.page-matching")
@pytest.mark.parametrize(
    "wrong",
    [
        "action=delete&before=2026-01-01T00:00:00Z",
        "action=cancel&before=2026-01-01",
        "action=cancel&before=x",
        "action=cancel&before=0001-01-01T00:00:00Z&since=24h",
    ],
)
async def test_an_incomplete_address_leads_to_the_list(site: Site, wrong: str) -> None:
    await site.read(f"/tasks/matching?selection=none&{wrong}", 303)


@requirement("dashboard.page-matching")
async def test_a_filter_of_another_status_leaves_nothing_to_do(site: Site) -> None:
    await site.world.register("ann")
    waiting = [await site.world.submit() for _ in range(3)]
    asked = await choose(site, "retry", query="status=queued")
    assert "No task to retry" in asked.text
    assert "None of them can be queued again." in asked.text
    await confirm(site, asked)
    assert await statuses(site, waiting) == ["queued"] * 3


@requirement("dashboard.page-matching")
async def test_tasks_are_rejected_with_a_reason_and_retried_once(site: Site) -> None:
    careful = await site.world.register("careful", trust_tier="human", capabilities=["ask"])
    fields: dict[str, Any] = {"required_capabilities": ["ask"], "agent_preference": careful}
    asked = [await site.world.submit(**fields) for _ in range(5)]
    page = await confirm(site, await choose(site, "reject", query="status=pending_approval"), reason="Too dear.")
    assert "5 tasks rejected" in page
    assert (await site.world.task(asked[0]))["error"]["message"] == "Too dear."
    assert "5 tasks queued again" in await confirm(site, await choose(site, "retry"))
    assert await statuses(site, asked) == ["pending_approval"] * 5


@requirement("dashboard.page-matching")
async def test_the_key_decides_what_is_listed_and_changed(site: Site) -> None:
    await site.world.register("ann")
    waiting = [await site.world.submit() for _ in range(3)]
    await confirm(site, await choose(site, "cancel", key="OTHER"), key="OTHER")
    await site.read(f"/tasks/matching?selection={selection(await choose(site, 'cancel'))}", 303, key="OTHER")
    asked = await choose(site, "cancel", key="READER")
    assert "It ended early" in await confirm(site, asked, key="READER")
    assert await statuses(site, waiting) == ["queued"] * 3
    for fields in ({"action": "delete", "all": "1"}, {"all": "1"}):
        await site.send("/tasks/selected", 400, **fields)
    assert "This selection expired, or" in (await site.follow("/tasks/matching/confirm", selection="x")).text
    assert "This selection expired, or" in (await site.follow("/tasks/matching/stop", selection="x")).text


@requirement("dashboard.page-matching")
async def test_the_words_of_a_search_are_a_filter(site: Site) -> None:
    await site.world.register("ann")
    blue = [await site.world.submit(input="a blue whale") for _ in range(3)]
    red = [await site.world.submit(input="a red whale") for _ in range(3)]

    await index(site.world)
    assert "All 2+ that match" in await site.read("/tasks", q="blue")
    asked = await choose(site, "cancel", query="q=blue")
    assert "Cancel all 3 tasks?" in asked.text
    assert "3 tasks cancelled" in await confirm(site, asked)
    assert await statuses(site, blue + red) == ["cancelled"] * 3 + ["queued"] * 3


async def test_an_open_page_is_kept_however_many_selections_are_made_meanwhile(site: Site) -> None:
    await site.world.register("ann")
    await site.world.submit()
    asked = await choose(site, "cancel")
    for _ in range(MAX_KEPT + 1):
        await choose(site, "cancel")
        assert "Cancel 1 task?" in await site.read(f"/tasks/matching?selection={selection(asked)}")


class SlowPages:
    """Answers lists and changes of tasks; the first change waits until it is let go."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.begun = asyncio.Event()
        self.left = {"queued": [f"q{n}" for n in range(4)], "executing": []}
        self.changed: list[str] = []

    async def call_patiently(self, operation: str, **arguments: Any) -> dict[str, Any]:
        if operation == "tasks.list":
            ids = self.left.get(arguments["status"], [])
            start = int(arguments["cursor"] or 0)
            rows = [
                {"task_id": i, "title": i, "created_at": "9" if i == "late" else "1"} for i in ids[start : start + 2]
            ]
            return {"tasks": rows, "next_cursor": str(start + 2) if start + 2 < len(ids) else None}
        self.begun.set()
        await self.open.wait()
        ids = arguments["body"]["task_ids"]
        self.changed += ids
        errors = {i: {"message": "It has ended."} if i == "q1" else None for i in ids}
        # As if this one had waited for an approval until its list was read.
        self.left["executing"] = ["late", "moved"]
        failed = sum(error is not None for error in errors.values())
        return {
            "succeeded": len(ids) - failed,
            "failed": failed,
            "outcomes": [{"task_id": i, "error": error} for i, error in errors.items()],
        }


def batch() -> Batch:
    search = task_list.TaskListSearch(dict.fromkeys(task_list.FILTERS, ""), "", "", {})
    return Batch("cancel", search, "5", "", 4, is_exact=True)


async def test_a_stop_ends_the_work_after_the_part_that_is_changed() -> None:
    pages, work = SlowPages(), batch()
    running = asyncio.create_task(work.run(pages))  # type: ignore[arg-type]
    await pages.begun.wait()
    work.state = "stopping"
    pages.open.set()
    await running
    assert (work.state, pages.changed) == ("stopped", ["q0", "q1"])


async def test_each_task_is_changed_once_also_one_whose_status_changes_meanwhile() -> None:
    pages, work = SlowPages(), batch()
    pages.open.set()
    await work.run(pages)  # type: ignore[arg-type]
    assert pages.changed == ["q0", "q1", "q2", "q3", "moved"]
    assert (work.state, work.succeeded, work.failed) == ("done", 4, 1)
    assert work.problems[0]["title"] == "q1"
