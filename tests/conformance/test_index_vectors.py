"""What every search index must do with vectors: in memory, and in pgvector."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from stentor.core.db import Tx
from stentor.core.errors import StoreConflict, StoreUnavailable
from stentor.domains.memory.index.index import SearchIndex
from stentor.domains.memory.index.model import EmbeddingModel, SearchFilters
from stentor.domains.memory.index.postgres import pgvector, shared_vectors
from stentor.domains.memory.index.sqlite import in_memory_vectors
from tests.conformance.indexes import (
    MODEL,
    Vector,
    chunks,
    document,
    embed,
    fill,
    near,
    one_waiting,
    open_kind,
    unit,
)
from tests.requirements import requirement

EAST, NORTH, BETWEEN = unit(1, 0), unit(0, 1), unit(1, 1)


async def three(index: SearchIndex) -> None:
    await index.vectors.use_model(MODEL)
    await fill(
        index,
        document("in/east.md", "e", created_at="2020-01-01T00:00:00Z", hebbian_weights={"a": 2.0}),
        document("in/north.md", "n", created_at="2026-01-01T00:00:00Z", hebbian_weights={"a": 0.5}),
        document("between.md", "b", created_at="2026-01-01T00:00:00Z"),
    )
    await embed(index, {"in/east.md": [EAST], "in/north.md": [NORTH], "between.md": [BETWEEN]})


@requirement("memory.semantic-search")
async def test_the_nearest_come_first_with_their_cosine(index: SearchIndex) -> None:
    await three(index)
    assert await near(index, EAST) == (["in/east.md", "between.md", "in/north.md"], 3)
    hits, _ = await index.vectors.nearest(EAST, 10, SearchFilters())
    assert [hit.similarity for hit in hits] == pytest.approx([1, 0.5**0.5, 0], abs=1e-6)
    assert await near(index, NORTH, most=1) == (["in/north.md"], 3)


@requirement("memory.semantic-filters")
async def test_filters_drop_documents_before_the_best_are_taken(index: SearchIndex) -> None:
    await three(index)
    after = 1_600_000_000_000_000
    assert await near(index, EAST, most=1, created_after=after) == (["between.md"], 2)
    assert await near(index, EAST, weight_min=0.5) == (["in/east.md", "in/north.md"], 2)
    assert await near(index, EAST, weight_min=0.6, folder="in") == (["in/east.md"], 1)
    assert await near(index, EAST, folder="in", created_after=after, weight_min=0.1) == (["in/north.md"], 1)
    assert await near(index, EAST, folder="") == (["between.md"], 1)
    assert await near(index, EAST, weight_min=9) == ([], 0)


@requirement("memory.semantic-floor")
async def test_what_is_not_similar_enough_is_neither_returned_nor_counted(index: SearchIndex) -> None:
    await three(index)
    assert await near(index, EAST, similarity_min=0.5) == (["in/east.md", "between.md"], 2)
    assert await near(index, EAST, most=1, similarity_min=0.5) == (["in/east.md"], 2)
    assert await near(index, EAST, similarity_min=0.5, folder="in") == (["in/east.md"], 1)
    assert await near(index, unit(-1, -1), similarity_min=0.1) == ([], 0)
    assert (await near(index, unit(-1, -1), similarity_min=-1))[1] == 3


async def test_a_document_is_as_near_as_its_nearest_chunk(index: SearchIndex) -> None:
    await index.vectors.use_model(MODEL)
    ids = await fill(index, document("a.md", "a"), document("b.md", "b"))
    await embed(index, {"a.md": [NORTH, NORTH, EAST], "b.md": [BETWEEN, NORTH]})
    hits, total = await index.vectors.nearest(EAST, 10, SearchFilters())
    assert [(hit.doc_id, hit.ordinal) for hit in hits] == [(ids[0], 2), (ids[1], 0)]
    assert total == 2
    alike = await index.vectors.similarities(EAST, [*ids, 999])
    assert alike == pytest.approx({ids[0]: 1.0, ids[1]: 0.5**0.5}, abs=1e-6)
    assert await index.vectors.similarities(EAST, []) == {}


async def test_a_query_without_a_direction_is_like_nothing(index: SearchIndex) -> None:
    await three(index)
    hits, total = await index.vectors.nearest(np.zeros(MODEL.dimensions, np.float32), 10, SearchFilters())
    assert ([hit.similarity for hit in hits], total) == ([0, 0, 0], 3)


async def test_short_documents_get_their_vectors_before_long_ones(index: SearchIndex) -> None:
    await index.vectors.use_model(MODEL)
    await fill(index, document("a.md", "long " * 100_000), document("b.md", "short"), document("c.md", "longer than b"))
    assert [one.path for one in await index.vectors.next_pending(10)] == ["b.md", "c.md", "a.md"]


async def test_a_document_that_changed_meanwhile_keeps_nothing(index: SearchIndex) -> None:
    await index.vectors.use_model(MODEL)
    await fill(index, document("a.md", "old"))
    old = await one_waiting(index)
    await fill(index, document("a.md", "new"))
    assert not await index.vectors.save(old, chunks("old"), np.stack([EAST]))
    new = await one_waiting(index)
    assert new.body == "new"
    assert await index.vectors.save(new, chunks("new"), np.stack([NORTH]))
    assert await index.vectors.next_pending(10) == []
    assert (await index.totals()).without_vectors == 0


async def test_a_document_that_is_made_anew_is_found_by_its_old_vectors_until_it_has_new_ones(
    index: SearchIndex,
) -> None:
    await three(index)
    await fill(index, document("between.md", "moved"))
    assert await near(index, EAST) == (["in/east.md", "between.md", "in/north.md"], 3)
    await embed(index, {"between.md": [unit(0, 0, 1)]})
    assert (await near(index, unit(0, 0, 1)))[0][0] == "between.md"


async def test_what_is_removed_is_near_nothing(index: SearchIndex) -> None:
    await three(index)
    await index.delete(["in/east.md"])
    assert await near(index, EAST) == (["between.md", "in/north.md"], 2)
    await index.vectors.delete_orphans()
    assert await near(index, EAST) == (["between.md", "in/north.md"], 2)


async def test_a_text_is_known_by_its_hash_as_long_as_something_has_it_or_had_it_a_moment_ago(
    index: SearchIndex,
) -> None:
    await three(index)
    hashes = [chunks("between.md 0")[0].hash, chunks("never")[0].hash]
    (vector,) = (await index.vectors.find_by_hash(hashes)).values()
    assert vector.tolist() == BETWEEN.tolist()
    await index.delete(["between.md"])
    assert list(await index.vectors.find_by_hash(hashes)) == hashes[:1]
    await index.vectors.delete_orphans()
    assert await index.vectors.find_by_hash(hashes) == {}


async def test_a_document_gets_more_chunks_and_fewer(index: SearchIndex) -> None:
    await index.vectors.use_model(MODEL)
    for texts in ("abc", "ac", "x", "xabcd"):
        await index.upsert([document("a.md", "same")], [], 1, force=True)
        one = await one_waiting(index)
        vectors = np.stack([unit(*(float(text == letter) for letter in "abcdx")) for text in texts])
        assert await index.vectors.save(one, chunks(*texts), vectors)
        hits, total = await index.vectors.nearest(vectors[-1], 10, SearchFilters())
        assert ([(hit.ordinal, round(hit.similarity, 5)) for hit in hits], total) == ([(len(texts) - 1, 1)], 1)


async def test_vectors_are_of_one_model(index: SearchIndex) -> None:
    await three(index)
    await index.vectors.use_model(MODEL)
    assert (await near(index, EAST))[1] == 3
    other = EmbeddingModel("another model", 5)
    await index.vectors.use_model(other)
    assert (await index.totals()).without_vectors == 3
    query = np.ones(5, np.float32) / 5**0.5
    assert await index.vectors.nearest(query, 10, SearchFilters()) == ([], 0)
    for one in await index.vectors.next_pending(10):
        assert await index.vectors.save(one, chunks(one.path), np.stack([query]))
    assert (await index.vectors.nearest(query, 10, SearchFilters()))[1] == 3
    record = await index.find_document("between.md")
    assert record is not None
    assert record.model == "another model"
    assert (await index.folder_stats("in")).with_vectors == 2


async def test_vectors_outlive_a_restart(kind: str, address: str, tmp_path: Path, index: SearchIndex) -> None:
    await three(index)
    again = open_kind(kind, tmp_path, address)
    await again.vectors.use_model(MODEL)
    assert await near(again, EAST) == (["in/east.md", "between.md", "in/north.md"], 3)
    assert (await again.totals()).without_vectors == 0
    again.close()


async def open_before_a_change(index: SearchIndex, kind: str, address: str, tmp_path: Path) -> SearchIndex:
    """Open the index as another process does, then add `new.md`."""
    await three(index)
    other = open_kind(kind, tmp_path, address)
    await other.vectors.use_model(MODEL)
    await fill(index, document("new.md", "n"))
    await embed(index, {"new.md": [unit(-1)]})
    return other


@pytest.mark.parametrize("kind", ["postgresql without pgvector"])
@pytest.mark.parametrize("is_late", [False, True])
async def test_what_another_process_changed_is_found_after_a_lost_connection(
    index: SearchIndex, kind: str, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    """Both while changes are read, which is tried again at once, and while all vectors are, which the caller tries."""
    other = await open_before_a_change(index, kind, address, tmp_path)
    failures: list[Exception] = [StoreUnavailable("lost") if is_late else StoreConflict("lost")]
    name = "iter_vectors" if is_late else "list_document_vectors"
    module = (in_memory_vectors if is_late else shared_vectors).vector_matrix
    read = getattr(module, name)

    def read_after_failures(*args: object) -> object:
        if failures:
            raise failures.pop()
        return read(*args)

    with monkeypatch.context() as patch:
        patch.setattr(module, name, read_after_failures)
        if is_late:
            patch.setattr(shared_vectors, "JOURNAL_RETENTION_US", 0)
            with pytest.raises(StoreUnavailable):
                await near(other, unit(-1))
        else:
            await near(other, unit(-1))
    assert not failures
    assert await near(other, unit(-1), most=1) == (["new.md"], 4)
    other.close()


@pytest.mark.parametrize("kind", ["postgresql without pgvector"])
@pytest.mark.parametrize("is_late", [False, True])
async def test_what_another_process_changed_is_found_after_a_search_that_was_cancelled(
    index: SearchIndex, kind: str, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_late: bool
) -> None:
    """A caller may be cancelled when its changes, or all vectors, are read already and not yet applied."""
    other = await open_before_a_change(index, kind, address, tmp_path)
    assert isinstance(other.vectors, shared_vectors.SharedInMemoryVectorStore)
    read = other.vectors._database.read

    async def read_and_cancel(fn: Callable[[Tx], Any]) -> None:
        await read(fn)
        raise asyncio.CancelledError

    with monkeypatch.context() as patch:
        patch.setattr(other.vectors._database, "read", read_and_cancel)
        if is_late:
            patch.setattr(shared_vectors, "JOURNAL_RETENTION_US", 0)
        with pytest.raises(asyncio.CancelledError):
            await near(other, unit(-1))
    assert await near(other, unit(-1), most=1) == (["new.md"], 4)
    other.close()


MANY = 700


@pytest.fixture
def graphed(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than a hundred documents are not compared one by one."""
    monkeypatch.setattr(pgvector, "EXACT_MAX_DOCUMENTS", 100)


async def many(index: SearchIndex, dimensions: int, seed: int) -> tuple[list[str], Vector]:
    """Documents in ten folders, every third with a weight; their vectors are around forty centres."""
    dice = np.random.default_rng(seed)
    await index.vectors.use_model(EmbeddingModel("many", dimensions))
    centres = dice.normal(size=(40, dimensions))
    vectors = centres[np.arange(MANY) % 40] + 0.6 * dice.normal(size=(MANY, dimensions))
    vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    paths = [f"{n % 10}/{n}.md" for n in range(MANY)]
    entries = [
        msgspec.structs.replace(document(path, f"word {n % 50}", at=n), weight=None if n % 3 else 1.0)
        for n, path in enumerate(paths)
    ]
    await fill(index, *entries)
    numbers = {path: n for n, path in enumerate(paths)}
    while waiting := await index.vectors.next_pending(500):
        saves = [index.vectors.save(one, chunks(one.path), vectors[[numbers[one.path]]]) for one in waiting]
        assert all(await asyncio.gather(*saves))
    return paths, vectors


@pytest.mark.usefixtures("graphed")
@pytest.mark.parametrize("dimensions", [16, 2_500])
@requirement("memory.semantic-search", "memory.semantic-filters", "scale.memory-index")
async def test_of_many_documents_nearly_all_of_the_nearest_are_found(
    index: SearchIndex, kind: str, dimensions: int
) -> None:
    if kind != "postgresql" and dimensions > 16:
        pytest.skip("only a graph treats long vectors in another way")
    paths, vectors = await many(index, dimensions, seed=3)
    dice = np.random.default_rng(5)
    hit = asked = 0
    for most, filters, passes in (
        (10, {}, np.ones(MANY, bool)),
        (100, {}, np.ones(MANY, bool)),
        (10, {"created_after": 200}, np.arange(MANY) > 200),
        (10, {"weight_min": 0.5}, np.arange(MANY) % 3 == 0),
        (10, {"folder": "7"}, np.arange(MANY) % 10 == 7),
    ):
        for _ in range(10):
            query = vectors[dice.integers(MANY)] + 0.1 * dice.normal(size=dimensions).astype(np.float32)
            query /= np.linalg.norm(query)
            similarities = np.where(passes, vectors @ query, -2)
            best = {paths[n] for n in np.argsort(-similarities)[:most]}
            found, total = await near(index, query, most=most, **filters)
            assert (len(found), total) == (most, passes.sum())
            above = int((similarities >= 0.7).sum())
            similar, total = await near(index, query, most=most, similarity_min=0.7, **filters)
            assert len(similar) == min(most, above)
            assert total == above or most < total < above
            hit, asked = hit + len(best & set(found)), asked + most
    assert hit / asked >= 0.97


@pytest.mark.slow
@pytest.mark.usefixtures("graphed")
async def test_many_chunks_of_one_document_hide_no_other(index: SearchIndex) -> None:
    """As many as a search of the graph asks for at first are all of one document."""
    await many(index, MODEL.dimensions, seed=4)
    await fill(index, document("large.md", "large"))
    one = await one_waiting(index)
    rows = np.stack([unit(1, 0.0001 * n) for n in range(400)])
    assert await index.vectors.save(one, chunks(*(f"large {n}" for n in range(400))), rows)
    found, total = await near(index, EAST, most=10)
    assert (found[0], len(found), len(set(found)), total) == ("large.md", 10, 10, MANY + 1)
