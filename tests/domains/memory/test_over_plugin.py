"""The memory bus over a vault plugin instead of a folder."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import MakeWorld
from tests.domains.memory.conftest import Notes
from tests.vaultplugin.server import PluginStub, plugin

VERSIONS = [3, 5]


@dataclass
class Served:
    notes: Notes
    stub: PluginStub


@pytest.fixture(params=VERSIONS, ids=[f"plugin {version}" for version in VERSIONS])
async def served(request: pytest.FixtureRequest, make_world: MakeWorld, tmp_path: Path) -> AsyncIterator[Served]:
    root = tmp_path / "theirs"
    root.mkdir()
    with plugin(root, request.param) as stub:
        environ = {"SERVICE_VAULT_PLUGIN_URL": stub.address, "SERVICE_VAULT_PLUGIN_KEY": stub.key}
        world = await make_world(SERVICE_MEMORY="1", SERVICE_VAULT_RECONCILE_SECONDS="1", **environ)
        yield Served(Notes(world, root), stub)


async def test_documents_are_written_read_and_found_through_the_plugin(served: Served) -> None:
    notes = served.notes
    first = await notes.write("a/plan.md", "deploying on Friday\n", frontmatter={"tags": ["x"]})
    assert (first.status_code, first.json()["status"]) == (200, "success")
    assert (notes.root / "a/plan.md").read_text() == "---\ntags:\n  - x\n---\ndeploying on Friday\n"
    assert await notes.content("a/plan.md") == "deploying on Friday\n"
    assert await notes.found("deployment") == ["a/plan.md"]
    assert (await notes.write("a/plan.md", None, "delete")).json()["status"] == "success"
    assert not (notes.root / "a/plan.md").exists()
    assert await notes.found("deployment") == []


async def test_edits_behind_the_plugin_are_found_and_merged(served: Served) -> None:
    notes = served.notes
    await notes.write("plan.md", "one\ntwo\nthree\n")
    (notes.root / "plan.md").write_text("one, by hand\ntwo\nthree\n")
    (notes.root / "other.md").write_text("pineapple")
    await notes.until_found("pineapples", ["other.md"])
    merged = await notes.write("plan.md", "one\ntwo\nthree, by me\n", conflict_resolution="merge")
    assert merged.json()["merged"] is True
    assert (notes.root / "plan.md").read_text() == "one, by hand\ntwo\nthree, by me\n"


async def test_a_conflict_is_answered_and_nothing_is_written(served: Served) -> None:
    notes = served.notes
    await notes.write("plan.md", "one")
    (notes.root / "plan.md").write_text("by hand")
    answer = await notes.write("plan.md", "two", conflict_resolution="abort")
    assert answer.json()["status"] == "conflict"
    assert (notes.root / "plan.md").read_text() == "by hand"


async def test_of_many_writers_none_is_lost(served: Served) -> None:
    notes = served.notes
    answers = await asyncio.gather(*(notes.write(f"n{n}.md", f"apple {n}") for n in range(16)))
    assert {answer.json()["status"] for answer in answers} == {"success"}
    assert sorted(await notes.found("apples", limit=50)) == sorted(f"n{n}.md" for n in range(16))


async def test_where_no_note_can_be_is_told_as_in_a_folder(
    served: Served, make_world: MakeWorld, tmp_path: Path
) -> None:
    folder = Notes(await make_world(SERVICE_MEMORY="1", SERVICE_VAULT_DIR=str(tmp_path / "ours")), tmp_path / "ours")
    for notes in (served.notes, folder):
        await notes.write("p/k.md", "x")
        for path in ("p", "p/k.md/x.md", "p/k.md/heading/A"):
            answer = await notes.write(path, "y")
            assert (answer.status_code, answer.json()["error"]["code"]) == (409, "CONFLICT"), path
            assert (await notes.read(path)).json()["document"] is None
        assert await notes.content("p/k.md") == "x"


@pytest.mark.parametrize("mood", ["500", "401", "noise"])
async def test_a_plugin_that_fails_is_told_and_its_notes_stay_known(served: Served, mood: str) -> None:
    notes = served.notes
    await notes.write("plan.md", "deploying")
    served.stub.behaviour = mood
    for answer in (await notes.write("plan.md", "two"), await notes.read("plan.md")):
        assert answer.status_code == 502, answer.text
        assert answer.json()["error"]["code"].startswith("VAULT_")
        assert served.stub.key not in answer.text
    assert await notes.found("deployment") == ["plan.md"]
    health = (await notes.world.admin.get("/api/v1/memory/health")).json()
    assert health["components"]["obsidian"]["status"] == "unhealthy"
    served.stub.behaviour = "ok"
    assert await notes.content("plan.md") == "deploying"
