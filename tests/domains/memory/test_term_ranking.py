"""The ranking of single terms gives what FTS5's own function gives, whatever changes meanwhile."""

from __future__ import annotations

import asyncio
import random
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor.core.db import Sql, Tx
from stentor.domains.memory.index.index import IndexChanges, SearchIndex
from stentor.domains.memory.index.model import (
    FIELD_WEIGHTS,
    SEARCH_FIELDS,
    IndexEntry,
    KeywordQuery,
    MatchMode,
    SearchField,
    build_query,
)
from stentor.domains.memory.index.sqlite import document_lengths, sqlite, term_ranking
from tests.conformance.indexes import document, found
from tests.requirements import requirement

WORDS = ["red", "green", "blue", "straße", "水", "x1"]
TEXTS = st.lists(st.sampled_from(WORDS), max_size=90).map(" ".join)
PATHS = st.sampled_from([f"{folder}{n}.md" for folder in ("", "in/") for n in range(4)])
CHANGES = st.lists(
    st.tuples(PATHS, st.none() | st.tuples(TEXTS, st.lists(st.sampled_from(WORDS), max_size=2))), max_size=12
)
WEIGHTS = ", ".join(str(FIELD_WEIGHTS[field]) for field in SEARCH_FIELDS)
BM25 = Sql(
    f"""select d.path, -bm25(words, {WEIGHTS}) from words join documents d on d.doc_id = words.rowid
    where words match :query"""
)


def fts5_match(query: KeywordQuery) -> str:
    phrases = [" + ".join(f'"{term}"' for term in phrase) for phrase in query.phrases]
    columns = " ".join(sorted(query.fields))
    return f"{{{columns}}} : ({(' AND ' if query.mode == 'all' else ' OR ').join(phrases)})"


@pytest.fixture
def index(tmp_path: Path) -> Iterator[SearchIndex]:
    opened = sqlite.open_index(tmp_path)
    yield opened
    opened.close()


async def ranked(index: SearchIndex, query: KeywordQuery, limit: int = 100) -> dict[str, float]:
    hits, *_ = await index.search_keywords(query, limit)
    return {hit.path: hit.score for hit in hits}


def entry(path: str, text: str, tags: list[str], number: int) -> IndexEntry:
    return document(path, f"# {text[:20]}\n{text}", at=number, tags=tags)


async def check_against_fts5(
    changes: list[tuple[str, tuple[str, list[str]] | None]],
    words: list[str],
    fields: list[SearchField],
    mode: MatchMode,
    limit: int,
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        index = sqlite.open_index(Path(folder))
        query = build_query(words, fields, mode)
        assert query is not None
        other = build_query([*words, *WORDS], SEARCH_FIELDS, "any")
        assert other is not None
        # Also before the first change, so that the lengths and terms that are kept have to follow.
        assert await ranked(index, query) == {} == await ranked(index, other)
        for number, (path, content) in enumerate(changes, 1):
            if content is None:
                await index.delete([path])
            else:
                await index.upsert([entry(path, *content, number)], [], number, force=False)
            expected = dict(await index.read(lambda tx: tx.rows(BM25, query=fts5_match(query))))
            assert await ranked(index, query) == pytest.approx(expected, rel=1e-9)
            hits, total, _ = await index.search_keywords(query, limit)
            assert (len(hits), total) == (min(limit, len(expected)), len(expected))
            best = sorted(expected.values(), reverse=True)[:limit]
            assert [hit.score for hit in hits] == pytest.approx(best, rel=1e-9)
        # The terms of the other query have all changes to follow at once.
        expected = dict(await index.read(lambda tx: tx.rows(BM25, query=fts5_match(other))))
        assert await ranked(index, other) == pytest.approx(expected, rel=1e-9)
        index.close()


async def test_the_best_of_many_documents_are_those_of_fts5(index: SearchIndex) -> None:
    dice = random.Random(5)
    texts = [" ".join(dice.choices(WORDS, [8, 4, 2, 1, 1, 1], k=dice.randrange(90))) for _ in range(400)]
    texts[7] = "green " * 300
    await index.upsert([document(f"{n:03}.md", text) for n, text in enumerate(texts)], [], 1, force=False)
    for number, words in enumerate((["red"], ["green"], ["red"], ["x1", "blue"], ["green", "水"], WORDS, ["green"])):
        query = build_query(words, SEARCH_FIELDS, "any")
        assert query is not None
        expected = dict(await index.read(lambda tx: tx.rows(BM25, query=fts5_match(query))))  # noqa: B023
        hits, total, _ = await index.search_keywords(query, 5)
        assert total == len(expected)
        assert [hit.score for hit in hits] == pytest.approx(sorted(expected.values(), reverse=True)[:5], rel=1e-9)
        assert all(expected[hit.path] == pytest.approx(hit.score, rel=1e-9) for hit in hits)
        await index.upsert([document(f"{number:03}.md", f"{words[0]} " * 260)], [], 2, force=False)


@requirement("memory.keyword-search")
@given(
    CHANGES,
    st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=3).map(" ".join), min_size=1, max_size=4),
    st.lists(st.sampled_from(SEARCH_FIELDS), min_size=1, unique=True),
    st.sampled_from(["any", "all"]),
    st.integers(1, 4),
    st.sampled_from([0, 300, 1_000_000]),
    st.sampled_from([0, 1_000]),
    st.sampled_from([0, 2, 1_000]),
    st.sampled_from([1, 2, 64]),
)
def test_documents_and_scores_are_those_of_fts5(
    changes: list[tuple[str, tuple[str, list[str]] | None]],
    words: list[str],
    fields: list[SearchField],
    mode: MatchMode,
    limit: int,
    max_logged_chars: int,
    min_deleted: int,
    dense_share: int,
    block: int,
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(term_ranking, "DENSE_SHARE", dense_share)
        patch.setattr(term_ranking, "BLOCK", block)
        patch.setattr(term_ranking, "MAX_LOGGED_CHARS", max_logged_chars)
        patch.setattr(document_lengths, "MIN_DELETED", min_deleted)
        asyncio.run(check_against_fts5(changes, words, fields, mode, limit))


async def test_what_is_committed_while_a_search_reads_is_found_by_the_next(
    index: SearchIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search that began before a commit must leave nothing for those that begin after it."""
    await index.upsert([document("a.md", "red")], [], 1, force=False)
    loop = asyncio.get_running_loop()
    load_lengths, load_term = term_ranking.load_lengths, term_ranking._load_term
    paths = iter(["b.md", "c.md", "d.md", "e.md"])

    def commit() -> None:
        upsert = index.upsert([document(next(paths), "red")], [], 2, force=False)
        asyncio.run_coroutine_threadsafe(upsert, loop).result()

    def load_lengths_late(tx: Tx) -> object:
        lengths = load_lengths(tx)
        commit()
        return lengths

    def load_term_late(*args: object) -> object:
        term = load_term(*args)  # type: ignore[arg-type]
        commit()
        return term

    with monkeypatch.context() as patch:
        patch.setattr(term_ranking, "load_lengths", load_lengths_late)
        patch.setattr(term_ranking, "_load_term", load_term_late)
        assert await found(index, "red") == ["a.md"]
        # Reads, because nothing is kept of a search during which the lengths changed.
        assert await found(index, "red") == ["a.md", "b.md", "c.md"]
        # Reads, because another field is another list of documents.
        assert await found(index, "red", fields=["content"]) == ["a.md", "b.md", "c.md", "d.md"]
    assert await found(index, "red", fields=["content"]) == ["a.md", "b.md", "c.md", "d.md", "e.md"]
    assert await found(index, "red") == ["a.md", "b.md", "c.md", "d.md", "e.md"]


async def test_a_change_does_not_make_a_search_read_its_terms_again(
    index: SearchIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    await index.upsert([document(f"{n}.md", "red green red") for n in range(3)], [], 1, force=False)
    words = "red", "red-green"
    assert await found(index, *words) == ["0.md", "1.md", "2.md"]

    def fail(*args: object) -> object:
        raise AssertionError(args)

    monkeypatch.setattr(term_ranking, "_load_term", fail)
    monkeypatch.setattr(term_ranking, "_load_phrase", fail)
    await index.upsert(
        [document("1.md", "green"), document("3.md", "red"), document("4.md", "red green")], [], 2, force=False
    )
    await index.delete(["2.md"])
    assert sorted(await found(index, *words)) == ["0.md", "3.md", "4.md"]
    assert sorted(await found(index, "red-green")) == ["0.md", "4.md"]


async def test_what_is_committed_during_the_first_search_alone_is_found_by_the_next(
    index: SearchIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    await index.upsert([document("a.md", "red")], [], 1, force=False)
    loop, load_lengths = asyncio.get_running_loop(), term_ranking.load_lengths

    def load_lengths_late(tx: Tx) -> object:
        lengths = load_lengths(tx)
        upsert = index.upsert([document("b.md", "red")], [], 2, force=False)
        asyncio.run_coroutine_threadsafe(upsert, loop).result()
        return lengths

    with monkeypatch.context() as patch:
        patch.setattr(term_ranking, "load_lengths", load_lengths_late)
        assert await found(index, "red") == ["a.md"]
    assert await found(index, "red") == ["a.md", "b.md"]


@pytest.mark.parametrize("min_deleted", [0, 1_000])
@pytest.mark.parametrize("dense_share", [0, 8])
async def test_positions_that_another_first_search_kept_are_not_used_after_deletions(
    index: SearchIndex, monkeypatch: pytest.MonkeyPatch, min_deleted: int, dense_share: int
) -> None:
    await index.upsert([document(path, "red") for path in ("a.md", "b.md", "c.md")], [], 1, force=False)
    loop, load_lengths = asyncio.get_running_loop(), term_ranking.load_lengths

    async def search_and_delete() -> None:
        assert await found(index, "red") == ["a.md", "b.md", "c.md"]
        await index.delete(["a.md", "b.md"])

    def load_lengths_late(tx: Tx) -> object:
        lengths = load_lengths(tx)
        monkeypatch.setattr(term_ranking, "load_lengths", load_lengths)
        asyncio.run_coroutine_threadsafe(search_and_delete(), loop).result()
        return lengths

    monkeypatch.setattr(document_lengths, "MIN_DELETED", min_deleted)
    monkeypatch.setattr(term_ranking, "DENSE_SHARE", dense_share)
    monkeypatch.setattr(term_ranking, "load_lengths", load_lengths_late)
    assert await found(index, "red") == ["c.md"]


async def test_documents_that_only_another_first_search_knows_are_left_out(
    index: SearchIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(term_ranking, "DENSE_SHARE", 0)
    await index.upsert([document("a.md", "red")], [], 1, force=False)
    loop, load_lengths, phrase_parts = asyncio.get_running_loop(), term_ranking.load_lengths, term_ranking.phrase_parts
    has_lengths, may_go_on = threading.Event(), threading.Event()
    searches: list[asyncio.Task[list[str]]] = []

    def phrase_parts_late(phrase: tuple[str, ...]) -> list[tuple[str, ...]]:
        monkeypatch.setattr(term_ranking, "phrase_parts", phrase_parts)
        has_lengths.set()
        assert may_go_on.wait(600)
        return phrase_parts(phrase)

    def load_lengths_late(tx: Tx) -> object:
        monkeypatch.setattr(term_ranking, "load_lengths", load_lengths)
        loop.call_soon_threadsafe(lambda: searches.append(asyncio.create_task(found(index, "red"))))
        assert has_lengths.wait(600)
        upsert = index.upsert([document("b.md", "red")], [], 2, force=False)
        asyncio.run_coroutine_threadsafe(upsert, loop).result()
        return load_lengths(tx)

    monkeypatch.setattr(term_ranking, "load_lengths", load_lengths_late)
    monkeypatch.setattr(term_ranking, "phrase_parts", phrase_parts_late)
    assert await found(index, "red") == ["a.md", "b.md"]
    may_go_on.set()
    assert await searches[0] == ["a.md"]


async def test_a_rollback_changes_nothing(index: SearchIndex) -> None:
    await index.upsert([document("a.md", "red")], [], 1, force=False)
    assert await found(index, "red") == ["a.md"]

    def fail(tx: Tx) -> None:
        index._upsert(tx, document("b.md", "red"), IndexChanges(), force=False)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await index.write(fail)
    assert await found(index, "red") == ["a.md"]


async def test_the_memory_for_terms_is_bounded(index: SearchIndex, monkeypatch: pytest.MonkeyPatch) -> None:
    await index.upsert([document(f"{n}.md", " ".join(WORDS)) for n in range(20)], [], 1, force=False)
    # One byte for each document, because each has the term: room for two of them.
    monkeypatch.setattr(term_ranking, "MAX_KEPT_BYTES", 2 * 20)
    ranking = index._keywords._ranking  # type: ignore[attr-defined]
    for word in WORDS * 2:
        assert len(await found(index, word)) == 20
        assert len(ranking._kept) <= 2
        assert ranking._kept_bytes == sum(kept.found.bytes for kept in ranking._kept.values())


async def test_the_number_of_phrases_that_are_kept_is_bounded(
    index: SearchIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    await index.upsert([document("a.md", "red")], [], 1, force=False)
    monkeypatch.setattr(term_ranking, "MAX_KEPT_PARTS", 3)
    ranking = index._keywords._ranking  # type: ignore[attr-defined]
    for number in range(9):
        assert await found(index, f"red-{number}") == []
    assert len(ranking._kept) == 3
    assert await found(index, "red") == ["a.md"]


async def test_the_same_part_of_a_phrase_is_looked_for_once(index: SearchIndex) -> None:
    await index.upsert([document("a.md", "red " * 600), document("b.md", "red " * 20)], [], 1, force=False)
    assert await found(index, "red-" * 500) == ["a.md"]
    assert len(index._keywords._ranking._kept) == 2  # type: ignore[attr-defined]
