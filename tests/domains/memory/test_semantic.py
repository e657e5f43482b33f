"""Search by meaning with the real model, filters, the caller's own vector, and both kinds together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import numpy as np
import pytest

from stentor.core.db import Sql
from stentor.domains.memory.embedding import embedding_worker
from stentor.domains.memory.embedding.embedder import EmbeddingUnavailable, Vectors
from stentor.domains.memory.embedding.embedding_worker import PREPARING, EmbeddingWorker
from stentor.domains.memory.embedding.noise import make_up_texts
from tests.conftest import MakeWorld
from tests.domains.memory.conftest import AGENTS, Notes
from tests.patience import soon
from tests.requirements import requirement

CATS = "# Cats\n\nThe kitten sat on the rug and purred.\n"
SHIP = "# Production\n\nThe server is rolled out to the customers every Friday.\n"
UNLIMITED = {"SERVICE_MEMORY": "1", "SERVICE_EMBEDDING_MODEL": "", "SERVICE_EMBEDDING_FLOOR": "-1"}
COOK = "# Soup\n\nBoil the carrots with salt and a little thyme.\n"


@pytest.fixture
async def meaning(make_world: MakeWorld, tmp_path: Path, model_cache: Path) -> Notes:
    models = tmp_path / "index" / "models"
    models.parent.mkdir(mode=0o700)
    models.symlink_to(model_cache)
    return Notes(await make_world(SERVICE_MEMORY="1", SERVICE_EMBEDDING_MODEL=""), tmp_path / "vault")


@pytest.fixture
async def unlimited(make_world: MakeWorld, tmp_path: Path, model_cache: Path) -> Notes:
    """A memory in which every note is a match, however distant."""
    models = tmp_path / "index" / "models"
    models.parent.mkdir(mode=0o700)
    models.symlink_to(model_cache)
    return Notes(await make_world(**UNLIMITED), tmp_path / "vault")


class Unprepared:
    """A model that is prepared, and loaded, when `go` is set."""

    identity, dimensions, max_tokens = "unprepared", 2, 100

    def __init__(self) -> None:
        self.go = asyncio.Event()

    async def is_prepared(self) -> bool:
        return self.go.is_set()

    async def load(self) -> None:
        await self.go.wait()

    async def close(self) -> None: ...

    def count(self, text: str) -> int:
        return len(text.split())

    async def embed(self, texts: Sequence[str], *, urgent: bool = False) -> Vectors:
        return np.tile(np.asarray([0.6, 0.8], np.float32), (len(texts), 1))


async def ready(notes: Notes) -> None:
    memory = notes.world.kernel.memory
    assert memory is not None
    await soon(lambda: memory.default.embeddings.estimate_ready_at() is None)


async def three(notes: Notes) -> None:
    old, new = {"created_at": "2020-01-01T00:00:00Z"}, {"created_at": "2026-01-01T00:00:00Z"}
    await notes.write("cats.md", CATS, frontmatter=old | {"hebbian_weights": {AGENTS[0]: 2.0, AGENTS[1]: 0.5}})
    await notes.write("ship.md", SHIP, frontmatter=new | {"hebbian_weights": {AGENTS[0]: 0.75}})
    await notes.write("cook.md", COOK, frontmatter=new)
    await ready(notes)


async def search(notes: Notes, **body: Any) -> dict[str, Any]:
    answer = await notes.post("search/semantic", **body)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def paths(answer: dict[str, Any]) -> list[str]:
    return [match["path"] for match in answer["matches"]]


@requirement("memory.semantic-search")
async def test_what_means_the_same_is_found_without_a_word_in_common(unlimited: Notes) -> None:
    await three(unlimited)
    answer = await search(unlimited, query="a young feline animal", top_k=2)
    assert paths(answer)[0] == "cats.md"
    assert len(answer["matches"]) == 2
    assert answer["total_matches"] == 3
    first, second = answer["matches"]
    assert first["similarity_score"] > second["similarity_score"]
    assert first["content_preview"] == CATS[:200]
    assert first["hebbian_weights"] == {AGENTS[0]: 2.0, AGENTS[1]: 0.5}
    assert first["source_level"] == "document"
    assert paths(await search(unlimited, query="software deployment", top_k=1)) == ["ship.md"]


@requirement("memory.semantic-filters")
async def test_filters_drop_documents_before_the_best_are_taken(unlimited: Notes) -> None:
    await three(unlimited)
    query = "a young feline animal"
    answer = await search(unlimited, query=query, top_k=1, filters={"created_after": "2025-01-01T00:00:00Z"})
    assert (len(answer["matches"]), answer["total_matches"]) == (1, 2)
    assert paths(answer) != ["cats.md"]
    heavy = await search(unlimited, query="soup", top_k=1, filters={"hebbian_weight_min": 0.7})
    assert heavy["total_matches"] == 2
    assert "cook.md" not in paths(heavy)
    both = {"hebbian_weight_min": 0.7, "created_after": "2025-01-01T00:00:00+01:00"}
    assert paths(await search(unlimited, query=query, filters=both)) == ["ship.md"]
    assert (await search(unlimited, query=query, filters={"hebbian_weight_min": 9}))["total_matches"] == 0


@requirement("memory.semantic-filters")
async def test_a_search_by_both_kinds_whose_filters_leave_nothing_has_no_matches(meaning: Notes) -> None:
    await three(meaning)
    for filters in ({"created_after": "2100-01-01T00:00:00Z"}, {"hebbian_weight_min": 9}):
        answer = await meaning.post("search/hybrid", query="kitten", filters=filters)
        assert answer.status_code == 200, answer.text
        assert (answer.json()["matches"], answer.json()["total_matches"]) == ([], 0)


@requirement("memory.semantic-embedding")
async def test_the_callers_own_vector_is_used_and_one_of_another_length_is_400(meaning: Notes) -> None:
    await three(meaning)
    memory = meaning.world.kernel.memory
    assert memory is not None
    vector = await memory.default.embeddings.query_vector("a young feline animal", None)
    given = (vector * 7).tolist()
    assert paths(await search(meaning, query="boiling soup", embedding=given, top_k=1)) == ["cats.md"]
    assert paths(await search(meaning, embedding=given, top_k=1)) == ["cats.md"]
    for factor in (2.0**660, 2.0**-900, -(2.0**66)):
        scaled = (vector.astype(float) * factor).tolist()
        known = await search(meaning, embedding=(vector * (1 if factor > 0 else -1)).tolist())
        assert await search(meaning, embedding=scaled) == known | {"search_latency_ms": ANY}
    for wrong in ([], [0.1] * 383, ["x"] * 384, "x", [0.0] * 384, [10**400] * 384):
        assert (await meaning.post("search/semantic", query="x", embedding=wrong)).status_code == 400


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"query": ""},
        {"query": 5},
        {"query": "x", "top_k": 0},
        {"query": "x", "top_k": 1001},
        {"query": "x", "filters": {"more": 1}},
        {"query": "x", "filters": {"created_after": "yesterday"}},
        {"query": "x", "filters": {"created_after": "2026-01-01T00:00:00"}},
        {"query": "x", "filters": {"created_after": 5}},
        {"query": "x", "filters": {"hebbian_weight_min": "1"}},
    ],
    ids=str,
)
async def test_other_values_are_400(notes: Notes, body: dict[str, Any]) -> None:
    assert (await notes.post("search/semantic", **body)).status_code == 400


@requirement("memory.without-model-degraded")
async def test_without_a_model_there_is_no_search_by_meaning_and_words_still_work(notes: Notes) -> None:
    assert (await notes.write("a.md", CATS)).json()["sync_pending"] is False
    bodies: tuple[dict[str, Any], ...] = ({"query": "cats"}, {"embedding": [0.1] * 384})
    for body in bodies:
        answer = await notes.post("search/semantic", **body)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "SERVICE_UNAVAILABLE")
    hybrid = await notes.post("search/hybrid", query="the kitten")
    assert [match["path"] for match in hybrid.json()["matches"]] == ["a.md"]
    assert await notes.found("kitten") == ["a.md"]


@requirement("memory.sync-pending")
async def test_a_write_says_whether_its_vectors_are_still_to_come(meaning: Notes) -> None:
    body = (await meaning.write("cats.md", CATS)).json()
    assert body["sync_pending"] is True
    assert body["estimated_sync_completion"] > body["timestamp"]
    await ready(meaning)
    assert paths(await search(meaning, query="kitten")) == ["cats.md"]
    health = (await meaning.world.admin.get("/api/v1/memory/health")).json()
    assert (health["status"], health["components"]["vector_store"]["status"]) == ("healthy", "healthy")


async def test_a_section_of_a_long_note_is_found(meaning: Notes) -> None:
    sections = [f"## Part {i}\n\n{'The harbour has many ships and cranes. ' * 30}\n" for i in range(6)]
    await meaning.write("long.md", "# Harbour\n\n" + "\n".join(sections) + "\n## Pets\n\nA kitten purrs.\n")
    await meaning.write("cook.md", COOK)
    await ready(meaning)
    found = (await search(meaning, query="small cat making a sound", top_k=1))["matches"][0]
    assert (found["path"], found["source_level"]) == ("long.md", "section")
    assert (found["content_preview"][:9], found["excerpt"]) == ("# Harbour", "A kitten purrs.")


@requirement("memory.passage-of-meaning")
async def test_the_excerpt_is_of_the_passage_that_answers_in_a_note_without_headings(meaning: Notes) -> None:
    harbour = [f"Pier {i} has {i} ships and cranes. {'Containers are loaded all day. ' * 20}" for i in range(40)]
    kittens = "A kitten purrs and plays with wool. " * 18
    await meaning.write("long.md", "\n\n".join([*harbour[:25], kittens, *harbour[25:]]))
    await ready(meaning)
    query: dict[str, Any] = {"query": "small cats making sounds"}
    for answer in (await meaning.post("search/semantic", **query), await meaning.post("search/hybrid", **query)):
        assert answer.json()["matches"][0]["excerpt"].startswith("… A kitten purrs")


@requirement("memory.passage-of-meaning")
async def test_in_a_long_note_a_single_word_elsewhere_does_not_take_the_excerpt_from_the_passage_that_answers(
    meaning: Notes,
) -> None:
    harbour = [f"Pier {i} has {i} ships and cranes. {'Containers are loaded all day. ' * 20}" for i in range(40)]
    kittens = "A kitten purrs and plays with wool. " * 18
    start = "The horn sounds at noon; code E4012 is a small fault."
    await meaning.write("long.md", "\n\n".join([start, *harbour[:25], kittens, *harbour[25:]]))
    await ready(meaning)

    async def excerpt(query: str) -> str:
        answer = await meaning.post("search/hybrid", query=query)
        return str(answer.json()["matches"][0]["excerpt"])

    assert (await excerpt("cats making sounds")).startswith("… A kitten purrs")
    assert (await excerpt("E4012")).startswith(start)
    assert (await excerpt("kitten with horn and fault code")).startswith(start)


async def test_what_is_changed_or_deleted_is_not_found_by_its_old_meaning(unlimited: Notes) -> None:
    await three(unlimited)
    await unlimited.write("cats.md", SHIP)
    await unlimited.write("ship.md", None, "delete")
    (unlimited.root / "cook.md").unlink()
    await unlimited.until_found("carrots", [])
    await ready(unlimited)
    answer = await search(unlimited, query="a young feline animal")
    assert (paths(answer), answer["total_matches"]) == (["cats.md"], 1)
    assert answer["matches"][0]["similarity_score"] < 0.3


async def test_vectors_are_kept_over_a_restart_and_no_text_is_embedded_twice(
    meaning: Notes, make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    await three(meaning)
    await meaning.world.memory.stop()
    again = Notes(await make_world(SERVICE_MEMORY="1", SERVICE_EMBEDDING_MODEL=""), meaning.root)
    memory = again.world.kernel.memory
    assert memory is not None
    texts: list[str] = []
    embedder = memory.default.embeddings._embedder
    assert embedder is not None
    real = embedder.embed

    async def counted(given: Any, *, urgent: bool = False) -> Any:
        texts.extend(given)
        return await real(given, urgent=urgent)

    monkeypatch.setattr(embedder, "embed", counted)
    assert paths(await search(again, query="a young feline animal", top_k=1)) == ["cats.md"]
    await again.write("copy.md", CATS)  # the same text under another name
    await again.write("cats.md", CATS + "\n")
    await ready(again)
    assert [text for text in texts if text not in make_up_texts()] == ["a young feline animal"]


async def test_vectors_of_another_model_are_made_anew(unlimited: Notes, make_world: MakeWorld) -> None:
    await three(unlimited)
    memory = unlimited.world.kernel.memory
    assert memory is not None
    await memory.default.index.write(lambda tx: tx.run(Sql("update documents set model = 'another'")))
    await memory.stop()
    again = Notes(await make_world(**UNLIMITED), unlimited.root)

    async def made() -> bool:
        return bool((await search(again, query="kitten"))["total_matches"] == 3)

    await soon(made)


async def test_both_kinds_together_find_what_either_finds(meaning: Notes) -> None:
    await three(meaning)
    await meaning.write("word.md", "# Felis\n\nThe xylotomous beetle.\n")
    await ready(meaning)
    by_word = (await meaning.post("search/hybrid", query="xylotomous", limit=1)).json()["matches"]
    by_meaning = (await meaning.post("search/hybrid", query="small pet animal", limit=1)).json()["matches"]
    assert [match["path"] for match in by_word + by_meaning] == ["word.md", "cats.md"]
    assert by_word[0]["keyword_score"] == 1.0
    filtered = await meaning.post("search/hybrid", query="kitten", filters={"hebbian_weight_min": 1})
    assert [match["path"] for match in filtered.json()["matches"]] == ["cats.md"]


@requirement("memory.semantic-floor")
async def test_a_semantic_search_returns_what_is_similar_enough_and_no_more(meaning: Notes) -> None:
    await three(meaning)
    for query, expected in (
        ("a young feline animal", ["cats.md"]),
        ("software deployment", ["ship.md"]),
        ("quantum chromodynamics", []),
        ("who painted the mona lisa", []),
    ):
        found = await search(meaning, query=query)
        assert (paths(found), found["total_matches"]) == (expected, len(expected)), query


@requirement("memory.semantic-floor")
async def test_a_question_that_no_note_answers_finds_nothing_by_meaning(meaning: Notes) -> None:
    notes = {
        "guests.md": "Marta is allergic to peanuts and shellfish.",
        "flat.md": "Rent for the studio is 1,150 euros, due on the third working day.",
        "bread.md": "Sourdough: 75 percent water, bulk rise five hours at 24 degrees.",
        "hiring.md": "Interview panel: Dana, Oleg and one engineer from another team.",
    }
    for path, text in notes.items():
        await meaning.write(path, text)
    await ready(meaning)
    # Of these each has a note of a similarity of 0.16 to 0.18, the noise of the model.
    for query in ("who painted the mona lisa", "which supplier delivers the steel", "which wine goes with the duck"):
        found = await search(meaning, query=query)
        assert (paths(found), found["total_matches"]) == ([], 0), query
    for query, best in (
        ("what food must I not serve to Marta", "guests.md"),
        ("how much do we pay for the flat each month", "flat.md"),
        ("who talks to job candidates", "hiring.md"),
    ):
        assert paths(await search(meaning, query=query))[0] == best


@requirement("memory.search-floor")
async def test_a_note_that_has_no_word_of_the_query_and_is_not_like_it_is_no_match(meaning: Notes) -> None:
    await three(meaning)
    for query in ("quantum chromodynamics", "who painted the mona lisa"):
        found = (await meaning.post("search/hybrid", query=query)).json()
        assert (found["matches"], found["total_matches"]) == ([], 0), query


@requirement("memory.dates")
async def test_a_year_in_the_question_is_more_than_the_similarity_of_other_years(meaning: Notes) -> None:
    for year in range(2015, 2025):
        name = f"Ann{chr(97 + year % 10)}"
        await meaning.write(f"{name}.md", f"Session on {year}-12-27. {name}: I broke a wrist in December.")
    await meaning.write(
        "right.md", "Session on 2024-12-28. Tara: I had to go to the hospital with a broken wrist. It may rain."
    )
    await ready(meaning)
    found = (await meaning.post("search/hybrid", query="Who broke a wrist in December 2024?")).json()["matches"]
    assert [match["path"] for match in found[:2]] == ["Anne.md", "right.md"]


@requirement("memory.search-floor")
async def test_a_hybrid_search_without_letters_and_digits_finds_nothing(meaning: Notes) -> None:
    await meaning.write("launch.md", "# \U0001f680 Launch\nThe launch is on track \U0001f389 \u2705")
    await ready(meaning)
    for query in ("   ", '"', "\U0001f680"):
        found = (await meaning.post("search/hybrid", query=query)).json()
        assert (found["matches"], found["total_matches"]) == ([], 0), query


@requirement("memory.search-floor")
async def test_a_question_finds_what_it_is_about_and_every_match_has_a_score(meaning: Notes) -> None:
    await three(meaning)
    for query, best in (("where is the kitten", "cats.md"), ("a young feline animal", "cats.md")):
        found = (await meaning.post("search/hybrid", query=query)).json()["matches"]
        assert found[0]["path"] == best
        assert all(match["score"] > 0 for match in found)


@requirement("memory.search-in-sequences")
async def test_the_answer_without_a_word_of_the_question_is_a_match_beside_it(meaning: Notes) -> None:
    turns = (
        "Ann: The weather was awful all week.",
        "Ben: We stayed inside and played cards.",
        "Ann: When did you buy the new tent?",
        "Ben: Last Friday.",
        "Ann: I like your shoes.",
        "Ben: Thanks!",
    )
    for number, text in enumerate(turns, 1):
        await meaning.write(f"talk/turn-{number:03}.md", text)
    await ready(meaning)
    found = (await meaning.post("search/hybrid", query="when was the tent bought")).json()["matches"]
    assert found[0]["path"] == "talk/turn-003.md"
    assert "talk/turn-004.md" in {match["path"] for match in found}
    nothing = (await meaning.post("search/hybrid", query="quarterly revenue forecast")).json()
    assert nothing["matches"] == []


async def with_unprepared_model(
    make_world: MakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Notes, EmbeddingWorker, Unprepared]:
    notes = Notes(await make_world(SERVICE_MEMORY="1", SERVICE_EMBEDDING_MODEL=""), tmp_path / "vault")
    assert notes.world.kernel.memory is not None
    embeddings, model = notes.world.kernel.memory.default.embeddings, Unprepared()
    monkeypatch.setattr(embeddings, "_embedder", model)
    return notes, embeddings, model


@requirement("memory.model-prepared")
async def test_a_search_waits_until_the_model_is_prepared(
    make_world: MakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes, embeddings, model = await with_unprepared_model(make_world, tmp_path, monkeypatch)
    search = asyncio.create_task(notes.post("search/semantic", query="kitten"))
    await soon(lambda: embeddings.is_preparing)
    model.go.set()
    assert (await search).status_code == 200


@requirement("memory.model-prepared")
@pytest.mark.parametrize("has_note", [False, True])
async def test_no_search_waits_for_long_while_the_model_is_prepared(
    make_world: MakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_note: bool
) -> None:
    monkeypatch.setattr(embedding_worker, "PREPARATION_SECONDS", 0)
    notes, embeddings, model = await with_unprepared_model(make_world, tmp_path, monkeypatch)
    if has_note:
        await notes.write("cats.md", CATS)
        await soon(lambda: embeddings.is_preparing)
    found = (await notes.post("search/hybrid", query="kitten")).json()
    assert paths(found) == ["cats.md"][: int(has_note)]
    refused = await notes.post("search/semantic", query="kitten")
    assert (refused.status_code, refused.json()["error"]["message"]) == (503, PREPARING)
    await soon(lambda: embeddings.is_preparing)
    health = (await notes.world.admin.get("/api/v1/memory/health")).json()
    assert health["components"]["vector_store"]["detail"] == PREPARING
    model.go.set()
    await soon(lambda: not embeddings.is_preparing)
    await ready(notes)
    assert paths(await search(notes, query="kitten"))[: int(has_note)] == ["cats.md"][: int(has_note)]


@requirement("memory.model-prepared")
async def test_a_model_that_cannot_be_prepared_says_why(
    make_world: MakeWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes, _, model = await with_unprepared_model(make_world, tmp_path, monkeypatch)

    async def fail() -> None:
        raise EmbeddingUnavailable("The model cannot be exported: it is damaged.")

    monkeypatch.setattr(model, "load", fail)
    refused = await notes.post("search/semantic", query="kitten")
    assert "it is damaged" in refused.json()["error"]["message"]


NONSENSE = ["what is a flimbrous quontle", "mrrgl zzxcv", "trelawnic umbraxis"]
PARAPHRASES = ["a young feline animal", "deployment to clients", "a recipe with vegetables"]


@requirement("memory.weak-matches")
@pytest.mark.parametrize("mode", ["semantic", "hybrid"])
async def test_what_is_no_nearer_than_made_up_words_is_marked_as_weak(unlimited: Notes, mode: str) -> None:
    await three(unlimited)

    async def weak(query: str) -> set[bool]:
        answer = (await unlimited.post(f"search/{mode}", query=query)).json()
        return {match.get("weak", False) for match in answer["matches"]}

    assert [await weak(query) for query in NONSENSE] == [{True}] * 3
    assert [await weak(query) for query in PARAPHRASES] == [{False}] * 3


@pytest.mark.parametrize(("mode", "weak"), [("hybrid", None), ("semantic", True)])
async def test_only_hybrid_search_marks_no_note_that_has_a_word_of_the_query(
    unlimited: Notes, mode: str, weak: bool | None
) -> None:
    await three(unlimited)
    await unlimited.write(
        "code.md", "Each quarter the accountants close the books, pay flimbrous taxes and file the report.\n"
    )
    await ready(unlimited)
    matches = (await unlimited.post(f"search/{mode}", query=NONSENSE[0])).json()["matches"]
    assert next(match.get("weak") for match in matches if match["path"] == "code.md") is weak
