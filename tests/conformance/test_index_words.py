"""What every search index must do with documents and words, on both databases."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stentor.core.db import Sql
from stentor.core.db.postgres.driver import PostgresDriver
from stentor.core.errors import StoreUnavailable
from stentor.domains.memory.index import store
from stentor.domains.memory.index.index import SearchIndex
from stentor.domains.memory.index.model import (
    SEARCH_FIELDS,
    IndexEntry,
    KeywordHit,
    MatchMode,
    SearchField,
    build_query,
)
from stentor.domains.memory.index.postgres import keywords
from stentor.domains.memory.index.postgres import schema as postgres
from stentor.domains.memory.index.sqlite import sqlite
from tests.conformance.indexes import document, fill, found, scores
from tests.requirements import requirement


async def test_a_document_is_found_replaced_and_removed(index: SearchIndex) -> None:
    (first,) = await fill(index, document("a.md", "red"))
    assert await found(index, "red") == ["a.md"]
    assert await fill(index, document("a.md", "blue", at=2)) == [first]
    assert (await found(index, "red"), await found(index, "blue")) == ([], ["a.md"])
    assert await index.delete(["a.md", "never.md"]) == [first]
    assert await found(index, "blue") == []
    assert (await index.totals()).documents == 0


async def test_an_index_that_another_process_made_again_is_incomplete(index: SearchIndex) -> None:
    assert not await index.was_reconciled(max_age_s=3600)
    await index.mark_reconciled(1)
    assert await index.was_reconciled(max_age_s=3600)
    await index.write(lambda tx: tx.run(Sql("delete from facts where name = 'compared_at'")))
    assert await index.was_reconciled(max_age_s=3600)
    assert await index.was_reconciled() is not index.is_shared


async def test_what_is_there_already_stays_unless_it_is_to_be_made_anew(index: SearchIndex) -> None:
    (doc_id,) = await fill(index, document("a.md", "red"))
    assert await fill(index, document("a.md", "red", at=9)) == []
    assert (await index.file_states())["a.md"].modified_at == 9
    assert await index.upsert([document("a.md", "red")], [], 2, force=True) == {"a.md": doc_id}
    assert await found(index, "red") == ["a.md"]


async def test_documents_come_and_go_in_one_transaction(index: SearchIndex) -> None:
    await fill(index, document("a.md", "red"), document("b.md", "red"))
    await index.upsert([document("c.md", "red")], ["a.md"], 77, force=False)
    assert sorted(await found(index, "red")) == ["b.md", "c.md"]
    assert (await index.totals()).synced_at == 77


async def test_what_the_index_knows_of_files_and_folders(index: SearchIndex) -> None:
    entries = [document(path, "x" * 10, at=n) for n, path in enumerate(["a/1.md", "a/b/2.md", "a0.md", "ab/3.md"], 1)]
    await fill(index, *entries)
    assert {path: (state.size, state.modified_at) for path, state in (await index.file_states()).items()} == {
        entry.path: (10, n) for n, entry in enumerate(entries, 1)
    }
    assert await index.file_states_of(["a/1.md", "none.md"]) == {"a/1.md": (await index.file_states())["a/1.md"]}
    assert sorted(await index.paths_under("a")) == ["a/1.md", "a/b/2.md"]
    assert await index.read_bodies(["a0.md", "none.md"]) == {"a0.md": "x" * 10}
    record = await index.find_document("a/1.md")
    assert record is not None
    assert (record.raw_hash, record.content_hash, record.model) == (entries[0].raw_hash, entries[0].content_hash, None)
    assert await index.find_document("none.md") is None
    stats = await index.folder_stats("a")
    assert (stats.documents, stats.size, stats.with_vectors, stats.modified_at) == (1, 10, 0, 1)
    assert (await index.folder_stats("none")).modified_at is None
    totals = await index.totals()
    assert (totals.documents, totals.size, totals.without_vectors) == (4, 40, 4)


@requirement("memory.list")
async def test_documents_are_listed_the_latest_changed_first(index: SearchIndex) -> None:
    await fill(
        index,
        *(document(f"a/{n}.md", "x", at=n, tags=["even" if n % 2 == 0 else "odd"]) for n in range(1, 6)),
        document("root.md", "x", at=5),
    )
    rows = await index.list_recent(None, "", (9, ""), 9)
    assert [row.path for row in rows] == ["a/5.md", "root.md", "a/4.md", "a/3.md", "a/2.md", "a/1.md"]
    assert [row.path for row in await index.list_recent(None, "", (5, "a/5.md"), 2)] == ["root.md", "a/4.md"]
    assert [row.path for row in await index.list_recent("", "", (9, ""), 9)] == ["root.md"]
    assert [(row.path, row.tags) for row in await index.list_recent("a", "even", (4, "a/4.md"), 9)] == [
        ("a/2.md", ["even"])
    ]
    assert await index.outline() == ({"": 1, "a": 5}, {"odd": 3, "even": 2})


@requirement("memory.list")
async def test_a_page_of_the_list_and_the_totals_read_no_texts_of_other_documents(tmp_path: Path) -> None:
    index = sqlite.open_index(tmp_path)
    page = {"tag": "", "before": 9, "after": "", "limit": 9}
    asked: list[tuple[Sql, dict[str, Any]]] = [
        (store._LIST_RECENT_OF_ALL, page),
        (store._LIST_RECENT_OF_FOLDER, page | {"folder": "a"}),
        (store._TOTALS, {}),
    ]
    for sql, params in asked:
        plan = await index.read(lambda tx, s=sql, p=params: tx.rows(Sql(f"explain query plan {s.text}"), **p))
        assert "INDEX" in plan[0][3], plan
    index.close()


@requirement("memory.list")
async def test_a_tag_is_found_in_any_case_in_the_text_too_and_has_the_tags_below_it(index: SearchIndex) -> None:
    await fill(
        index,
        document("inline.md", "# Meeting\n\nwith #Projekt/alpha and `#code` [[#Costs]]"),
        document("listed.md", "x", at=2, tags=["projekt"]),
        document("other.md", "x", tags="projektor, ops"),
    )
    for tag in ("projekt", "#Projekt", "PROJEKT"):
        assert [row.path for row in await index.list_recent(None, tag, (9, ""), 9)] == ["listed.md", "inline.md"]
    assert [row.path for row in await index.list_recent(None, "projekt/Alpha", (9, ""), 9)] == ["inline.md"]
    _, tags = await index.outline()
    assert {name.casefold(): count for name, count in tags.items()} == {
        "projekt": 2, "projekt/alpha": 1, "projektor": 1, "ops": 1,
    }  # fmt: skip
    assert await found(index, "alpha", fields=["tags"]) == ["inline.md"]


@requirement("memory.aliases-searched")
async def test_an_alias_is_searched_as_the_title_is(index: SearchIndex) -> None:
    filler = "words of no account. " * 30
    await fill(
        index,
        document("alias.md", filler, aliases=["Zanzibar", 7], tags=["x"]),
        document("alias text.md", filler, aliases="Isle of Spice, Unguja"),
        document("text.md", f"{filler} Zanzibar {filler}"),
        *(document(f"{n}.md", filler) for n in range(5)),
    )
    assert await found(index, "zanzibar") == ["alias.md", "text.md"]
    assert await found(index, "isle of spice", fields=["title"]) == ["alias text.md"]


@requirement("memory.backlinks")
async def test_links_to_a_document_are_found_and_resolved(index: SearchIndex) -> None:
    await fill(
        index,
        document("x/Plan é.md", "# Plan"),
        document("y/Plan é.md", "# Plan"),
        document("a.md", "[[x/Plan é#now|it]]"),
        document("y/b.md", "[[plan é]]"),
        document("c.md", "[it](x/Plan%20%C3%A9.md)"),
        document("d.md", "Plan é in words"),
        document("e.md", "[[x/Plan e\u0301]], as programs on macOS write it"),
    )
    assert await index.find_backlinks("x/Plan é.md") == ["a.md", "c.md", "e.md"]
    assert await index.find_backlinks("y/Plan é.md") == ["y/b.md"]
    assert await index.find_backlinks("none.md") == []


@requirement("memory.backlinks")
async def test_links_follow_what_a_document_says_now(index: SearchIndex) -> None:
    await fill(index, document("a.md", "[[b]] [[b]] [[B]] [x](a%00b)"), document("b.md", "[[b]]"))
    assert await index.find_backlinks("b.md") == ["a.md"]
    await fill(index, document("a.md", "[[c]]", at=2))
    assert (await index.find_backlinks("b.md"), await index.find_backlinks("c.md")) == ([], ["a.md"])
    await fill(index, document("x/c.md", ""))
    assert await index.find_backlinks("x/c.md") == ["a.md"], "a link can lead to a document that comes later"
    await index.delete(["a.md"])
    assert await index.find_backlinks("x/c.md") == []


@requirement("memory.neighbourhood")
async def test_a_neighbourhood_goes_two_links_in_both_directions(index: SearchIndex) -> None:
    await fill(
        index,
        document("middle.md", "[[out]] [[nowhere]] [[middle]]", title="Middle", tags=["x"]),
        document("out.md", "[[far]] [[middle]]"),
        document("in.md", "[[middle]]", tags=["x", "y"]),
        document("far.md", "[[further]]"),
        document("behind.md", "[[in]]"),
        document("further.md", ""),
        document("alone.md", "[[further]]", tags=["x"]),
    )
    found = await index.find_neighbourhood("middle.md", 40)
    assert [(near.path, near.distance) for near in found.documents] == [
        ("middle.md", 0),
        ("out.md", 1),
        ("in.md", 1),
        ("far.md", 2),
        ("behind.md", 2),
    ]
    assert (found.documents[0].title, found.documents[2].tags) == ("Middle", ["x", "y"])
    assert sorted(found.links) == [
        ("behind.md", "in.md"),
        ("in.md", "middle.md"),
        ("middle.md", "out.md"),
        ("out.md", "far.md"),
        ("out.md", "middle.md"),
    ]
    assert found.omitted == 0
    less = await index.find_neighbourhood("middle.md", 2)
    assert ([near.path for near in less.documents], less.omitted) == (["middle.md", "out.md"], 3)
    assert sorted(less.links) == [("middle.md", "out.md"), ("out.md", "middle.md")]
    missing = await index.find_neighbourhood("nowhere.md", 3)
    assert [(near.path, near.title) for near in missing.documents][:2] == [("nowhere.md", ""), ("middle.md", "Middle")]


@requirement("memory.neighbourhood")
async def test_a_document_that_everything_links_to_has_a_bounded_neighbourhood(index: SearchIndex) -> None:
    linking = [document(f"n/{i}.md", f"[[hub]] [[n/{(i + 1) % 600}]]") for i in range(600)]
    await fill(index, document("hub.md", ""), *linking)
    found = await index.find_neighbourhood("hub.md", 40)
    assert (len(found.documents), found.omitted) == (40, 561)
    beside = await index.find_neighbourhood("n/7.md", 40)
    assert [near.path for near in beside.documents[:4]] == ["n/7.md", "hub.md", "n/8.md", "n/6.md"]
    assert len(beside.documents) == 40
    await fill(
        index, document("two.md", "[[hub]] [[small]]"), document("small.md", "[[only]]"), document("only.md", "")
    )
    fair = await index.find_neighbourhood("two.md", 6)
    assert "only.md" in [near.path for near in fair.documents], "the many links to the hub leave room for others"


async def test_a_row_is_what_a_search_shows(index: SearchIndex) -> None:
    (doc_id,) = await fill(index, document("a.md", "text", title="T", hebbian_weights={"x": 0.5, "y": 2}))
    (row,) = (await index.read_rows([doc_id, doc_id + 1])).values()
    assert (row.path, row.title, row.body, row.weight, row.created_at) == ("a.md", "T", "text", 2.0, 1)
    assert '"hebbian_weights"' in row.frontmatter
    assert await index.read_rows([]) == {}


@requirement("memory.keyword-fields-and-mode")
async def test_fields_and_modes(index: SearchIndex) -> None:
    await fill(
        index,
        document("t.md", "# apple\n", tags=["pear"]),
        document("c.md", "apple pear\n", title="Other", tags="plum, cherry"),
        document("n.md", "nothing\n"),
    )
    assert await found(index, "apple", fields=["title"]) == ["t.md"]
    assert await found(index, "pear", fields=["tags"]) == ["t.md"]
    assert await found(index, "pear", fields=["title", "content"]) == ["c.md"]
    assert await found(index, "cherry", "plum", mode="all") == ["c.md"]
    assert await found(index, "apple", "cherry", fields=["content"], mode="all") == []
    assert sorted(await found(index, "cherry", "apple")) == ["c.md", "t.md"]


@requirement("memory.keyword-search")
async def test_a_title_says_more_than_a_text_and_a_rare_word_more_than_a_frequent_one(index: SearchIndex) -> None:
    filler = "words of no account. " * 30
    await fill(
        index,
        document("title.md", f"# Harbour\n\n{filler}"),
        document("text.md", f"{filler} a harbour {filler}"),
        document("rare.md", f"account of a heron {filler}"),
        *(document(f"{n}.md", filler) for n in range(5)),
    )
    assert await found(index, "harbour") == ["title.md", "text.md"]
    assert (await found(index, "heron", "account"))[0] == "rare.md"


@pytest.mark.parametrize(
    ("wanted", "text"),
    [
        ("deploying", "the deployment"),
        ("Größe", "die groesse? nein: GRÖSSE"),
        ("resume", "my résumé"),
        ("naïve", "a NAIVE plan"),
        ("日本語", "これは日本語です"),
        ("한국", "대한국어"),
        ("two words", "exactly Two Words here"),
        ("C3PO", "about c3po"),
        ("o'neil's", "it was O'Neil's"),
        ("ทำงาน", "เขา ทำงาน ทุกวัน"),
        ("ສຳຄັນ", "ນີ້ ສຳຄັນ"),
        ("½", "½ cup of sugar"),
        ("schopfer", "Der Scho\u0308pfer sprach"),
        ("Schöpfer", "Der Scho\u0308pfer sprach"),
        ("a" * 5_000, "long: " + "a" * 5_000),
    ],
)
async def test_a_word_is_found_in_its_other_forms(index: SearchIndex, wanted: str, text: str) -> None:
    await fill(index, document("a.md", text), document("b.md", "nothing of it " + "a" * 4_999))
    assert await found(index, wanted) == ["a.md"]


async def test_syntax_in_a_term_is_text(index: SearchIndex) -> None:
    await fill(index, document("a.md", 'apple OR "pear" NEAR(x) title: \\ \' & | ! <-> :A'))
    for term in ('"', "*", "(", "AND", "title:apple", "apple*", 'x" OR "y', "'", "\\", "%", "a:A", "a & b", "<->", "!"):
        assert await found(index, term) in ([], ["a.md"]), term
    assert await found(index, "\0", "apple") == ["a.md"]


async def test_a_phrase_is_words_one_after_the_other_in_one_field(index: SearchIndex) -> None:
    await fill(
        index,
        document("yes.md", "the red fox runs"),
        document("apart.md", "the red and the fox"),
        document("turned.md", "fox red"),
        document("fields.md", "fox", title="red"),
        document("title.md", "x", title="red fox"),
    )
    assert sorted(await found(index, "red fox")) == ["title.md", "yes.md"]
    assert await found(index, "red fox", fields=["title"]) == ["title.md"]
    assert await found(index, "red fox", "runs", mode="all") == ["yes.md"]


EDGES = [
    0,
    keywords.WINDOW_TERMS - 2,
    keywords.WINDOW_TERMS - 1,
    keywords.WINDOW_TERMS,
    keywords.WINDOW_TERMS + keywords.OVERLAP_TERMS,
    16_382,
    16_384,
    40_000,
]


async def test_a_phrase_is_found_anywhere_in_a_long_text(index: SearchIndex) -> None:
    for place in EDGES:
        text = ["the" if n % 2 else f"w{n % 997}" for n in range(place)]
        await fill(index, document(f"{place}.md", " ".join([*text, "alpha", "omega", *text[:5]])))
    assert sorted(await found(index, "alpha omega")) == sorted(f"{place}.md" for place in EDGES)


async def test_a_long_phrase_is_found_whole(index: SearchIndex) -> None:
    words = [f"w{n}" for n in range(150)]
    torn = [*words[:100], "gap", *words[100:]]
    await fill(index, document("whole.md", " ".join(["x"] * 200 + words)), document("torn.md", " ".join(torn)))
    assert await found(index, " ".join(words)) == ["whole.md"]


async def test_a_phrase_counts_the_same_in_any_text_of_more_than_six_mean_lengths(index: SearchIndex) -> None:
    lengths = {"short.md": 5, "long.md": 8_000, "longer.md": 20_000}
    await fill(index, *(document(path, f"alpha omega {'the ' * length}") for path, length in lengths.items()))
    await fill(index, *(document(f"{n}.md", "nothing") for n in range(60)))
    found = await scores(index, "alpha omega")
    assert found["long.md"] == pytest.approx(found["longer.md"])
    assert found["short.md"] > found["long.md"] > 0


@pytest.mark.slow
async def test_a_text_of_megabytes_is_indexed(index: SearchIndex) -> None:
    dice = random.Random(1)
    body = " ".join(f"{dice.choice('bcdfg')}{dice.randrange(200_000)}x" for _ in range(300_000)) + " last word"
    await fill(index, document("large.md", body), document("small.md", "last word"))
    assert await found(index, "last word") == ["small.md", "large.md"]


@requirement("memory.keyword-search")
async def test_of_equal_documents_the_first_paths_are_found_in_whatever_order_they_were_indexed(
    index: SearchIndex,
) -> None:
    for path in ("c.md", "a.md", "b.md", "d.md"):
        await fill(index, document(path, "red"))
    await fill(index, document("z.md", "red red"))
    query = build_query(["red"], SEARCH_FIELDS, "any")
    assert query is not None
    hits, total, _ = await index.search_keywords(query, 3)
    assert ([hit.path for hit in hits], total) == (["z.md", "a.md", "b.md"], 5)


@requirement("memory.keyword-search")
@pytest.mark.parametrize("others", ["a", "m", "z"])
async def test_of_very_many_equal_documents_the_first_paths_are_found_without_sorting_all(
    index: SearchIndex, others: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite, "PAGE", 3)
    paths = [f"{'klmno'[n % 5]}/{n * 7 % 40:02}.md" for n in range(40)]
    await fill(index, *(document(path, "red") for path in paths))
    await fill(index, *(document(f"{others}/other{n}.md", "blue") for n in range(12)))
    query = build_query(["red"], SEARCH_FIELDS, "any")
    assert query is not None
    for limit in (1, 5, 20, 39):
        hits, total, _ = await index.search_keywords(query, limit)
        assert ([hit.path for hit in hits], total) == (sorted(paths)[:limit], 40)
    if others == "m" and not index.is_shared:
        monkeypatch.setattr(sqlite, "_LIST_FIRST", None)
        assert (await index.search_keywords(query, 2))[0][0].path == "k/00.md"


@requirement("memory.keyword-search")
async def test_documents_that_cannot_be_among_the_best_are_left_out_of_a_search_without_a_total(
    index: SearchIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keywords, "MIN_PRUNED_POSTINGS", 1)
    pruned = []
    prune = keywords._prune

    def note(*given: Any) -> Any:
        pruned.append(prune(*given))
        return pruned[-1]

    monkeypatch.setattr(keywords, "_prune", note)
    dice = random.Random(4)
    words = [f"word{chr(97 + n)}" for n in range(20)]
    frequencies = [1 / (n + 1) for n in range(20)]

    def text() -> str:
        title = f"# {dice.choice(words)}\n" if dice.random() < 0.2 else ""
        return title + " ".join(dice.choices(words, frequencies, k=dice.choice((3, 3, 30, 60, 200))))

    await fill(index, *(document(f"{'in' if n % 3 else 'out'}/{n}.md", text()) for n in range(300)))
    for limit in (1, 3, 20, 200):
        for folder in (None, "in"):
            for _ in range(15):
                query = build_query(dice.sample(words, dice.randint(2, 8)), SEARCH_FIELDS, "any")
                assert query is not None
                best, _, _ = await index.search_keywords(query, limit, folder, with_total=False)
                expected, _, _ = await index.search_keywords(query, limit, folder)
                # Sums in another order may differ in the last digit.
                assert _ranked(best) == _ranked(expected)
    # On SQLite nothing is left out.
    assert not pruned or sum(plan is not None for plan in pruned) > 20


def _ranked(hits: list[KeywordHit]) -> list[tuple[float, str]]:
    return sorted((-round(hit.score, 9), hit.path) for hit in hits)


@requirement("memory.keyword-search")
async def test_a_folder_narrows_before_the_best_are_taken_and_rarity_is_of_the_whole_vault(index: SearchIndex) -> None:
    await fill(index, *(document(f"out/{n}.md", "heron heron heron") for n in range(20)))
    await fill(index, document("in/a.md", "heron " + "word " * 50), document("in/deep/b.md", "heron"))
    query = build_query(["heron"], SEARCH_FIELDS, "any")
    assert query is not None
    hits, total, _ = await index.search_keywords(query, 5, "in")
    assert ([hit.path for hit in hits], total) == (["in/a.md"], 1)
    everywhere, all_of_them, _ = await index.search_keywords(query, 5)
    assert (len(everywhere), all_of_them) == (5, 22)
    assert hits[0].score == pytest.approx((await scores(index, "heron"))["in/a.md"])


async def test_paths_of_any_length_are_kept(index: SearchIndex) -> None:
    paths = [f"{'/'.join(['d' * 200] * 15)}/{n}.md" for n in range(3)]
    await fill(index, *(document(path, "far away") for path in paths))
    assert sorted(await found(index, "far", folder="/".join(["d" * 200] * 15))) == paths
    assert len(await index.paths_under("d" * 200)) == 3


async def test_signs_that_a_database_may_not_take_are_no_obstacle(index: SearchIndex) -> None:
    await fill(index, document("a.md", "word", title="zero \0 byte", tags=["a\0b"], other="\0"))
    assert await found(index, "zero byte") == ["a.md"]


@pytest.mark.parametrize("kind", ["postgresql"])
@requirement("scale.memory-index")
async def test_a_process_writes_nothing_into_an_index_that_another_version_has_made(
    index: SearchIndex, address: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    await fill(index, document("a.md", "red"))
    with monkeypatch.context() as newer:
        newer.setattr(postgres, "SCHEMA_VERSION", postgres.SCHEMA_VERSION + 1)
        replaced = await asyncio.to_thread(postgres.open_index, PostgresDriver(address))
        await fill(replaced, document("b.md", "blue"))
    with pytest.raises(StoreUnavailable, match="another version"):
        await fill(index, document("a.md", "red"))
    # The vault's watcher tries each second, and tells the first failure.
    assert not [record for record in caplog.records if "another version" in record.getMessage()]
    assert list(await replaced.file_states()) == ["b.md"]
    await asyncio.to_thread(replaced.close)


TERMS = "red blue fox the deploy deployment 日 日本 naïve x1 fooBar v1.2 C++ Fox's".split()
TEXTS = st.lists(st.sampled_from(TERMS), min_size=0, max_size=40).map(" ".join)
DOCUMENTS = st.lists(st.tuples(TEXTS, TEXTS, st.sampled_from(["", "in/"])), min_size=1, max_size=8)
WANTED = st.lists(st.lists(st.sampled_from(TERMS), min_size=1, max_size=3).map(" ".join), min_size=1, max_size=3)
FOUND_IN = st.lists(st.sampled_from(SEARCH_FIELDS), min_size=1, unique=True)


@pytest.mark.parametrize("kind", ["postgresql"])
@requirement("scale.memory-index")
def test_both_databases_find_the_same_with_the_same_scores(address: str, tmp_path: Path) -> None:
    lite, pg = sqlite.open_index(tmp_path), postgres.open_index(PostgresDriver(address))
    runner = asyncio.Runner()

    async def both(entries: list[IndexEntry], **asked: Any) -> list[dict[str, float]]:
        for index in (lite, pg):
            await index.upsert(entries, list(await index.file_states()), 1, force=True)
        return [await scores(index, *asked["wanted"], **asked["how"]) for index in (pg, lite)]

    @settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
    @given(DOCUMENTS, WANTED, FOUND_IN, st.sampled_from(["any", "all"]), st.sampled_from([None, "", "in"]))
    def same(
        texts: list[tuple[str, str, str]],
        wanted: list[str],
        fields: list[SearchField],
        mode: MatchMode,
        folder: str | None,
    ) -> None:
        entries = [document(f"{place}{n}.md", body, title=title) for n, (title, body, place) in enumerate(texts)]
        how = {"fields": fields, "mode": mode, "folder": folder}
        ours, theirs = runner.run(both(entries, wanted=wanted, how=how))
        assert ours == pytest.approx(theirs)

    same()
    runner.close()
    for index in (lite, pg):
        index.close()
