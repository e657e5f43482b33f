"""The memory behind its gate, in process and on both databases."""

from __future__ import annotations

import asyncio
import base64
import gc
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import msgspec
import pytest

from stentor.auth.authority.context import AuthorityContext
from stentor.bootstrap.surfaces.memory_mcp import governed_memory
from stentor.core.db import Sql
from stentor.core.errors import (
    AuthorityDenied,
    Conflict,
    IdempotencyMismatch,
    InvalidRequest,
    NotFound,
    ServiceUnavailable,
    StoreUnavailable,
)
from stentor.domains.memory.governed import service
from stentor.domains.memory.governed.model import (
    ReadAsked,
    SearchAsked,
    SearchMode,
    StatusAsked,
    WriteAsked,
    WrittenRecord,
)
from stentor.domains.memory.governed.records import encode_cursor
from stentor.domains.memory.governed.service import GovernedMemory
from stentor.domains.memory.index.index import SearchIndex
from stentor_vault.notes.model import VaultUnavailable, content_hash
from tests.conftest import MakeWorld, World
from tests.patience import soon
from tests.requirements import requirement

EVENTS = Sql("select event_id, parent_id, event_type, message, metadata from events order by event_id")


def authority(
    *namespaces: str, capabilities: tuple[str, ...] = ("memory.read", "memory.write"), tenant: str = "default"
) -> AuthorityContext:
    spaces = namespaces or ("team",)
    return AuthorityContext("ann", tenant, spaces, frozenset(capabilities), "test", "r1", None)


class Governed:
    """The governed memory of a world, its folder, and short names for its uses."""

    def __init__(self, world: World, root: Path) -> None:
        self.world = world
        self.root = root
        self.memory: GovernedMemory = governed_memory(world.kernel)

    async def write(self, key: str = "a", content: str = "text", namespace: str = "team", **more: Any) -> WrittenRecord:
        who = more.pop("who", authority())
        return await self.memory.write(who, WriteAsked(namespace, key, content, **more))

    async def events(self) -> list[dict[str, Any]]:
        rows = await self.world.kernel.infra.db.read(lambda tx: tx.rows(EVENTS))
        return [dict(zip(("id", "parent", "type", "message", "metadata"), row, strict=True)) for row in rows]

    async def found(self, query: str, **more: Any) -> list[str]:
        asked = SearchAsked(more.pop("namespace", "team"), query, **more)
        return [one.record_id for one in (await self.memory.search(authority("*"), asked)).results]


@pytest.fixture
async def made(make_world: MakeWorld, tmp_path: Path) -> Governed:
    return Governed(await make_world(SERVICE_MEMORY="1"), tmp_path / "vault")


@requirement("memory.read-only-notes")
async def test_a_write_to_a_read_only_record_says_so(made: Governed) -> None:
    first = await made.write("plan", "one")
    (made.root / "Memory/team/plan.md").chmod(0o444)
    for base_hash in (None, first.content_sha256):
        with pytest.raises(Conflict, match="is read-only"):
            await made.write("plan", "two", base_hash=base_hash, idempotency_key=f"k {base_hash}")


@requirement("memory_mcp.write-input", "memory_mcp.write-disposition", "memory_mcp.answers-carry-record")
async def test_a_write_makes_a_note_that_people_can_read(made: Governed) -> None:
    first = await made.write("plan", "# Plan\n", metadata={"tags": ["x"]})
    assert (made.root / "Memory/team/plan.md").read_text() == "---\ntags:\n  - x\n---\n# Plan\n"
    assert (first.record_id, first.version, first.disposition) == ("team/plan", 1, "created")
    second = await made.write("plan", "# Plan B\n")
    assert (second.version, second.disposition) == (2, "updated")
    assert (made.root / "Memory/team/plan.md").read_text() == "---\ntags:\n  - x\n---\n# Plan B\n"
    assert first.content_sha256 != second.content_sha256
    assert first.provenance_id != second.provenance_id


@requirement("memory_mcp.read-and-status", "memory_mcp.answers-carry-record")
async def test_a_read_answers_the_record_as_it_is(made: Governed) -> None:
    written = await made.write("plan", "# Plan\n", metadata={"n": 1})
    read = await made.memory.read(authority(), ReadAsked("team", "plan"))
    assert (read.content, read.metadata, read.version) == ("# Plan\n", {"n": 1}, 1)
    assert read.content_sha256 == written.content_sha256
    with pytest.raises(NotFound, match="record 'other' does not exist"):
        await made.memory.read(authority(), ReadAsked("team", "other"))


@requirement("memory_mcp.answers-carry-record", "memory_mcp.write-base-hash")
@pytest.mark.parametrize("content", ["---\na: 1\n---\nbody", "\ufeff---\na: 1\n---\nbody", "\ufeffbody"])
async def test_the_hash_of_a_write_is_that_of_a_read_and_a_valid_base_hash(made: Governed, content: str) -> None:
    first = await made.write("plan", "old", metadata={"b": 2})
    second = await made.write("plan", content, base_hash=first.content_sha256)
    read = await made.memory.read(authority(), ReadAsked("team", "plan"))
    assert (second.content_sha256, read.content) == (content_hash(b"body"), "body")
    assert read.content_sha256 == second.content_sha256
    assert (await made.write("plan", "next", base_hash=second.content_sha256)).version == 3


async def test_an_edit_by_a_person_is_a_version_of_its_own(made: Governed) -> None:
    await made.write("plan", "one")
    (made.root / "Memory/team/plan.md").write_text("by hand")
    read = await made.memory.read(authority(), ReadAsked("team", "plan"))
    assert (read.content, read.version) == ("by hand", 2)
    assert (await made.memory.read(authority(), ReadAsked("team", "plan"))).version == 2
    (made.root / "Memory/team/plan.md").write_text("by hand again")
    assert (await made.write("plan", "three")).version == 4
    assert (await made.write("plan", "three")).version == 4


@requirement("memory_mcp.write-disposition")
async def test_a_repeated_key_is_answered_as_the_first_time_and_changes_nothing(made: Governed) -> None:
    first = await made.write("plan", "one", idempotency_key="k")
    await made.write("plan", "two")
    again = await made.write("plan", "one", idempotency_key="k")
    assert (again.disposition, again.version, again.content_sha256) == ("replayed", 1, first.content_sha256)
    assert (made.root / "Memory/team/plan.md").read_text() == "two"
    with pytest.raises(IdempotencyMismatch):
        await made.write("plan", "other", idempotency_key="k")
    bob = AuthorityContext("bob", "default", ("team",), frozenset({"memory.write"}), "test", "", None)
    assert (await made.write("plan", "bob's", idempotency_key="k", who=bob)).disposition == "updated"


@requirement("memory_mcp.write-disposition", "memory_mcp.write-base-hash")
@pytest.mark.parametrize("namespace", ["team", "vault/Plans"])
async def test_a_write_whose_answer_was_lost_is_answered_when_it_is_repeated(
    made: Governed, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise StoreUnavailable("lost")

    async def lose(content: str, **more: Any) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(service, "_store_result", fail)
            with pytest.raises(StoreUnavailable):
                await made.write("plan", content, namespace, who=who, **more)

    who = authority(namespace)
    await lose("one", idempotency_key="k1")
    first = await made.write("plan", "one", namespace, who=who, idempotency_key="k1")
    assert first.version == 1
    changed = {"base_hash": first.content_sha256, "idempotency_key": "k2"}
    await lose("two", **changed)
    # Another key is another write, and not on the state that it names.
    with pytest.raises(Conflict, match="base_hash"):
        await made.write("plan", "two", namespace, who=who, **{**changed, "idempotency_key": "k3"})
    second = await made.write("plan", "two", namespace, who=who, **changed)
    assert (second.version, second.disposition) == (2, "updated")
    again = await made.write("plan", "two", namespace, who=who, **changed)
    assert (again.content_sha256, again.disposition) == (second.content_sha256, "replayed")

    changed = {"idempotency_key": "k4"} | ({} if namespace == "team" else {"base_hash": second.content_sha256})
    await lose("three", **changed)
    fourth = await made.write("plan", "four", namespace, who=who, base_hash=content_hash(b"three"))
    journal = made.world.memory.default.service.journal

    async def is_applied(content: bytes) -> bool:
        return not await journal.is_open(fourth.path, content_hash(content))

    await soon(lambda: is_applied(b"three"))
    third = await made.write("plan", "three", namespace, who=who, **changed)
    assert (third.content_sha256, third.disposition) == (content_hash(b"three"), "updated")
    assert (made.root / fourth.path).read_text() == "four"
    read = await made.memory.read(who, ReadAsked(namespace, "plan"))
    assert (read.content, read.version) == ("four", fourth.version)

    changed = {"base_hash": read.content_sha256, "idempotency_key": "k5"}
    await lose("five", **changed)
    await soon(lambda: is_applied(b"five"))
    (made.root / fourth.path).write_bytes(b"\xff")
    fifth = await made.write("plan", "five", namespace, who=who, **changed)
    assert (fifth.content_sha256, fifth.disposition) == (content_hash(b"five"), "updated")


@requirement("memory_mcp.write-disposition")
async def test_a_write_that_failed_is_carried_out_when_it_is_repeated(
    made: Governed, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any) -> None:
        raise VaultUnavailable("The disk is full.")

    with monkeypatch.context() as patch:
        patch.setattr(made.world.memory.default.vault, "write", fail)
        with pytest.raises(VaultUnavailable):
            await made.write("plan", "one", idempotency_key="k")
    await made.write("plan", "two")
    assert (await made.write("plan", "one", idempotency_key="k")).disposition == "updated"
    assert (made.root / "Memory/team/plan.md").read_text() == "one"


@requirement("memory_mcp.write-disposition")
async def test_a_write_that_a_crash_left_undone_is_carried_out_when_it_is_repeated(
    made: Governed, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def die(*_: Any) -> None:
        raise asyncio.CancelledError

    with monkeypatch.context() as patch:
        patch.setattr(made.world.memory.default.vault, "write", die)
        with pytest.raises(asyncio.CancelledError):
            await made.write("plan", "one", idempotency_key="k")
    assert (await made.write("plan", "one", idempotency_key="k")).disposition == "created"
    assert (made.root / "Memory/team/plan.md").read_text() == "one"


@requirement("memory_mcp.write-disposition")
async def test_a_write_that_failed_after_its_caller_gave_up_is_carried_out_when_it_is_repeated(
    made: Governed, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, going_on = asyncio.Event(), asyncio.Event()
    reported: list[str] = []
    gc.collect()
    # The log would also have what the event loops of earlier tests report when their garbage is collected.
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context["message"]))

    async def fail(*_: Any) -> None:
        reached.set()
        await going_on.wait()
        raise VaultUnavailable("The vault does not answer.")

    with monkeypatch.context() as patch:
        patch.setattr(made.world.memory.default.vault, "write", fail)
        call = asyncio.create_task(made.write("plan", "one", idempotency_key="k"))
        await reached.wait()
        call.cancel()
        await asyncio.wait({call})
        del call
        going_on.set()
        # Another write of the note waits until this one has ended.
        with pytest.raises(VaultUnavailable):
            await made.write("plan", "two")
    gc.collect()
    asyncio.get_running_loop().set_exception_handler(None)
    assert reported == []
    assert (await made.write("plan", "one", idempotency_key="k")).disposition == "created"
    assert (made.root / "Memory/team/plan.md").read_text() == "one"


async def test_of_many_writes_with_one_key_one_is_carried_out(made: Governed) -> None:
    answers = await asyncio.gather(*(made.write("plan", "one", idempotency_key="k") for _ in range(8)))
    assert sorted(answer.disposition for answer in answers) == ["created"] + ["replayed"] * 7
    assert {answer.version for answer in answers} == {1}


@requirement("memory_mcp.write-base-hash")
async def test_a_write_on_another_state_is_a_conflict_and_changes_nothing(made: Governed) -> None:
    first = await made.write("plan", "one")
    await made.write("plan", "two", base_hash=first.content_sha256)
    for content in ("three", "two"):
        with pytest.raises(Conflict, match="base_hash"):
            await made.write("plan", content, base_hash=first.content_sha256)
    now = await made.memory.read(authority(), ReadAsked("team", "plan"))
    assert (now.content, now.version) == ("two", 2)
    with pytest.raises(Conflict, match="base_hash"):
        await made.write("none", "x", base_hash=first.content_sha256)
    assert not (made.root / "Memory/team/none.md").exists()


@requirement("memory_mcp.write-base-hash")
async def test_a_key_in_other_letters_is_a_conflict_that_names_the_record_there(made: Governed) -> None:
    await made.write("one", "x")
    with pytest.raises(Conflict, match=r"'ONE\.md' and the existing 'one\.md' are the same name"):
        await made.write("ONE", "y")
    with pytest.raises(Conflict, match="base_hash"):
        await made.write("ONE", "y", base_hash="0" * 64)
    assert [path.name for path in (made.root / "Memory/team").iterdir()] == ["one.md"]


async def test_writers_that_name_what_they_read_lose_no_update(made: Governed) -> None:
    await made.write("count", "0")

    async def add() -> None:
        while True:
            read = await made.memory.read(authority(), ReadAsked("team", "count"))
            try:
                await made.write("count", str(int(read.content) + 1), base_hash=read.content_sha256)
            except Conflict:
                continue
            return

    await asyncio.gather(*(add() for _ in range(12)))
    read = await made.memory.read(authority(), ReadAsked("team", "count"))
    assert (read.content, read.version) == ("12", 13)


@requirement("memory_mcp.search-input")
@pytest.mark.parametrize("mode", ["keyword", "hybrid"])
async def test_a_search_finds_records_of_its_namespace_alone(made: Governed, mode: Any) -> None:
    for namespace in ("team", "team/sub", "team-b", "teams"):
        await made.write("note", "deployment plans", namespace=namespace, who=authority("*"))
    (made.root / "Memory/team.md").write_text("deployment")
    (made.root / "deployment.md").write_text("deployment")
    assert await made.found("deploying", mode=mode) == ["team/note"]
    assert await made.found("deploying", mode=mode, namespace="team/sub") == ["team/sub/note"]
    assert await made.found("deploying", mode=mode, namespace="none") == []


@requirement("memory_mcp.search-input")
async def test_a_record_has_its_title_in_every_mode(make_world: MakeWorld, tmp_path: Path, model_cache: Path) -> None:
    models = tmp_path / "index" / "models"
    models.parent.mkdir(mode=0o700)
    models.symlink_to(model_cache)
    made = Governed(await make_world(SERVICE_MEMORY="1", SERVICE_EMBEDDING_MODEL=""), tmp_path / "vault")
    await made.write("d1", "# The kitten\n\nIt sat on the rug.\n")
    memory = made.world.kernel.memory
    assert memory is not None
    await soon(lambda: memory.default.embeddings.estimate_ready_at() is None)
    modes: list[SearchMode] = ["keyword", "semantic", "hybrid"]
    answers = [await made.memory.search(authority(), SearchAsked("team", "kitten", mode)) for mode in modes]
    assert [[one.title for one in answer.results] for answer in answers] == [["The kitten"]] * 3


@requirement("memory.keyword-search")
async def test_a_search_tells_that_the_index_is_being_built(made: Governed, monkeypatch: pytest.MonkeyPatch) -> None:
    for is_complete in (True, False):
        monkeypatch.setattr(SearchIndex, "was_reconciled", AsyncMock(return_value=is_complete))
        answer = msgspec.to_builtins(await made.memory.search(authority(), SearchAsked("team", "apples", "keyword")))
        assert ("incomplete" in answer) is not is_complete


@requirement("memory_mcp.search-input")
async def test_pages_of_a_search_have_each_record_once(made: Governed) -> None:
    for n in range(7):
        await made.write(f"n{n}", "apple " * (n + 1))
    seen: list[str] = []
    asked = SearchAsked("team", "apples", "keyword", 3)
    while True:
        page = await made.memory.search(authority(), asked)
        assert page.total == 7
        seen += [one.record_id for one in page.results]
        if page.next_cursor is None:
            break
        asked = SearchAsked("team", "apples", "keyword", 3, page.next_cursor)
    assert sorted(seen) == [f"team/n{n}" for n in range(7)]


@pytest.mark.parametrize(
    "cursor",
    [
        "x",
        "",
        "ÿ",
        "AAAA",
        encode_cursor(3, ["team", "pears", "keyword"]),
        encode_cursor(-1, ["team", "a", "keyword"]),
        base64.urlsafe_b64encode(b"[1," + b"[" * 5_000 + b"]" * 5_001).decode(),
    ],
)
async def test_a_cursor_of_something_else_is_refused(made: Governed, cursor: str) -> None:
    with pytest.raises(InvalidRequest, match="cursor"):
        await made.memory.search(authority(), SearchAsked("team", "a", "keyword", 3, cursor))


@requirement("memory_mcp.read-and-status")
async def test_the_status_tells_of_the_namespace_and_of_one_record(made: Governed) -> None:
    await made.write("a", "x")
    await made.write("b", "yy")
    await made.write("c", "z", namespace="team/sub")
    status = await made.memory.status(authority(), StatusAsked("team"))
    assert (status.records, status.size, status.embedded, status.record) == (2, 3, 0, None)
    assert status.semantic == "no embedding model is set up: keyword search only"
    one = (await made.memory.status(authority(), StatusAsked("team", "team/b"))).record
    assert one is not None
    assert (one.record_id, one.version, one.size, one.indexed, one.embedded) == ("team/b", 1, 2, True, False)
    for wrong in ("team/none", "other/b"):
        with pytest.raises(NotFound):
            await made.memory.status(authority(), StatusAsked("team", wrong))


USES: list[Any] = [
    ("write-memory", "memory.read", lambda memory, who: memory.write(who, WriteAsked("team", "a", "x"))),
    ("read-memory", "memory.write", lambda memory, who: memory.read(who, ReadAsked("team", "a"))),
    ("search-memory", "memory.write", lambda memory, who: memory.search(who, SearchAsked("team", "a"))),
    ("get-memory-status", "memory.write", lambda memory, who: memory.status(who, StatusAsked("team"))),
]


@requirement("memory_mcp.gate-on-every-call", "memory_mcp.blank-evidence-denied")
@pytest.mark.parametrize(("tool", "wrong", "use"), USES, ids=[use[0] for use in USES])
async def test_what_the_authority_does_not_cover_is_denied_and_recorded(
    made: Governed, tool: str, wrong: str, use: Any
) -> None:
    denied = [None, authority("other"), authority("tea"), authority(capabilities=(wrong,)), authority(tenant="other")]
    for who in denied:
        with pytest.raises(AuthorityDenied):
            await use(made.memory, who)
    events = await made.events()
    assert [event["type"] for event in events] == ["tool_denied"] * len(denied)
    assert all(f'"tool":"{tool}"' in event["metadata"] for event in events)
    assert not (made.root / "Memory").exists()


@requirement("memory_mcp.gate-on-every-call")
async def test_a_denial_names_the_namespaces_that_the_caller_has(made: Governed) -> None:
    for namespaces, named in ((("team", "vault"), ": team, vault."), (tuple(map(str, range(99))), ", 19, and more.")):
        with pytest.raises(AuthorityDenied, match="has access to") as denied:
            await made.write(namespace="other", who=authority(*namespaces))
        assert denied.value.message.endswith(named)


@requirement("memory_mcp.gate-on-every-call")
async def test_a_denial_that_cannot_be_recorded_is_an_outage(made: Governed) -> None:
    made.world.runlog.broken = True
    for who in (None, authority()):
        with pytest.raises(ServiceUnavailable):
            await made.memory.write(who, WriteAsked("team", "a", "x"))
    assert not (made.root / "Memory").exists()


async def test_what_a_call_did_hangs_under_its_admission(made: Governed) -> None:
    written = await made.write("plan", "one")
    read = await made.memory.read(authority(), ReadAsked("team", "plan"))
    events = {event["id"]: event for event in await made.events()}
    assert events[written.provenance_id]["type"] == events[read.provenance_id]["type"] == "tool_called"
    below = {event["type"]: event["parent"] for event in events.values() if event["parent"]}
    assert below == {"memory_written": written.provenance_id, "memory_read": read.provenance_id}


@pytest.mark.parametrize(
    "namespace", ["", "..", "a/../b", "/a", "a/", "a//b", "a\\b", "a\0b", ".hidden", "a" * 300, "\ud800"]
)
async def test_a_namespace_that_is_none_is_refused(made: Governed, namespace: str) -> None:
    for call in (
        made.write("a", "x", namespace=namespace, who=authority("*")),
        made.memory.search(authority("*"), SearchAsked(namespace, "a")),
        made.memory.status(authority("*"), StatusAsked(namespace)),
    ):
        with pytest.raises((InvalidRequest, AuthorityDenied)):
            await call
    assert not made.root.exists() or list(made.root.rglob("*.md")) == []


@pytest.mark.parametrize("key", ["", "a/b", "..", "a\0", ".hidden", "con", "x" * 260, "a?"])
async def test_a_key_that_is_none_is_refused(made: Governed, key: str) -> None:
    with pytest.raises(InvalidRequest):
        await made.write(key, "x")


async def test_a_key_with_md_is_the_record_of_that_file(made: Governed) -> None:
    first = await made.write("office", "x")
    second = await made.write("office.md", "y")
    assert (second.disposition, second.record_id, second.path) == ("updated", first.record_id, first.path)
    assert (await made.memory.read(authority(), ReadAsked("team", "office.md"))).content == "y"
    other = await made.write("office.md.md", "z")
    assert (other.disposition, other.record_id) == ("created", "team/office.md.md")
    assert (await made.memory.read(authority(), ReadAsked(*other.record_id.split("/")))).content == "z"
    with pytest.raises(InvalidRequest):
        await made.write(".md", "x")


async def test_a_new_record_needs_a_namespace_that_every_system_can_have(made: Governed) -> None:
    for namespace in ("con", "a:b", "vault/Memory/a:b"):
        with pytest.raises(InvalidRequest, match=r"Windows|every system"):
            await made.write("a", "x", namespace=namespace, who=authority("*"))
    assert not made.root.exists() or list(made.root.iterdir()) == []


async def test_a_record_that_a_person_gave_an_unportable_name_is_read_and_changed_like_others(made: Governed) -> None:
    (folder := made.root / "Memory/team/Q: all").mkdir(parents=True)
    (folder / "What is a quokka?.md").write_text("An animal.")
    memory = made.world.kernel.memory
    assert memory is not None
    await memory.default.indexer.reconcile()
    assert await made.found("animal", namespace="team/Q: all") == ["team/Q: all/What is a quokka?"]
    read = await made.memory.read(authority(), ReadAsked("team/Q: all", "What is a quokka?"))
    assert read.content == "An animal."
    status = StatusAsked("team/Q: all", read.record_id)
    assert (await made.memory.status(authority(), status)).record is not None
    changed = await made.write("What is a quokka?", "A marsupial.", "team/Q: all", base_hash=read.content_sha256)
    assert (changed.disposition, (folder / "What is a quokka?.md").read_text()) == ("updated", "A marsupial.")
    assert (await made.write("new", "x", "team/Q: all")).disposition == "created"


async def test_names_are_the_same_in_either_normal_form(made: Governed) -> None:
    await made.write("cafe\u0301", "x", namespace="e\u0301", who=authority("\u00e9"))
    read = await made.memory.read(authority("\u00e9"), ReadAsked("\u00e9", "caf\u00e9"))
    assert read.record_id == "\u00e9/caf\u00e9"
