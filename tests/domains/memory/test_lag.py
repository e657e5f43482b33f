"""How far the index is behind: measured from a change, never from a time that a file had before."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stentor.core.clock import DAY, SECOND
from stentor.domains.memory.embedding.embedder import Vectors
from stentor.domains.memory.embedding.embedding_worker import MODEL_LOAD_SECONDS, EmbeddingWorker
from stentor.domains.memory.index.indexer import Indexer
from stentor.domains.memory.index.lag import ChangeWindow
from stentor.domains.memory.index.sqlite.sqlite import open_index
from stentor.testing import FixedClock
from stentor_vault.notes.folder_vault import FolderVault
from stentor_vault.notes.model import Stat
from stentor_vault.text.markdown import split_chunks
from tests.conftest import MakeWorld
from tests.domains.memory.conftest import Notes
from tests.patience import soon
from tests.requirements import requirement

YEARS = 3000 * DAY


class Letters:
    """A model that knows how often each letter stands in a text; each text takes it a second."""

    identity, dimensions, max_tokens = "letters", 26, 100

    def __init__(self, clock: FixedClock) -> None:
        self._clock = clock

    async def is_prepared(self) -> bool:
        return True

    async def load(self) -> None: ...

    async def close(self) -> None: ...

    def count(self, text: str) -> int:
        return len(text.split())

    async def embed(self, texts: Sequence[str], *, urgent: bool = False) -> Vectors:
        self._clock.advance(seconds=len(texts))
        counts = [[text.count(chr(97 + n)) + 0.01 for n in range(26)] for text in texts]
        made: Vectors = (np.asarray(counts) / np.linalg.norm(counts, axis=1, keepdims=True)).astype(np.float32)
        return made


class Kept:
    """A vault and what keeps its index, without anything that watches."""

    def __init__(self, folder: Path, clock: FixedClock) -> None:
        self.root = folder / "kept"
        self.root.mkdir()
        self.clock = clock
        self.index = open_index(folder / "kept-index")
        self.indexer = Indexer(FolderVault(self.root), self.index, clock)
        self.meanings = EmbeddingWorker(self.index, Letters(clock), clock)
        self.indexer.on_indexed = self.meanings.enqueue

    def put(self, name: str, ago: int = 0) -> str:
        """A file whose time is so long ago, in microseconds."""
        (self.root / name).write_text(name)
        at = (self.clock.now() - ago) * 1000
        os.utime(self.root / name, ns=(at, at))
        return name

    async def behind(self) -> float:
        return self.meanings.oldest_wait_seconds((await self.index.totals()).without_vectors)


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    # Ahead of the real time, so that a file is never newer than the clock.
    clock = FixedClock()
    clock.advance(days=1)
    made = Kept(tmp_path, clock)
    yield made
    made.index.close()


@pytest.mark.parametrize(
    ("modified_at", "created_at", "since"),
    [
        (150, 150, 150),  # an edit since the look before
        (50, 50, 200),  # it was as it is before that look, and cannot have been here
        (50, 160, 160),  # moved here
        (250, 250, 200),  # a clock that goes ahead
    ],
)
def test_a_change_is_as_old_as_its_file_if_that_was_not_looked_at_since(
    modified_at: int, created_at: int, since: int
) -> None:
    stat = Stat("a.md", 1, modified_at * SECOND, created_at * SECOND)
    assert ChangeWindow(100 * SECOND, 200 * SECOND).changed_at(stat) == since * SECOND


@requirement("memory.lag-since-noticed")
async def test_an_old_vault_is_no_older_than_the_first_look_at_it(kept: Kept) -> None:
    for n in range(3):
        kept.put(f"{n}.md", ago=YEARS)
    await kept.indexer.reconcile()
    kept.clock.advance(seconds=4)
    assert await kept.behind() == 4
    ready_at = kept.meanings.estimate_ready_at()
    assert ready_at is not None
    assert kept.clock.now() < ready_at < kept.clock.now() + 60 * SECOND
    await kept.meanings.embed_pending()
    assert kept.meanings.lag.last == 7
    assert await kept.behind() == 0
    kept.clock.advance(seconds=100)
    assert (await kept.indexer.reindex("", 10)).done == 3
    await kept.meanings.embed_pending()
    assert kept.meanings.lag.last == 0  # the vectors were known
    assert kept.meanings.lag.p95 == 7


@requirement("memory.lag-since-noticed")
async def test_what_waited_when_a_process_starts_waits_since_then(kept: Kept) -> None:
    kept.put("a.md", ago=YEARS)
    await kept.indexer.reconcile()
    kept.clock.advance(days=1)
    again = EmbeddingWorker(kept.index, Letters(kept.clock), kept.clock)
    kept.clock.advance(seconds=4)
    assert again.oldest_wait_seconds((await kept.index.totals()).without_vectors) == 4
    await again.embed_pending()
    assert again.lag.last == 5


@requirement("memory.lag-since-noticed")
async def test_a_fresh_edit_is_measured_from_its_change_and_a_file_that_arrives_old_from_the_look(kept: Kept) -> None:
    kept.clock.advance(seconds=100)
    fresh = kept.put("fresh.md")
    kept.clock.advance(seconds=3)
    await kept.indexer.check_files([fresh], kept.indexer.start_window())
    assert kept.indexer.lag.last == 3
    await kept.meanings.embed_pending()
    assert kept.meanings.lag.last == 4
    kept.clock.advance(seconds=100)
    old = kept.put("old.md", ago=YEARS)
    await kept.indexer.check_files([old], kept.indexer.start_window())
    assert kept.indexer.lag.last == 0
    await kept.meanings.embed_pending()
    assert kept.meanings.lag.last == 1


@pytest.mark.parametrize("jump", [-YEARS, YEARS], ids=["back", "ahead"])
async def test_unused_vectors_are_deleted_after_ten_minutes_whatever_the_clock_is_set_to(kept: Kept, jump: int) -> None:
    async def embed(name: str) -> None:
        await kept.indexer.check_files([kept.put(name)], kept.indexer.start_window())
        await kept.meanings.embed_pending()

    await embed("gone.md")
    (unused,) = split_chunks("gone", "gone.md", Letters.max_tokens, len)
    (kept.root / "gone.md").unlink()
    await kept.indexer.check_files(["gone.md"], kept.indexer.start_window())
    kept.clock.jump(jump / SECOND)
    await embed("a.md")
    assert await kept.index.vectors.find_by_hash([unused.hash])
    kept.clock.advance(seconds=600)
    await embed("b.md")
    assert not await kept.index.vectors.find_by_hash([unused.hash])


@requirement("memory.keyword-search", "memory.health")
async def test_searches_tell_that_the_index_is_being_built(
    make_world: MakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: FixedClock
) -> None:
    release, reconcile = asyncio.Event(), Indexer.reconcile

    async def reconcile_late(indexer: Indexer) -> int:
        await release.wait()
        return await reconcile(indexer)

    monkeypatch.setattr(Indexer, "reconcile", reconcile_late)
    (tmp_path / "vault").mkdir()
    (tmp_path / "vault" / "old.md").write_text("a river")
    notes = Notes(await make_world(SERVICE_MEMORY="1"), tmp_path / "vault")

    async def search(kind: str, **body: Any) -> dict[str, Any]:
        answer = (await notes.post(f"search/{kind}", **body)).json()
        return {name: answer.get(name) for name in ("total_matches", "incomplete")}

    assert await search("keyword", terms=["river"]) == {"total_matches": 0, "incomplete": True}
    await notes.write("new.md", "a river")
    assert await search("hybrid", query="river") == {"total_matches": 1, "incomplete": True}
    memory = notes.world.kernel.memory
    assert memory is not None
    memory.default.health._embedding_worker = EmbeddingWorker(memory.default.index, Letters(clock), clock)
    health = await memory.default.health.report()
    detail = health["components"]["vector_store"]["detail"]
    assert detail == "the search index is being built, 1 documents so far"
    release.set()

    async def is_complete() -> bool:
        return (await search("keyword", terms=["river"])) == {"total_matches": 2, "incomplete": None}

    await soon(is_complete)
    assert await search("hybrid", query="river") == {"total_matches": 2, "incomplete": None}


@requirement("memory.health", "memory.lag-since-noticed")
async def test_health_tells_how_long_the_oldest_document_waits(make_world: MakeWorld, tmp_path: Path) -> None:
    notes = Notes(await make_world(SERVICE_MEMORY="1"), tmp_path / "vault")
    memory = notes.world.kernel.memory
    assert memory is not None
    clock = notes.world.clock
    idle = EmbeddingWorker(memory.default.index, Letters(clock), clock)  # nobody runs it
    memory.default.indexer.on_indexed = idle.enqueue
    memory.default.health._embedding_worker = idle
    await notes.write("a.md", "one")
    clock.advance(seconds=90)
    await notes.write("b.md", "two")
    await soon(memory.default.index.was_reconciled)

    async def told() -> dict[str, Any]:
        return dict((await notes.world.admin.get("/api/v1/memory/health")).json()["components"]["vector_store"])

    part = await told()
    assert part["detail"] == "2 documents are not embedded yet"
    assert part["sync_lag_ms"] >= 90_000


@requirement("memory.lag-since-noticed")
async def test_a_folder_of_old_files_that_is_moved_into_the_vault_is_new_there(notes: Notes) -> None:
    memory = notes.world.kernel.memory
    assert memory is not None
    folder = notes.root.parent / "old"
    folder.mkdir()
    (folder / "a.md").write_text("harbour")
    os.utime(folder / "a.md", (1, 1))
    folder.rename(notes.root / "old")
    await notes.until_found("harbour", ["old/a.md"])
    (notes.root / "later.md").write_text("later")
    await notes.until_found("later", ["later.md"])
    assert memory.default.indexer.lag.p95 < 3600


@requirement("memory.lag-since-noticed")
async def test_the_first_estimate_holds_the_time_that_the_model_takes_to_load(kept: Kept) -> None:
    """Afterwards one note takes a second, and the estimate says about that."""
    await kept.indexer.check_files([kept.put("a.md")])
    first = kept.meanings.estimate_ready_at()
    assert first is not None
    assert first - kept.clock.now() >= MODEL_LOAD_SECONDS * SECOND
    await kept.meanings.embed_pending()
    assert kept.meanings.estimate_ready_at() is None
    await kept.indexer.check_files([kept.put("b.md")])
    later = kept.meanings.estimate_ready_at()
    assert later is not None
    assert later - kept.clock.now() < MODEL_LOAD_SECONDS * SECOND
