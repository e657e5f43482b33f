"""What an index excludes: random derivations and marks in any order, compared with a plain computation."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stentor.core.db import Sql, Tx
from stentor.core.db.postgres.driver import PostgresDriver
from stentor.domains.memory.index import exclusions
from stentor.domains.memory.index.index import SearchIndex, exclude_at
from stentor.domains.memory.index.model import SEARCH_FIELDS, SearchFilters, build_query
from stentor.domains.memory.index.postgres import keywords, pgvector
from stentor.domains.memory.index.postgres import schema as postgres
from stentor.domains.memory.index.sqlite import sqlite
from stentor.domains.memory.validity.frontmatter_keys import Mark, parse_source, split_path
from stentor.domains.memory.validity.model import Exclusion
from tests.conformance.indexes import MODEL, document, embed, fill, near, unit
from tests.databases import thorough
from tests.requirements import requirement

NAMES = ["a", "b", "c", "d", "e"]
SOURCES = ["https://x.example", "task:1"]
TEXT = "zebra\n\n# Claim\n\nlion\n"
Note = dict[str, Any]

ENTRIES = st.one_of(
    st.sampled_from([f"[[{name}]]" for name in NAMES]),
    st.sampled_from([f"[[{name}#Claim]]" for name in NAMES]),
    st.sampled_from(SOURCES),
)
NOTES = st.fixed_dictionaries(
    {
        "derived_from": st.lists(ENTRIES, max_size=3),
        "invalid": st.sampled_from([False, False, False, "why"]),
        "invalid_claims": st.sampled_from([[], [], ["#Claim"]]),
    }
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.sampled_from(NAMES), NOTES),
        st.tuples(st.just("write"), st.sampled_from(NAMES), NOTES),
        st.tuples(st.just("delete"), st.sampled_from(NAMES), st.none()),
        st.tuples(st.just("source"), st.sampled_from(SOURCES), st.booleans()),
    ),
    min_size=4,
    max_size=14,
)


def recomputed(notes: dict[str, Note], invalid_sources: set[str]) -> set[str]:
    """What is out: repeated until nothing is added."""
    out = {name for name, note in notes.items() if note["invalid"]}
    while True:
        more = {
            name
            for name, note in notes.items()
            for entry in note["derived_from"]
            if entry in invalid_sources or _is_derived_from_invalid(notes, out, name, entry)
        }
        if more <= out:
            return out
        out |= more


def _is_derived_from_invalid(notes: dict[str, Note], out: set[str], name: str, entry: str) -> bool:
    target, _, claim = entry.strip("[]").partition("#")
    if not entry.startswith("[[") or target not in notes or target == name:
        return False
    return target in out or (bool(claim) and bool(notes[target]["invalid_claims"]))


class Program:
    """The same changes in several indexes, and what they exclude after each."""

    def __init__(self, *indexes: SearchIndex) -> None:
        self.indexes = indexes
        self.notes: dict[str, Note] = {}
        self.sources: set[str] = set()
        self.version = 0

    async def start(self) -> None:
        self.notes, self.sources = {}, set()
        for index in self.indexes:
            await index.delete([f"{name}.md" for name in NAMES])
            await index.mark_reconciled(0)
        await self.mark_sources()

    async def mark_sources(self) -> None:
        self.version += 1
        for index in self.indexes:
            marks = {source: Mark("r") for source in self.sources}
            await index.replace_sources(marks, self.version, seen=self.version)

    async def step(self, action: str, name: str, value: Any) -> None:
        if action == "source":
            (self.sources.add if value else self.sources.discard)(name)
            await self.mark_sources()
            return
        self.notes.pop(name, None)
        if action == "write":
            self.notes[name] = value
        for index in self.indexes:
            if action == "write":
                await fill(index, document(f"{name}.md", TEXT, **value))
            else:
                await index.delete([f"{name}.md"])

    async def check(self) -> None:
        found = [await index.list_exclusions() for index in self.indexes]
        assert found.count(found[0]) == len(found), "the databases differ"
        out = recomputed(self.notes, self.sources)
        assert {one.path.removesuffix(".md") for one in found[0]} == out
        for index in self.indexes:
            assert await searched(index) == sorted(f"{name}.md" for name in self.notes.keys() - out)
            assert await recomputed_by(index) == found[0]


async def searched(index: SearchIndex) -> list[str]:
    query = build_query(["zebra"], SEARCH_FIELDS, "any")
    assert query is not None
    hits, total, _ = await index.search_keywords(query, 10, list_excluded=exclude_at(0))
    assert total == len(hits)
    return sorted(hit.path for hit in hits)


async def recomputed_by(index: SearchIndex) -> list[Exclusion]:
    def work(tx: Tx) -> None:
        exclusions.recompute(tx, "sqlite" if not index.is_shared else "postgresql")

    await index.write(work)
    return await index.list_exclusions()


@pytest.mark.parametrize("kind", ["postgresql"])
@requirement("memory.invalid-as-recomputed")
def test_any_order_of_changes_excludes_what_a_plain_computation_gives(address: str, tmp_path: Path) -> None:
    lite, pg = sqlite.open_index(tmp_path), postgres.open_index(PostgresDriver(address))
    runner = asyncio.Runner()
    program = Program(lite, pg)

    async def run(steps: list[tuple[str, str, Any]]) -> None:
        await program.start()
        for step in steps:
            await program.step(*step)
            await program.check()

    @settings(max_examples=100 if thorough() else 15, deadline=None, suppress_health_check=list(HealthCheck))
    @given(STEPS)
    def same(steps: list[tuple[str, str, Any]]) -> None:
        runner.run(run(steps))

    same()
    runner.close()
    for index in (lite, pg):
        index.close()


@requirement("memory.invalid-excluded")
async def test_vectors_of_excluded_documents_take_no_place_among_the_nearest(index: SearchIndex) -> None:
    await index.vectors.use_model(MODEL)
    await fill(index, document("bad.md", "x", invalid=True), document("good.md", "y"), document("far.md", "z"))
    await embed(index, {"bad.md": [unit(1, 0)], "good.md": [unit(2, 1)], "far.md": [unit(0, 1)]})
    excluded = await index.list_excluded(exclude_at(0))
    assert await near(index, unit(1, 0), most=1) == (["bad.md"], 3)
    assert await near(index, unit(1, 0), most=1, excluded=excluded) == (["good.md"], 2)
    assert await near(index, unit(1, 0), similarity_min=0.5, excluded=excluded) == (["good.md"], 1)
    assert await near(index, unit(1, 0), folder="", excluded=excluded) == (["good.md", "far.md"], 2)
    assert await index.list_excluded(exclude_at(0, include_invalid=True)) == ()


@requirement("memory.invalid-excluded")
async def test_what_was_derived_is_not_found_before_the_note_that_it_was_derived_from(index: SearchIndex) -> None:
    derived = [
        document("b.md", "zebra", derived_from="[[z]]"),
        document("c.md", "zebra", derived_from="[[b]]"),
        document("d.md", "zebra", derived_from="[[z#Claim]]"),
    ]
    await fill(index, document("a.md", "zebra"), document("page.md", "zebra", derived_from="https://x.example"))
    assert await searched(index) == ["a.md", "page.md"]
    await fill(index, *derived)
    assert await searched(index) == ["a.md", "page.md"]
    assert len(await index.list_excluded(exclude_at(0))) == 3
    await fill(index, document("z.md", TEXT, invalid_claims=["#Claim"]))
    await index.mark_reconciled(0)
    assert await searched(index) == ["a.md", "b.md", "c.md", "page.md", "z.md"]


@requirement("memory.invalid-claim")
async def test_the_vectors_of_a_passage_that_became_invalid_are_gone_at_once(index: SearchIndex) -> None:
    await index.vectors.use_model(MODEL)
    await fill(index, document("n.md", TEXT))
    await embed(index, {"n.md": [unit(1, 0), unit(0, 1)]})
    assert await near(index, unit(0, 1)) == (["n.md"], 1)
    await fill(index, document("n.md", TEXT, invalid_claims=["#Claim"]))
    assert await near(index, unit(0, 1)) == ([], 0)
    await embed(index, {"n.md": [unit(1, 0)]})
    hits, _ = await index.vectors.nearest(unit(0, 1), 1, SearchFilters())
    assert [round(hit.similarity, 6) for hit in hits] == [0]


@requirement("memory.invalid-everywhere")
async def test_an_older_state_of_the_sources_does_not_replace_a_newer_one(index: SearchIndex) -> None:
    await fill(index, document("a.md", "x", derived_from="s"), document("b.md", "x", derived_from="t"))
    await index.replace_sources({"s": Mark(), "t": Mark()}, 2, seen=0)
    await index.replace_sources({"s": Mark()}, 1, seen=0)  # from a process that was slow
    assert [one.path for one in await index.list_exclusions()] == ["a.md", "b.md"]
    await index.replace_sources({"s": Mark()}, 1, seen=2)  # the database is one that was restored from a backup
    assert [one.path for one in await index.list_exclusions()] == ["a.md"]


@requirement("memory.invalid-excluded")
@pytest.mark.parametrize(
    ("path", "entry"),
    [
        ("2025/Offer.md", "vault:archive/2025/Offer"),
        ("2025/Offer.md", "[[vault:archive/2025/Offer]]"),
        ("Café.md", "[[Cafe\u0301]]"),
        ("C# guide.md", "C# guide.md"),
        ("x^2.md", "x^2.md"),
        ("My Offer.md", "[the offer](My%20Offer.md)"),
    ],
)
async def test_any_name_of_a_note_is_a_source(index: SearchIndex, path: str, entry: str) -> None:
    index.record_prefix = "vault:archive/"
    await fill(index, document(path, "zebra", invalid=True), document("derived.md", "zebra", derived_from=entry))
    assert [one.path for one in await index.list_exclusions()] == sorted([path, "derived.md"])
    assert await index.has_invalid_source("new.md", [parse_source(entry)])


@requirement("memory.invalid-claim")
@pytest.mark.parametrize("mark", [{"invalid": True}, {"invalid_claims": ["#Costs"]}])
async def test_a_passage_of_a_note_with_a_sign_in_its_name_is_a_source(index: SearchIndex, mark: Any) -> None:
    derived = document("derived.md", "zebra", derived_from="C# guide.md#Costs")
    await fill(index, document("C# guide.md", "# Costs\n\nhigh\n", **mark), derived)
    assert "derived.md" in [one.path for one in await index.list_exclusions()]


@pytest.mark.parametrize(
    ("text", "path", "anchor"),
    [
        ("C# guide.md", "C# guide.md", ""),
        ("C# guide.MD #Costs", "C# guide.MD", "#Costs"),
        ("C# guide.md#x.md", "C# guide.md", "#x.md"),
        ("a#/x^2.md^b1", "a#/x^2.md", "^b1"),
        ("a.md#^b1", "a.md", "^b1"),
        ("Offer#Costs", "Offer", "#Costs"),
        ("x.mdx#Costs", "x.mdx", "#Costs"),
    ],
)
def test_a_path_ends_before_the_sign_after_its_extension(text: str, path: str, anchor: str) -> None:
    assert split_path(text) == (path, anchor)


async def test_a_record_of_another_vault_is_no_note_of_this_one(index: SearchIndex) -> None:
    index.record_prefix = "vault:archive/"
    source = "vault:other/Offer"
    await fill(index, document("Offer.md", "zebra", invalid=True), document("b.md", "zebra", derived_from=source))
    assert [one.path for one in await index.list_exclusions()] == ["Offer.md"]
    assert not await index.has_invalid_source("b.md", [parse_source(source)])


@requirement("memory.invalid-claim")
@pytest.mark.parametrize(
    ("claim", "out"),
    [
        ("#Costs", {"first", "costs", "offer costs", "block"}),
        ("#Plan", {"plan"}),
        ("#Plan#Details", {"plan"}),
        ("#Details", {"first", "costs", "offer costs", "block"}),
        ("#Offer", {"first", "costs", "offer costs", "block", "plan"}),
    ],
)
async def test_what_was_derived_from_another_passage_of_the_same_heading_stays(
    index: SearchIndex, claim: str, out: set[str]
) -> None:
    sources = {
        "first": "Details",
        "costs": "Costs#Details",
        "offer costs": "Offer#details",
        "block": "Costs#^b1",
        "plan": "Plan#Details",
    }
    text = "# Offer\n\n## Costs\n\n### Details\n\nhigh ^b1\n\n## Plan\n\n### Details\n\nlong\n"
    notes = [document(f"{name}.md", "x", derived_from=f"[[Offer#{anchor}]]") for name, anchor in sources.items()]
    await fill(index, document("Offer.md", text, invalid_claims=[claim]), *notes)
    assert {one.path.removesuffix(".md") for one in await index.list_exclusions()} == out


@requirement("memory.invalid-claim")
async def test_a_passage_that_several_claims_mark_is_stored_once(index: SearchIndex) -> None:
    text = "# Offer\n\n## Costs\n\nhigh\n"
    claims = ["#Offer | dear", "#Costs | doubled", "#Costs% | again"]
    await fill(
        index,
        document("Offer.md", text, invalid_claims=claims),
        document("derived.md", "x", derived_from="[[Offer#Costs]]"),
    )
    rows = await index.read(lambda tx: tx.rows(Sql("select anchor from marks order by anchor")))
    assert [anchor for (anchor,) in rows] == ["#costs", "#offer", "#offer#costs"]
    assert [one.cause.reason for one in await index.list_exclusions()] == ["doubled"]


@requirement("memory.invalid-excluded")
async def test_a_note_from_valid_ones_does_not_exclude_everything_again(
    index: SearchIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    derived = document("b.md", "zebra", derived_from=["[[a]]", "https://good.example"])
    await fill(index, document("a.md", "zebra"), document("bad.md", "zebra", invalid=True))
    await index.replace_sources({"https://x.example": Mark()}, 1, seen=0)

    def recompute(tx: Tx, dialect: str) -> None:
        raise AssertionError("with tens of thousands of excluded notes it takes most of a second")

    with monkeypatch.context() as patch:
        patch.setattr(exclusions, "recompute", recompute)
        await fill(index, derived)
        await fill(index, document("b.md", "zebra again", derived_from="[[a]]", valid_from="2026-01-01"))
        await index.delete(["b.md"])
    for entry in ("https://x.example", "[[bad]]", "[[bad#Part]]"):
        await fill(index, document("b.md", "zebra", derived_from=entry))
        assert "b.md" in [one.path for one in await index.list_exclusions()], entry


@pytest.mark.parametrize("kind", ["postgresql"])
async def test_excluded_documents_are_looked_up_and_not_compared_with_each_one(index: SearchIndex) -> None:
    def explain(tx: Tx, text: str) -> str:
        return "\n".join(str(row[0]) for row in tx.rows(Sql(f"explain select 1 from {text}"), excluded=[1, 2]))

    by_words = await index.read(lambda tx: explain(tx, f"postings found where true{keywords._NOT_EXCLUDED}"))
    by_meaning = await index.read(
        lambda tx: explain(tx, f"documents d where {pgvector._where(False, False, False, True)}")
    )
    assert "hashed" in by_words
    assert "hashed" in by_meaning
