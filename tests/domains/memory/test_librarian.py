"""The librarian: answers of the notes' own sentences with their places, and how passages are chosen."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor.auth.principal import PERMISSIONS, Principal
from stentor.bootstrap.surface_context import open_surface_context
from stentor.domains.memory.text.excerpts import PassageSource, rank_passages, term_coverage
from tests.conftest import MakeWorld
from tests.domains.memory.conftest import Notes
from tests.patience import soon
from tests.requirements import requirement

LEASES = """# Workers

Workers pull their tasks.

## Leases

A lease ends after thirty seconds. The reconciler gives the task to the next worker. Nobody is told twice.
"""
COOK = "# Soup\n\nBoil the carrots with salt.\n"


async def answer(notes: Notes, value: Any, capability: str = "answer") -> dict[str, Any]:
    task_id = await notes.world.submit(type="answer", input=value, required_capabilities=[capability])
    return await notes.world.ended(task_id)


@pytest.fixture
async def library(make_world: MakeWorld, tmp_path: Any) -> Notes:
    notes = Notes(await make_world(SERVICE_MEMORY="1", SERVICE_BUILTIN_AGENTS="true"), tmp_path / "vault")
    await notes.write("docs/workers.md", LEASES)
    await notes.write("cook.md", COOK)
    return notes


@requirement("execution.builtin-librarian")
async def test_it_answers_with_the_notes_own_sentences_and_where_they_stand(library: Notes) -> None:
    task = await answer(library, "What happens when a lease ends?")
    assert task["status"] == "completed", task["error"]
    result = task["result"]
    assert result["answer"].startswith("A lease ends after thirty seconds.")
    assert "[1]" in result["answer"]
    first = result["citations"][0]
    assert (first["number"], first["path"], first["heading"]) == (1, "docs/workers.md", "Leases")
    assert "The reconciler gives the task to the next worker." in first["passage"]
    events = await library.world.events(task["task_id"])
    reads = [event for event in events if event["event_type"] == "memory_read"]
    assert [event["metadata"]["by"] for event in reads] == ["librarian"]
    assert reads[0]["parent_provenance_id"] == events[0]["provenance_id"]


async def test_what_the_notes_do_not_know_is_said(library: Notes, monkeypatch: pytest.MonkeyPatch) -> None:
    index = library.world.memory.default.index
    await soon(index.was_reconciled)
    result = (await answer(library, {"question": "xylophones?"}, "search"))["result"]
    assert result == {"answer": "The notes say nothing about this.", "citations": []}

    async def is_being_built(**_: Any) -> bool:
        return False

    monkeypatch.setattr(index, "was_reconciled", is_being_built)
    result = (await answer(library, {"question": "xylophones?"}, "search"))["result"]
    assert result["answer"].endswith("the search index is still being built.")


@pytest.mark.parametrize(
    "value", ["", 5, {}, {"question": " "}, {"question": "x", "passages": 0}, {"question": "x", "passages": 99}]
)
async def test_an_input_that_is_no_question_fails_with_its_reason(library: Notes, value: Any) -> None:
    task = await answer(library, value)
    assert (task["status"], task["error"]["code"]) == ("failed", "INPUT_INVALID")


async def test_another_tenant_gets_nothing_from_the_vault(library: Notes) -> None:
    other = library.world.clients["OTHER"]
    runtime = {"kind": "builtin", "name": "librarian"}
    body = {"name": "spy", "capabilities": ["answer"], "runtime": runtime}
    assert (await other.post("/api/v1/registry/agents", json=body)).status_code == 201
    task = {"type": "answer", "input": "leases", "required_capabilities": ["answer"]}
    task_id = (await other.post("/api/v1/tasks", json=task)).json()["task_id"]
    for _ in range(500):
        found = (await other.get(f"/api/v1/tasks/{task_id}")).json()
        if found["status"] == "failed":
            break
    assert found["error"]["code"] == "MEMORY_DENIED"


async def ask_as(notes: Notes, key: str) -> list[str]:
    """The paths that the librarian cites of the question that this key submits."""
    body = {"type": "answer", "input": {"question": "zeppelin?", "passages": 10}, "required_capabilities": ["answer"]}
    answered = await notes.world.clients[key].post("/api/v1/tasks", json=body)
    assert answered.status_code == 202, answered.text
    task = await notes.world.ended(answered.json()["task_id"])
    assert task["status"] == "completed", task["error"]
    return sorted(citation["path"] for citation in task["result"]["citations"])


@requirement("execution.librarian-namespaces")
async def test_the_librarian_finds_for_a_key_only_the_governed_namespaces_that_it_may_read(
    make_world: MakeWorld, tmp_path: Any
) -> None:
    access = {"SERVICE_MEMORY_ACCESS_PROPOSER": "ann/deep:r,vault/Tasks:r", "SERVICE_MEMORY_ACCESS_WRITER": ""}
    world = await make_world(SERVICE_MEMORY="1", SERVICE_BUILTIN_AGENTS="true", **access)
    notes = Notes(world, tmp_path / "vault")
    free, task = "docs/a.md", "Tasks/notes/a.md"
    records = ("Memory/a.md", "Memory/ann/a.md", "Memory/ann/deep/a.md", "Memory/bob/a.md", "Memory/shared/a.md")
    for path in (free, task, *records):
        assert (await notes.write(path, f"A zeppelin of {path}.\n")).status_code == 200
    assert await ask_as(notes, "BOB") == sorted((free, "Memory/bob/a.md", "Memory/shared/a.md"))
    assert await ask_as(notes, "PROPOSER") == sorted((free, task, "Memory/ann/deep/a.md"))
    # What a key was given holds for a person too; a person without it, and an agent's key with admin, may have all.
    assert await ask_as(notes, "WRITER") == [free]
    for key in ("ADMIN", "SECOND", "BOSS"):
        assert await ask_as(notes, key) == sorted((free, task, *records))


@requirement("execution.librarian-inbox")
async def test_the_librarian_answers_a_question_with_no_note_of_the_inbox(library: Notes) -> None:
    for path in ("Tasks/Inbox/q.md", "Tasks/Inbox/q (answer).md", "Tasks/Inbox/done/q.md"):
        assert (await library.write(path, "What happens when a lease ends?\n")).status_code == 200
    result = (await answer(library, "What happens when a lease ends?"))["result"]
    assert [citation["path"] for citation in result["citations"]] == ["docs/workers.md"]


@requirement("execution.librarian-namespaces", "http.auth-skip-in-development")
async def test_the_librarian_finds_every_note_where_authentication_is_skipped(
    make_world: MakeWorld, tmp_path: Any
) -> None:
    notes = Notes(await make_world(SERVICE_MEMORY="1", SERVICE_BUILTIN_AGENTS="true"), tmp_path / "vault")
    assert (await notes.write("Memory/team/a.md", "A zeppelin.\n")).status_code == 200
    notes.world.ring.development_admin = Principal("development", "admin", frozenset(PERMISSIONS))
    open_surface_context(notes.world.kernel, notes.world.ring)
    assert await ask_as(notes, "BOB") == ["Memory/team/a.md"]


def test_a_rare_word_says_more_than_a_frequent_one() -> None:
    sources = [PassageSource(f"{i}.md", "", f"the task number {i} runs\n\n", 0.5) for i in range(20)]
    sources.append(PassageSource("rare.md", "", "a quixotic matter\n", 0.5))
    assert rank_passages(sources, "the quixotic task", 1)[0].path == "rare.md"


def test_each_document_gives_its_best_passage_and_code_gives_none() -> None:
    text = "We deploy on Fridays. Cats sleep. Then we deploy again."
    body = f"# A\n\nnothing here\n\n## Deploying\n\n{text}\n\n```\ndeploy deploy\n```\n"
    found = rank_passages([PassageSource("a.md", "A", body, 1.0)], "how to deploy", 3)
    assert [(one.heading, one.sentences) for one in found] == [
        ("Deploying", ("We deploy on Fridays.", "Then we deploy again."))
    ]
    assert term_coverage(found, "deploy") == 1.0
    assert term_coverage([], "deploy") == 0.0


@given(st.text(max_size=200), st.text(max_size=40))
def test_any_text_is_searched_and_every_sentence_is_the_texts_own(body: str, question: str) -> None:
    for passage in rank_passages([PassageSource("a.md", "t", body, 0.5)], question, 5):
        plain = " ".join(body.split())
        assert all(" ".join(sentence.split()) in plain for sentence in passage.sentences)
