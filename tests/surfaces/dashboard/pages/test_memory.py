"""The pages of the memory, as somebody without JavaScript sees them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock
from urllib.parse import urlencode

import pytest

from stentor.core.clock import HOUR
from stentor.core.db import Sql
from stentor.core.jsontext import JsonObject
from stentor.domains.memory.embedding.embedding_worker import PREPARING
from stentor.domains.memory.index.index import SearchIndex
from stentor.domains.memory.versions import history
from stentor.surfaces.dashboard.pages.memory import memory as memory_page
from stentor.surfaces.dashboard.pages.memory import memory_editing
from stentor.surfaces.dashboard.presenters.notes import note_rendering
from stentor.surfaces.dashboard.site.page import PageRequest
from tests.conftest import MakeWorld
from tests.domains.memory.test_semantic import Unprepared
from tests.domains.messaging.test_agents import all_events
from tests.patience import soon
from tests.requirements import requirement
from tests.surfaces.dashboard.signed_in import Site


@pytest.fixture(autouse=True)
def find_writers_at_any_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The ids of events are of the real time, and the versions of the test's clock, which stands still."""
    monkeypatch.setattr(history, "EVENT_ID_SKEW_US", HOUR)


@pytest.fixture
async def site(make_world: MakeWorld, make_board: Any) -> Any:
    """A world with a memory."""
    made = Site(await make_board(await make_world(SERVICE_MEMORY="1")))
    yield made
    for browser in made.browsers.values():
        await browser.aclose()


async def write(site: Site, path: str, content: str = "text\n", operation: str = "write", **fields: Any) -> None:
    frontmatter = {"frontmatter": fields.pop("frontmatter")} if "frontmatter" in fields else {}
    body = {"operation": operation, "document": {"path": path, "content": content, **frontmatter}, "metadata": fields}
    answer = await site.world.admin.post("/api/v1/memory/write", json=body)
    assert answer.status_code == 200, answer.text


async def note(site: Site, path: str, expected: int = 200, **query: str) -> str:
    return await at(site, "/memory/note?" + urlencode({"path": path, **query}), expected)


async def at(site: Site, address: str, expected: int = 200, key: str = "ADMIN") -> str:
    """A page by its whole address; a client that is given parameters forgets those of the address."""
    answer = await (await site.browser(key)).get(address)
    assert answer.status_code == expected, answer.text
    return answer.text


@requirement("dashboard.page-memory")
async def test_a_search_shows_notes_with_the_words_marked_in_any_form(site: Site) -> None:
    await write(site, "Plans/launch.md", "# Launch\n\nThe deployment is <b>on</b> Monday.\n")
    await write(site, "other.md", "# Other\n\nNothing is on the table.\n")
    for mode in ("keyword", "hybrid"):
        found = await site.part("/memory", q="deploy", mode=mode)
        assert "<mark>deployment</mark> is &lt;b&gt;on&lt;/b&gt; Monday" in found
        assert 'href="/memory/note?path=Plans%2Flaunch.md"' in found
        assert "other.md" not in found
        assert "<html" not in found
    missing = await site.part("/memory", q="zebra", mode="keyword")
    assert "No note matches" in missing
    assert "Try other words." in missing, "a semantic search needs a model"
    for question in ("where is the deployment", '"the deployment" is on'):
        assert "other.md" not in await site.part("/memory", q=question, mode="keyword"), "stop words find nothing"
    marked = await site.part("/memory", q="where is the deployment", mode="keyword")
    assert "The <mark>deployment</mark> is" in marked, "nor are they marked"
    whole = await site.read("/memory", mode="no such mode", q="deploy")
    assert "Note store" in whole
    assert "<html" in whole


@requirement("dashboard.page-memory")
async def test_a_search_says_that_the_index_is_being_built(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    for is_complete in (True, False):
        monkeypatch.setattr(SearchIndex, "was_reconciled", AsyncMock(return_value=is_complete))
        page = await site.read("/memory", q="deploy", mode="keyword")
        assert ("The search index is being built, so notes may be missing." in page) is not is_complete
        assert "index is being built, so" not in await site.read("/memory")


@requirement("dashboard.page-memory")
async def test_a_search_that_is_not_possible_says_so_and_the_page_stays(site: Site) -> None:
    page = await site.read("/memory", q="deploy")
    assert 'value="keyword" checked' in page
    assert 'value="hybrid" disabled' in page
    assert 'value="semantic" disabled' in page
    page = await site.read("/memory", 503, q="deploy", mode="semantic")
    assert "This search is not possible now" in page
    assert "Search by keyword instead" in page
    assert "Note store" in page
    await site.read("/memory", 400, q="x" * 20_000, mode="hybrid")
    assert (await site.part("/memory", q='" " "', mode="keyword")).strip()


@requirement("dashboard.page-memory")
async def test_a_note_is_markdown_whose_links_lead_to_notes(site: Site) -> None:
    text = (
        "# Launch\n\n<script>alert(1)</script> [[plan|the plan]] [x](javascript:alert(1)) [up](../top.md) `[[code]]`\n"
    )
    await write(site, "Plans/launch.md", text, frontmatter={"tags": ["a", "<i>"], "owner": "ann"})
    await write(site, "Plans/plan.md")
    await write(site, "top.md")
    page = await note(site, "Plans/launch.md")
    assert "<h2>Launch</h2>" in page
    assert "&lt;script&gt;alert(1)" in page
    assert 'href="javascript:' not in page
    assert "a, &lt;i&gt;" in page
    assert "<code>[[code]]</code>" in page
    links = [link.replace("&amp;", "&") for link in re.findall(r'href="(/memory/open[^"]+)"', page)]
    client = await site.browser()
    leads = [(await client.get(link)).headers["location"] for link in links]
    assert leads == ["/memory/note?path=Plans%2Fplan.md", "/memory/note?path=top.md"]


@requirement("dashboard.page-memory")
@pytest.mark.parametrize("name", ["nowhere", "../../../x", "a\x00b", "", "/", ".hidden", "x" * 5000])
async def test_a_link_to_no_note_leads_to_a_search(site: Site, name: str) -> None:
    answer = await (await site.browser()).get("/memory/open", params={"from": "a.md", "name": name})
    assert answer.status_code == 303
    assert answer.headers["location"].startswith("/memory?mode=keyword&q=")


@requirement("dashboard.page-memory")
async def test_versions_name_their_writer_and_are_compared_with_the_present_one(site: Site) -> None:
    agent = await site.world.register("ann")
    await write(site, "a.md", "one\nsame\n<b>old</b>\n", source_agent=agent)
    site.world.clock.advance(seconds=0.01)
    await write(site, "a.md", "one\nsame\nnew\n", frontmatter={"k": 1})
    page = await note(site, "a.md")
    versions = re.findall(r"version=([0-9a-f]{64})", page)
    assert len(versions) == 1
    assert f'<a dir="auto" href="/agents/{agent}">ann</a> with the key admin' in page
    assert "by admin</span>" in page
    old = await note(site, "a.md", version=versions[0])
    assert '<div class="del"><span class="sign">−</span>&lt;b&gt;old&lt;/b&gt;</div>' in old
    assert '<div class="add"><span class="sign">+</span>new</div>' in old
    assert '<div class="add"><span class="sign">+</span>k: 1</div>' in old
    for wrong in ("0" * 64, "none", "..", "a/b", "%"):
        await note(site, "a.md", 404, version=wrong)


@requirement("dashboard.page-memory")
async def test_a_deleted_note_still_shows_its_versions(site: Site) -> None:
    await write(site, "a.md", "what it said\n")
    answer = await site.world.admin.post(
        "/api/v1/memory/write", json={"operation": "delete", "document": {"path": "a.md"}}
    )
    assert answer.status_code == 200, answer.text
    page = await note(site, "a.md")
    assert "This note was deleted" in page
    version = re.findall(r"version=([0-9a-f]{64})", page)[0]
    assert "what it said" in await note(site, "a.md", version=version)


@requirement("dashboard.page-memory")
async def test_bad_paths_are_told_and_no_failure(site: Site) -> None:
    await note(site, "none.md", 404)
    for wrong in ("", "../a.md", "/etc/passwd", "a\x00.md", ".obsidian/x", "x" * 5000):
        await note(site, wrong, 400)


@requirement("dashboard.page-memory")
async def test_the_memory_is_for_admins_of_its_tenant(site: Site) -> None:
    await write(site, "a.md", "secret plan\n")
    for key in ("READER", "OTHER"):
        for path in ("/memory?q=secret", "/memory/note?path=a.md", "/memory/open?from=a.md&name=a"):
            page = await at(site, path, 403, key)
            assert "secret plan" not in page
    assert "admin" in await site.read("/memory", 403, key="READER")


@requirement("dashboard.page-memory")
async def test_a_memory_that_is_off_says_how_to_switch_it_on(make_board: Any) -> None:
    site = Site(await make_board())
    page = await site.read("/memory")
    assert "SERVICE_MEMORY=0" in page
    await note(site, "a.md", 501)
    for browser in site.browsers.values():
        await browser.aclose()


@requirement("dashboard.page-memory")
async def test_looking_at_the_health_leaves_nothing_in_the_run_log(site: Site) -> None:
    """Else a page that is told of each event would ask for ever."""
    await write(site, "a.md")
    rows = site.board.world.kernel.infra.db

    async def events() -> int:

        return int((await rows.read(lambda tx: tx.rows(Sql("select count(*) from events"))))[0][0])

    await site.browser()  # signing in is an event
    before = await events()
    assert "Note store" in await site.part("/memory/health")
    assert await events() == before


@requirement("dashboard.page-memory")
async def test_a_memory_without_a_model_by_choice_is_called_keyword_only(site: Site) -> None:
    health = await site.part("/memory/health")
    assert '<span class="status keyword only">keyword only</span>' in health
    assert "because <code>SERVICE_EMBEDDING_MODEL</code> is <code>none</code>" in health
    assert "degraded" not in health


def test_an_excerpt_has_words_and_no_marks_of_markdown() -> None:
    line = "… # Plan See [[launch|the launch]], [[a/b]] - today. > [!warning]- Not - [ ] ask - [x] done C# a > b"
    assert note_rendering.strip_markup(line) == "… Plan See the launch, a/b - today. Not ask done C# a b"


def test_texts_that_are_too_long_are_not_compared() -> None:
    assert note_rendering.diff_texts("a\n" * 3_000, "b\n" * 3_000) is None
    lines = note_rendering.diff_texts("".join(f"{n}\n" for n in range(100)), "".join(f"{n}\n" for n in range(99)))
    assert lines is not None
    assert [line.kind for line in lines] == ["gap", "same", "same", "same", "del"]
    assert lines[0].text == "96"


@pytest.fixture
async def two_vaults(make_world: MakeWorld, make_board: Any, tmp_path: Path) -> Any:
    world = await make_world(SERVICE_MEMORY="1", SERVICE_VAULTS=f"archive={tmp_path / 'archive'}")
    made = Site(await make_board(world))
    yield made
    for browser in made.browsers.values():
        await browser.aclose()


@requirement("dashboard.page-memory-vaults")
async def test_each_vault_has_its_own_search_notes_links_and_versions(two_vaults: Site) -> None:
    site = two_vaults
    for vault in ("default", "archive"):
        document = {"path": "a.md", "content": f"Of {vault}, a zeppelin. [[b]]\n"}
        body = {"operation": "write", "vault": vault, "document": document}
        assert (await site.world.admin.post("/api/v1/memory/write", json=body)).status_code == 200
    other = {"operation": "write", "vault": "archive", "document": {"path": "b.md", "content": "The other.\n"}}
    assert (await site.world.admin.post("/api/v1/memory/write", json=other)).status_code == 200
    page = await site.read("/memory", vault="archive", q="zeppelin", mode="keyword")
    assert '<a href="/memory?vault=archive" aria-current="page">archive</a>' in page
    assert '<input type="hidden" name="vault" value="archive">' in page
    assert 'data-src="/memory/health?vault=archive"' in page
    assert 'href="/memory/note?path=a.md&amp;vault=archive"' in page
    assert "Of archive" in page
    assert "Of default" not in page
    shown = await note(site, "a.md", vault="archive")
    assert "Of archive" in shown
    assert 'href="/memory/open?from=a.md&amp;vault=archive&amp;name=b"' in shown
    assert "by admin" in shown, "the writer of its version"
    for vault, leads_to in (("&vault=archive", "/memory/note?path=b.md&vault=archive"), ("", "/memory?mode=keyword")):
        answer = await (await site.browser("ADMIN")).get(f"/memory/open?from=a.md{vault}&name=b")
        assert answer.headers["location"].startswith(leads_to)
    assert "Of default" in await note(site, "a.md")


@requirement("dashboard.page-memory-vaults")
async def test_a_vault_that_is_none_is_refused_and_one_alone_has_no_tabs(site: Site) -> None:
    assert "there is no vault &#39;archive&#39;" in await site.read("/memory", 400, vault="archive")
    assert "Vaults" not in await site.read("/memory")


@requirement("dashboard.refresh", "dashboard.page-memory")
async def test_who_reads_a_note_is_told_that_it_was_changed_and_keeps_the_place(site: Site) -> None:
    root = site.world.kernel.infra.settings.storage.data_dir / "vault"
    root.mkdir(exist_ok=True)
    (root / "a.md").write_text("one\n")
    page = await note(site, "a.md")
    asked = re.findall(r'data-live="memory" data-src="(/memory/note/changed[^"]+)"', page)[0].replace("&amp;", "&")
    assert "since you opened it" not in page
    assert not (await changed(site, asked)).strip()
    before = len(await all_events(site.world))
    (root / "a.md").write_text("two\n")
    found = await changed(site, asked)
    assert "was changed since you opened it" in found
    assert '<a href="/memory/note?path=a.md">' in found
    assert "<html" not in found
    (root / "a.md").unlink()
    assert "was deleted since you opened it" in await changed(site, asked)
    (root / "a.md").write_text("one\n")
    assert not (await changed(site, asked)).strip()
    assert len(await all_events(site.world)) == before, "looking every thirty seconds leaves nothing in the run log"


async def changed(site: Site, address: str) -> str:
    answer = await (await site.browser()).get(address, headers={"HX-Request": "true"})
    assert answer.status_code == 200, answer.text
    return answer.text


@requirement("dashboard.page-memory-lists", "memory.list")
async def test_notes_are_listed_by_folder_and_tag_the_latest_first(site: Site) -> None:
    await write(site, "root.md", "# Root\n", frontmatter={"tags": ["plan"]})
    site.world.clock.advance(seconds=60)
    for n in range(32):
        await write(site, f"Plans/n{n:02}.md", f"# Note {n:02}\n", frontmatter={"tags": ["plan", "old"]})
    page = await site.read("/memory")
    assert "Recently changed" in page
    assert 'href="/memory?folder=Plans"' in page
    assert 'title="33 notes">#plan' in page
    only = await at(site, "/memory?folder=")
    assert "Root" in only
    assert "Note 00" not in only
    tagged = await at(site, "/memory?tag=old")
    assert "With #old" in tagged
    assert '"/memory/note?path=root.md"' not in tagged
    following = re.search(r'href="(/memory\?[^"]*cursor=[^"]*)"', tagged)
    assert following, "there are more than one page has"
    rest = await at(site, following[1].replace("&amp;", "&"))
    assert len(re.findall("<li data-row>", rest)) == 2
    assert "No notes here" in await at(site, "/memory?folder=nowhere")


@requirement("dashboard.page-memory-lists", "memory.backlinks")
async def test_a_note_shows_the_notes_that_link_to_it(site: Site) -> None:
    await write(site, "Plans/My plan.md", "# Plan\n")
    await write(site, "Other/My plan.md", "# Another of this name\n")
    await write(site, "a.md", "See [[Plans/My plan|the plan]].\n")
    await write(site, "Plans/b.md", "See [it](My%20plan.md#now).\n")
    await write(site, "c.md", "My plan is not linked; `[[Plans/My plan]]` is code.\n")
    await write(site, "Other/d.md", "[[my plan]]\n")
    listed = (await note(site, "Plans/My plan.md")).partition("<h2>Linked from</h2>")[2]
    assert re.findall(r'href="[^"]*path=([^"]*)"', listed.partition("</section>")[0]) == ["Plans%2Fb.md", "a.md"]
    assert "No note links here." in await note(site, "a.md")


@requirement("dashboard.page-memory-validity")
async def test_a_note_says_what_it_was_derived_from(site: Site) -> None:
    await write(site, "Plans/Offer.md", "# Offer\n")
    sources = ["[[Offer#Costs]]", "task:t-1", "https://a.example/x", "a talk"]
    await write(site, "Plans/sum.md", frontmatter={"derived_from": sources})
    page = (await note(site, "Plans/sum.md")).partition("<h2>Validity</h2>")[2].partition("</section>")[0]
    assert re.findall(r'<a href="([^"]+)">([^<]+)</a>', page) == [
        ("/memory/open?from=Plans%2Fsum.md&amp;name=Offer", "Offer#Costs"),
        ("/tasks/t-1", "task:t-1"),
        ("/memory/open?from=Plans%2Fsum.md&amp;name=a+talk", "a talk"),
    ]
    assert "https://a.example/x" in page
    answer = await (await site.browser()).get("/memory/open?from=Plans%2Fsum.md&name=Offer")
    assert answer.headers["location"] == "/memory/note?path=Plans%2FOffer.md"
    assert "Derived from" not in await note(site, "Plans/Offer.md")


@requirement("dashboard.page-memory-graph")
async def test_a_note_shows_the_notes_around_it_as_a_drawing_and_as_a_list(site: Site) -> None:
    await write(site, "middle.md", "# Middle\n\n[[out]] [[both]]\n", frontmatter={"tags": ["x"]})
    await write(site, "out.md", "# Out <b>\n\n[[far]]\n", frontmatter={"tags": ["x", "y"]})
    await write(site, "both.md", "[[middle]]\n")
    await write(site, "in.md", "[[middle]] [[both]]\n")
    await write(site, "far.md", f"# {'Far away ' * 20}\n")
    page = await note(site, "middle.md")
    drawing = page.partition('<svg class="graph"')[2].partition("</svg>")[0]
    assert re.findall(r'href="/memory/note\?path=([^"]*)" class="(\w+)"', drawing) == [
        ("both.md", "both"),
        ("out.md", "to"),
        ("in.md", "from"),
        ("far.md", "via"),
    ]
    assert 'aria-label="Out &lt;b&gt;, linked from this note, shares #x"' in drawing
    assert "linked through Out &lt;b&gt;" in drawing
    assert drawing.count('class="edge"') == 5
    assert "…</text>" in drawing
    listed = page.partition("<summary>As a list</summary>")[2].partition("</details>")[0]
    assert len(re.findall("<li>", listed)) == 4
    assert "#y" not in listed
    assert "style=" not in drawing
    await write(site, "alone.md")
    assert "No links from or to other notes." in await note(site, "alone.md")
    for i in range(60):
        await write(site, f"n/{i}.md", "[[alone]]\n")
    crowded = await note(site, "alone.md")
    assert crowded.count('class="from"') == 39
    assert "21 more notes are not shown" in crowded


@requirement("dashboard.page-memory-editing")
async def test_a_note_is_edited_with_a_preview_and_keeps_its_frontmatter(site: Site) -> None:
    await write(site, "n.md", "# Old\n", frontmatter={"tags": ["x"]})
    editor = await at(site, "/memory/edit?path=n.md")
    base = re.search(r'name="base" value="([0-9a-f]{64})"', editor)
    assert base
    fields = {"path": "n.md", "vault": "default", "base": base[1]}
    form = {"csrf": await site.token(), "path": "n.md", "text": "# New\n\n<b>[[x]]</b>"}
    shown = (await (await site.browser()).post("/memory/preview", data=form, headers={"HX-Request": "true"})).text
    assert "<html" not in shown
    assert "<h2>New</h2>" in shown
    assert "&lt;b&gt;" in shown
    assert "Old" in await note(site, "n.md"), "a preview saves nothing"
    saved = await site.send("/memory/edit", text="# New\r\n\r\nText.\r\n", **fields)
    assert "notice=saved" in saved.headers["location"]
    page = await note(site, "n.md")
    assert "Text." in page
    assert "<dt>tags</dt>" in page
    refused = await site.send("/memory/edit", 400, path="../n.md", vault="default", base="", text="kept text")
    assert "kept text" in refused.text
    await site.send("/memory/edit", path="new/one.md", vault="default", base="", text="# One\n")
    assert "One" in await note(site, "new/one.md")


@requirement("dashboard.page-memory-editing")
async def test_a_new_note_replaces_none(site: Site) -> None:
    await write(site, "n.md", "# Kept\n")
    new = {"vault": "default", "base": "", "text": "# Other\n"}
    refused = await site.send("/memory/edit", 409, path="n.md", **new)
    assert "There is a note at this path" in refused.text
    assert "# Other" in refused.text
    assert "Kept" in await note(site, "n.md")
    await write(site, "n.md", operation="delete")
    await site.send("/memory/edit", path="n.md", **new)
    assert "Other" in await note(site, "n.md")


@requirement("dashboard.page-memory-editing")
async def test_a_long_note_is_saved_though_its_form_is_three_times_as_long(site: Site) -> None:
    text = "漢字\n" * 100_000
    await site.send("/memory/edit", path="long.md", vault="default", base="", text=text)
    answer = await site.world.admin.get("/api/v1/memory/read/exact", params={"path": "long.md"})
    assert answer.json()["document"]["content"] == text


@requirement("dashboard.page-memory-editing")
async def test_of_two_new_notes_that_are_saved_at_once_the_second_is_refused(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = memory_editing.read_document

    async def read(page: PageRequest, path: str, vault: str) -> JsonObject | None:
        found = await reads(page, path, vault)
        body = {"operation": "write", "document": {"path": path, "content": "# First\n"}}
        assert (await site.world.clients["SECOND"].post("/api/v1/memory/write", json=body)).status_code == 200
        return found

    monkeypatch.setattr(memory_editing, "read_document", read)
    await site.send("/memory/edit", 409, path="n.md", vault="default", base="", text="# Second\n")
    assert "First" in await note(site, "n.md")


@requirement("dashboard.page-memory-editing")
async def test_a_note_that_is_saved_unchanged_keeps_each_space(site: Site) -> None:
    text = "    code\n\n- a\n\n"
    await write(site, "n.md", text)
    base = re.search(r'name="base" value="([^"]+)"', await at(site, "/memory/edit?path=n.md"))
    assert base
    sent = text.replace("\n", "\r\n")
    await site.send("/memory/edit", path="n.md", vault="default", base=base[1], text=sent)
    assert f">\n{text}</textarea>" in await at(site, "/memory/edit?path=n.md")


@requirement("dashboard.page-memory-editing")
async def test_a_change_that_somebody_made_meanwhile_is_merged_or_kept_as_a_copy(site: Site) -> None:
    await write(site, "n.md", "one\n\ntwo\n\nthree\n")
    base = re.search(r'name="base" value="([^"]+)"', await at(site, "/memory/edit?path=n.md"))
    assert base
    fields = {"path": "n.md", "vault": "default", "base": base[1]}
    await write(site, "n.md", "ONE\n\ntwo\n\nthree\n")
    merged = await site.send("/memory/edit", text="one\n\ntwo\n\nTHREE\n", **fields)
    assert "notice=merged" in merged.headers["location"]
    page = await note(site, "n.md")
    assert "ONE" in page
    assert "THREE" in page
    conflict = await site.send("/memory/edit", text="eins\n\ntwo\n\nthree\n", **fields)
    copy = await at(site, conflict.headers["location"])
    assert 'This is a conflicted copy of <a href="/memory/note?path=n.md">n.md</a>' in copy
    assert 'class="notice' not in copy, "what to do is said once"
    original = await note(site, "n.md")
    assert "conflicted copy of" not in original
    texts = copy + original
    assert "eins" in texts
    assert "ONE" in texts


@requirement("dashboard.page-memory-editing")
async def test_a_note_that_was_deleted_meanwhile_is_written_anew_only_when_it_is_saved_again(site: Site) -> None:
    await write(site, "n.md", "old\n")
    base = re.search(r'name="base" value="([^"]+)"', await at(site, "/memory/edit?path=n.md"))
    assert base
    await write(site, "n.md", operation="delete")
    fields = {"path": "n.md", "vault": "default", "text": "kept text\n"}
    refused = await site.send("/memory/edit", 409, base=base[1], **fields)
    assert "deleted or moved in the meantime" in refused.text
    assert "kept text" in refused.text
    assert 'name="base" value=""' in refused.text
    assert "This note was deleted" in await note(site, "n.md")
    await site.send("/memory/edit", base="", **fields)
    assert "kept text" in await note(site, "n.md")


@requirement("dashboard.page-memory-editing")
async def test_a_note_is_deleted_unless_it_was_changed_meanwhile(site: Site) -> None:
    await write(site, "n.md", "old\n")
    base = re.search(r'action="/memory/delete".*?name="base" value="([^"]+)"', await note(site, "n.md"), re.DOTALL)
    assert base
    await write(site, "n.md", "new\n")
    refused = await site.send("/memory/delete", 409, path="n.md", base=base[1])
    assert "has changed, so it was not deleted" in refused.text
    page = await note(site, "n.md")
    assert "new" in page
    base = re.search(r'action="/memory/delete".*?name="base" value="([^"]+)"', page, re.DOTALL)
    assert base
    deleted = await site.send("/memory/delete", path="n.md", base=base[1])
    assert deleted.headers["location"] == "/memory/note?path=n.md&notice=note-deleted"
    page = await note(site, "n.md")
    assert "This note was deleted" in page
    assert 'action="/memory/delete"' not in page


@requirement("dashboard.page-memory-editing")
async def test_an_earlier_version_is_restored_also_of_a_deleted_note(site: Site) -> None:
    await write(site, "n.md", "# First\n", frontmatter={"tags": ["x"]})
    await write(site, "n.md", "# Second\n")
    await write(site, "n.md", operation="delete")
    versions = re.findall(r'href="(/memory/note\?path=n\.md&amp;version=([0-9a-f]{64}))"', await note(site, "n.md"))
    shown = {version: await note(site, "n.md", version=version) for _, version in versions}
    (first,) = (version for version, text in shown.items() if "<h2>First</h2>" in text)
    assert "Restore this version" in await note(site, "n.md", version=first)
    await site.send("/memory/restore", path="n.md", version=first)
    page = await note(site, "n.md")
    assert "First" in page
    assert page.count("restored by admin</span>") == 1, re.findall(r'<span class="faint">([^<]*)', page)
    assert page.count("first stored") == 1
    assert "<dt>tags</dt>" in page


@requirement("dashboard.page-memory-versions")
async def test_a_version_whose_write_waited_for_long_names_its_author(site: Site) -> None:
    await write(site, "n.md", "text\n")
    later = Sql("update memory_versions set created_at = created_at + 20000000")
    await site.world.kernel.infra.db.write(lambda tx: tx.run(later))
    assert "by admin</span>" in await note(site, "n.md")


@requirement("dashboard.page-memory-versions")
async def test_a_version_gets_a_name_and_any_two_are_compared(site: Site) -> None:
    for number, text in enumerate(("one\n", "two\n", "three\n")):
        await write(site, "a.md", text)
        site.world.clock.advance(seconds=60 * (number + 1))
    newer, first = re.findall(r'class="mono" title="([0-9a-f]{64})"', await note(site, "a.md"))[1:]
    old = await note(site, "a.md", version=first)
    assert "Name of this version" in old
    fields = {"path": "a.md", "version": first, "shown": first}
    answer = await site.send("/memory/version-name", name="  before <b> ", **fields)
    assert f"version={first}" in answer.headers["location"]
    assert '<b class="named">before &lt;b&gt;</b>' in await note(site, "a.md")
    compared = await note(site, "a.md", version=first, against=newer)
    assert '<div class="del"><span class="sign">−</span>one</div>' in compared
    assert '<div class="add"><span class="sign">+</span>two</div>' in compared
    assert "three" not in compared.partition("Changes after")[2].partition("</section>")[0]
    assert f'<option value="{newer}" selected>' in compared
    assert "+</span>three" in await note(site, "a.md", version=first)
    await note(site, "a.md", 404, version=first, against="0" * 64)
    await site.send("/memory/version-name", 400, name="x" * 101, **fields)
    await site.send("/memory/version-name", 404, name="x", path="a.md", version="0" * 64)
    await site.send("/memory/version-name", name="", **fields)
    assert 'class="named"' not in await note(site, "a.md")


@requirement("dashboard.page-memory-obsidian")
async def test_callouts_and_task_lists_are_shown_as_obsidian_shows_them(site: Site) -> None:
    text = (
        "> [!WARNING] Check [[plan]] <i>\n> Not on **Friday**.\n>\n> > [!bug]\n> > nested\n\n"
        "> [!faq]- Why?\n> Because.\n\n> [!own-kind]+\n\n> a quote [!tip]\n\n"
        "- [ ] open [[plan]]\n- [x] done <b>\n  1. [-] dropped\n- [x](plan.md) a link\n- plain [ ]\n- [ ]\n"
    )
    await write(site, "a.md", text)
    page = (await note(site, "a.md")).partition('<div class="prose">')[2].partition("</section>")[0]
    assert re.search(
        r'<div class="callout as-warn">\s*<p class="title">Check <a href="[^"]+">plan</a> &lt;i&gt;</p>\s*<p>Not on',
        page,
    )
    assert re.search(r'<div class="callout as-bad">\s*<p class="title">Bug</p>\s*<p>nested</p>\s*</div>\s*</div>', page)
    assert re.search(
        r'<details class="callout as-warn">\s*<summary class="title">Why\?</summary>\s*<p>Because.</p>\s*</details>',
        page,
    )
    assert re.search(
        r'<details class="callout as-note" open="">\s*<summary class="title">Own-kind</summary>\s*</details>', page
    )
    assert re.search(r"<blockquote>\s*<p>a quote \[!tip\]</p>\s*</blockquote>", page)
    assert re.findall(r'<li class="task"><span class="box" role="img" aria-label="([a-z ]+)">', page) == [
        "to do",
        "done",
        "done",
    ]
    assert "</span> done &lt;b&gt;" in page
    assert "<li>plain [ ]</li>" in page


@requirement("dashboard.page-memory-validity")
async def test_a_note_is_marked_and_restored_with_who_why_and_the_chain(site: Site) -> None:
    await write(site, "a.md", "# A\n\nzebra\n\n## Costs\n\nlion\n", frontmatter={"valid_from": "2026-01-01"})
    await write(site, "b.md", "zebra", frontmatter={"derived_from": ["[[a]]"]})
    await write(site, "c.md", "zebra", frontmatter={"derived_from": ["[[b]]", "https://x.example"]})
    assert "Holds from 2026-01-01" in await note(site, "a.md")
    marked = await site.send("/memory/mark", path="a.md", anchor="", reason="a <b>bad</b> page")
    assert "notice=invalidated" in marked.headers["location"]
    # Without the marked note nothing excludes what derives from it.
    assert "What derives from it is found again" in await note(site, "a.md")
    page = await note(site, "c.md")
    assert "found again" not in page
    shown = page.partition('aria-label="Why this note is invalid"')[2].partition("</section>")[0]
    assert "a &lt;b&gt;bad&lt;/b&gt; page" in shown
    assert "which admin marked invalid" in shown
    assert re.search(r"\(\d{4}-\d\d-\d\d \d\d:\d\d UTC\)", shown)
    assert re.findall(r'href="/memory/note\?path=([a-z.]+)"', shown) == ["b.md", "a.md"]
    found = await site.part("/memory", q="zebra", mode="keyword")
    assert "No note matches" in found
    found = await site.part("/memory", q="zebra", mode="keyword", invalid="1")
    assert found.count("a &lt;b&gt;bad&lt;/b&gt; page") == 3
    assert "Derived from a.md" in found
    await site.send("/memory/unmark", path="a.md", anchor="", reason="")
    assert "path=c.md" in await site.part("/memory", q="zebra", mode="keyword")
    assert "path=a.md" not in await site.part("/memory", q="zebra", mode="keyword", as_of="2025-12-31")

    await site.send("/memory/mark", path="a.md", anchor="#Costs", reason="old")
    assert "Restore this passage" in await note(site, "a.md")
    assert "No note matches" in await site.part("/memory", q="lion", mode="keyword")
    await site.send("/memory/unmark", path="a.md", anchor="#Costs", reason="")
    await site.world.admin.post("/api/v1/memory/invalidate", json={"source": "https://x.example", "reason": "wrong"})
    assert "Restore the source https://x.example" in await note(site, "c.md")
    await site.send("/memory/unmark", path="c.md", anchor="", source="https://x.example", reason="right")
    assert "Why this note is invalid" not in await note(site, "c.md")
    audit = await site.part("/audit", category="changes")
    for target in ("a.md", "a.md#costs"):
        assert audit.count(f'<td class="extra"><a href="/memory/note?path=a.md" title="{target}">') == 2
    assert "https://x.example" in audit.replace("<wbr>", "")


@requirement("memory.model-prepared", "dashboard.page-memory")
async def test_the_first_search_says_that_the_model_is_being_prepared(
    make_world: MakeWorld, make_board: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(await make_board(await make_world(SERVICE_MEMORY="1", SERVICE_EMBEDDING_MODEL="")))
    assert site.world.kernel.memory is not None
    embeddings = site.world.kernel.memory.default.embeddings
    monkeypatch.setattr(embeddings, "_embedder", Unprepared())
    monkeypatch.setattr(memory_page, "PATIENCE_SECONDS", 0)
    await write(site, "cats.md", "# Cats\n\nThe kitten sat on the rug.\n")
    await soon(lambda: embeddings.is_preparing)
    for mode in ("hybrid", "semantic"):
        page = await site.read("/memory", q="kitten", mode=mode)
        for text in ("These are the results by keyword.", PREPARING, 'path=cats.md"'):
            assert text in page
    for mode, advice in (("keyword", "Try other words, or a semantic search."), ("semantic", "Try other words.")):
        assert advice in await site.part("/memory", q="zebra", mode=mode)
    await (await site.browser()).aclose()


@requirement("dashboard.page-memory")
async def test_no_note_can_change_the_direction_of_what_is_read(site: Site) -> None:
    text = "# Pay \u202e001\n\nPay `\u202e002` to [[pl\u202ean]].\n\n    pay \u202e003\n"
    await write(site, "Notes/pay.md", text, frontmatter={"owner": "a\u202eb"})
    page = await note(site, "Notes/pay.md")
    for shown in ("Pay \\u202e001", "\\u202e002", "\\u202e003", "a\\u202eb"):
        assert shown in page
    assert "\u202e" not in re.sub(r'value="[^"]*"', "", page), "but a form sends what the note has"
    assert "name=pl%E2%80%AEan" in page, "a link leads to the note that it names"
