"""Named vaults: a name that is not configured is refused, and no vault sees another one's notes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest

from stentor.core.db import Tx
from stentor.core.errors import StartRefused
from stentor.domains.memory import store
from stentor.domains.memory.store import WriteIntent
from stentor_vault.notes.model import ANY_STATE, FileChange, content_hash
from stentor_vault.notes.paths import InvalidPath
from tests.conftest import MakeWorld
from tests.domains.memory.conftest import Notes
from tests.patience import soon
from tests.requirements import requirement

BODIES: dict[str, dict[str, Any]] = {
    "write": {"operation": "write", "document": {"path": "a.md", "content": "x"}},
    "search/keyword": {"terms": ["x"]},
    "search/semantic": {"query": "x"},
    "search/hybrid": {"query": "x"},
    "reindex": {},
    "verify": {},
}


@requirement("memory.vault-known")
@pytest.mark.parametrize("route", BODIES)
async def test_a_vault_that_is_not_configured_is_refused_with_the_names_of_those_that_are(
    notes: Notes, route: str
) -> None:
    answer = await notes.post(route, **BODIES[route], vault="alpha")
    assert_refused(answer)
    assert not (notes.root / "a.md").exists()


@requirement("memory.vault-known")
@pytest.mark.parametrize("route", ["read/exact", "versions", "versions/abc", "health"])
async def test_nor_is_one_read(notes: Notes, route: str) -> None:
    await notes.write("a.md")
    admin = notes.world.clients["ADMIN"]
    assert_refused(await admin.get(f"/api/v1/memory/{route}", params={"path": "a.md", "vault": "alpha"}))


def assert_refused(answer: httpx.Response) -> None:
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert "'alpha'" in error["message"]
    assert error["details"] == {"known_vaults": ["default"]}


@pytest.fixture
async def several(make_world: MakeWorld, tmp_path: Path) -> Notes:
    vaults = f"alpha={tmp_path / 'alpha'}, beta={tmp_path / 'beta'}"
    return Notes(await make_world(SERVICE_MEMORY="1", SERVICE_VAULTS=vaults), tmp_path / "vault")


async def write(notes: Notes, vault: str, content: str, operation: str = "write", path: str = "plan.md") -> Any:
    document = {"path": path} if operation == "delete" else {"path": path, "content": content}
    answer = await notes.post("write", operation=operation, vault=vault, document=document)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def read(notes: Notes, vault: str, path: str = "plan.md") -> str | None:
    admin = notes.world.clients["ADMIN"]
    answer = await admin.get("/api/v1/memory/read/exact", params={"path": path, "vault": vault})
    document = answer.json()["document"]
    return None if document is None else str(document["content"])


@requirement("memory.vaults-apart")
async def test_the_same_path_in_two_vaults_is_two_notes(several: Notes, tmp_path: Path) -> None:
    for vault in ("alpha", "beta", "default"):
        await write(several, vault, f"A zeppelin in {vault}.\n")
    for vault, folder in (("alpha", "alpha"), ("beta", "beta"), ("default", "vault")):
        assert await read(several, vault) == f"A zeppelin in {vault}.\n"
        assert (tmp_path / folder / "plan.md").read_text() == f"A zeppelin in {vault}.\n"
        answer = await several.post("search/keyword", terms=["zeppelin"], vault=vault)
        shown = [(match["path"], match["vault"], match["excerpt"]) for match in answer.json()["matches"]]
        assert shown == [("plan.md", vault, f"A zeppelin in {vault}.")]
    await write(several, "alpha", "", operation="delete")
    assert [await read(several, vault) is None for vault in ("alpha", "beta", "default")] == [True, False, False]


@requirement("memory.vaults-apart")
async def test_each_vault_has_its_own_versions_conflicts_and_health(several: Notes) -> None:
    first = await write(several, "alpha", "One.\n")
    await write(several, "beta", "Another.\n")
    await write(several, "alpha", "Two.\n")
    admin = several.world.clients["ADMIN"]
    for vault, count in (("alpha", 2), ("beta", 1)):
        found = await admin.get("/api/v1/memory/versions", params={"path": "plan.md", "vault": vault})
        assert len(found.json()["versions"]) == count
        health = await admin.get("/api/v1/memory/health", params={"vault": vault})
        assert health.json()["stats"]["total_documents"] == 1
    path = f"/api/v1/memory/versions/{first['content_hash']}"
    old = await admin.get(path, params={"path": "plan.md", "vault": "alpha"})
    assert old.json()["document"]["content"] == "One.\n"
    assert (await admin.get(path, params={"path": "plan.md", "vault": "beta"})).status_code == 404
    meta = {"conflict_resolution": "abort", "base_hash": first["content_hash"]}
    stale: dict[str, Any] = {"operation": "write", "document": {"path": "plan.md", "content": "x"}, "metadata": meta}
    assert (await several.post("write", vault="alpha", **stale)).json()["status"] == "conflict"


@requirement("memory.vaults-apart")
async def test_edits_in_the_folder_of_a_named_vault_are_followed_and_verified(several: Notes, tmp_path: Path) -> None:
    (tmp_path / "alpha" / "made.md").write_text("A zeppelin by hand.\n")

    async def found() -> bool:
        answer = await several.post("search/keyword", terms=["zeppelin"], vault="alpha")
        return [match["path"] for match in answer.json()["matches"]] == ["made.md"]

    await soon(found)
    assert await several.found("zeppelin") == []
    for route in ("reindex", "verify"):
        assert (await several.post(route, vault="alpha")).json()["total"] == 1
    assert (await several.post("verify", vault="beta")).json()["total"] == 0


@requirement("memory.vaults-apart")
async def test_a_write_that_a_crash_left_open_is_carried_out_in_its_own_vault(
    several: Notes, make_world: MakeWorld, tmp_path: Path
) -> None:
    memory = several.world.kernel.memory
    assert memory is not None
    after = content_hash(b"Left.\n")

    def decide(tx: Tx) -> None:
        store.save_version(tx, "alpha:left.md", after, b"Left.\n", "bus")
        store.insert_intent(tx, WriteIntent("00000000-0000-7000-8000-000000000001", "left.md", "", after, 0), "alpha:")

    await several.world.kernel.infra.db.write(decide)
    await memory.others["alpha"].service.journal.recover()
    assert (tmp_path / "alpha" / "left.md").read_text() == "Left.\n"
    assert not (tmp_path / "vault" / "left.md").exists()
    assert await several.world.kernel.infra.db.read(lambda tx: store.list_open_intents(tx, None, "alpha:")) == []


@requirement("memory.vaults-apart")
async def test_a_note_with_a_colon_in_its_name_is_no_note_of_a_vault_of_that_name(
    several: Notes, tmp_path: Path
) -> None:
    (tmp_path / "vault" / "alpha:plan.md").write_text("By default.\n")
    assert await read(several, "default", "alpha:plan.md") == "By default.\n"
    admin = several.world.clients["ADMIN"]
    for vault, path, status in (("default", "alpha:plan.md", 200), ("alpha", "plan.md", 404)):
        versions = await admin.get("/api/v1/memory/versions", params={"path": path, "vault": vault})
        assert versions.status_code == status


@requirement("memory.vaults-apart")
@pytest.mark.parametrize("prefix", ["", "alpha:"])
async def test_an_open_write_of_a_note_with_a_colon_in_its_name_is_carried_out(
    several: Notes, tmp_path: Path, prefix: str
) -> None:
    vault = several.world.memory.others["alpha"] if prefix else several.world.memory.default
    paths = ["left.md", "alpha:left.md", ":a: b.md", "Project: Alpha/plan.md"]
    after = content_hash(b"Left.\n")

    def decide(tx: Tx) -> None:
        for number, path in enumerate(paths):
            store.save_version(tx, store.stored_path(prefix, path), after, b"Left.\n", "bus")
            write_id = f"00000000-0000-7000-8000-00000000000{number}"
            store.insert_intent(tx, WriteIntent(write_id, path, "", after, 0), prefix)

    await several.world.kernel.infra.db.write(decide)
    assert await vault.service.journal.is_open("alpha:left.md", after)
    for memory in several.world.memory.vaults:
        assert await memory.service.journal.recover() == (len(paths) if memory is vault else 0)
    folder = tmp_path / ("alpha" if prefix else "vault")
    assert [(folder / path).read_text() for path in paths] == ["Left.\n"] * len(paths)


@requirement("memory.read-only-notes")
async def test_a_write_that_a_crash_left_open_is_dropped_when_its_note_is_read_only(notes: Notes) -> None:
    (notes.root / "a.md").write_text("one")
    (notes.root / "a.md").chmod(0o444)
    before, after = content_hash(b"one"), content_hash(b"two")

    def decide(tx: Tx) -> None:
        store.save_version(tx, "a.md", after, b"two", "bus")
        store.insert_intent(tx, WriteIntent("00000000-0000-7000-8000-000000000001", "a.md", before, after, 0))

    await notes.world.kernel.infra.db.write(decide)
    journal = notes.world.memory.default.service.journal
    assert await journal.recover() == 1
    assert await notes.world.kernel.infra.db.read(lambda tx: store.read_version(tx, "a.md", after)) is None
    (notes.root / "a.md").chmod(0o644)
    assert await journal.recover() == 0
    assert (notes.root / "a.md").read_text() == "one"


@pytest.mark.parametrize("failure", [None, OSError(22, "Invalid argument"), InvalidPath("no")])
async def test_a_write_that_a_crash_left_open_and_that_fails_by_now_does_not_prevent_the_start(
    notes: Notes, monkeypatch: pytest.MonkeyPatch, failure: Exception | None
) -> None:
    taken, left = content_hash(b"Taken.\n"), content_hash(b"Left.\n")

    def decide(tx: Tx) -> None:
        for number, (path, after, text) in enumerate([("a.md", taken, b"Taken.\n"), ("left.md", left, b"Left.\n")]):
            store.save_version(tx, path, after, text, "bus")
            store.insert_intent(tx, WriteIntent(f"00000000-0000-7000-8000-00000000000{number}", path, "", after, 0))

    await notes.world.kernel.infra.db.write(decide)
    (notes.root / "A.md").write_text("Another one's.\n")
    vault = notes.world.memory.default.vault
    write = vault.write

    async def write_or_fail(path: str, content: bytes, expected: str = ANY_STATE) -> FileChange:
        if failure is not None and path == "a.md":
            raise failure
        return await write(path, content, expected)

    monkeypatch.setattr(vault, "write", write_or_fail)
    await notes.world.memory.default.service.journal.recover()
    assert (notes.root / "left.md").read_text() == "Left.\n"
    assert (notes.root / "A.md").read_text() == "Another one's.\n"
    assert not (notes.root / "a.md").exists()
    left_open = await notes.world.kernel.infra.db.read(lambda tx: store.list_open_intents(tx, None))
    # What may work at the next start stays open.
    assert [intent.path for intent in left_open] == ([] if failure is None else ["a.md"])


async def test_the_entry_of_a_write_goes_although_its_deletion_failed(
    notes: Notes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or the next start would apply the write again to a note that somebody restored."""
    db, delete, failures = notes.world.kernel.infra.db, store.delete_intents, [RuntimeError("away for a moment")]

    def fail_first(tx: Tx, write_ids: list[str]) -> None:
        if failures:
            raise failures.pop()
        delete(tx, write_ids)

    async def all_gone() -> bool:
        return not failures and await db.read(lambda tx: store.list_open_intents(tx, None)) == []

    monkeypatch.setattr(store, "delete_intents", fail_first)
    await notes.write("a.md", "One.\n")
    await soon(all_gone)


async def test_a_write_whose_caller_is_cancelled_is_finished(notes: Notes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or it stayed in the journal, and the next start would apply it to a note that somebody restored."""
    db, vault = notes.world.kernel.infra.db, notes.world.memory.default.vault
    write, reached, going_on = vault.write, asyncio.Event(), asyncio.Event()

    async def write_slowly(path: str, content: bytes, expected: str = ANY_STATE) -> FileChange:
        reached.set()
        await going_on.wait()
        return await write(path, content, expected)

    async def none_open() -> bool:
        return await db.read(lambda tx: store.list_open_intents(tx, None)) == []

    monkeypatch.setattr(vault, "write", write_slowly)
    call = asyncio.create_task(notes.write("a.md", "One.\n"))
    await reached.wait()
    waiting = asyncio.create_task(notes.write("a.md", "Never.\n"))
    call.cancel()
    await asyncio.wait({call})
    waiting.cancel()
    assert not await none_open()
    going_on.set()
    await soon(none_open)
    assert (notes.root / "a.md").read_text() == "One.\n"
    await notes.write("a.md", "Two.\n")
    assert (notes.root / "a.md").read_text() == "Two.\n"


@requirement("memory.vaults-checked-at-start")
@pytest.mark.parametrize(
    "value", ["alpha", "=x", "Alpha=x", "default=x", "alpha=x,alpha=y", "a=x,b=x", "a=x,b=x/y", "a=vault/sub", "a:b=x"]
)
async def test_vaults_that_cannot_be_kept_apart_stop_the_start(
    make_world: MakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StartRefused, match="SERVICE_VAULTS"):
        await make_world(SERVICE_MEMORY="1", SERVICE_VAULTS=value)
