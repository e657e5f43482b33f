"""What people type into the frontmatter of notes: marks, derivations and dates. On both databases."""

from __future__ import annotations

from typing import Any

import pytest

from stentor_vault.text.passages import cut_passages
from tests.domains.memory.conftest import Notes
from tests.patience import soon
from tests.requirements import requirement


async def type_note(notes: Notes, path: str, *keys: str, text: str = "zebra") -> None:
    """Write a file as a person does in Obsidian, past the service."""
    (notes.root / path).parent.mkdir(parents=True, exist_ok=True)
    (notes.root / path).write_text("\n".join(["---", *keys, "---", text]) if keys else text)


@requirement("memory.invalid-excluded")
async def test_a_note_that_is_marked_by_hand_leaves_with_all_that_was_derived_from_it(notes: Notes) -> None:
    await type_note(notes, "a.md")
    await type_note(notes, "In/b.md", 'derived_from: "[[a]]"')
    await type_note(notes, "c.md", "derived_from:", "  - In/b.md")
    await type_note(notes, "other.md", "derived_from: https://example.com")
    await notes.until_found("zebra", ["In/b.md", "a.md", "c.md", "other.md"])
    await type_note(notes, "a.md", "invalid: the vendor's page was wrong", "invalid_by: Ann")
    await notes.until_found("zebra", ["other.md"])

    answer = await notes.post("search/keyword", terms=["zebra"], include_invalid=True)
    marks = {match["path"]: match.get("invalid") for match in answer.json()["matches"]}
    assert marks.pop("other.md") is None
    cause = {"kind": "note", "target": "a.md", "reason": "the vendor's page was wrong", "by": "Ann", "at": None}
    steps = [{"path": "c.md", "derived_from": "In/b.md"}, {"path": "In/b.md", "derived_from": "[[a]]"}]
    assert marks == {
        "a.md": {"cause": cause, "chain": []},
        "In/b.md": {"cause": cause, "chain": steps[1:]},
        "c.md": {"cause": cause, "chain": steps},
    }
    await type_note(notes, "a.md", "invalid: false")
    await notes.until_found("zebra", ["In/b.md", "a.md", "c.md", "other.md"])


@requirement("memory.invalid-excluded")
async def test_excluded_notes_do_not_take_places_among_the_best(notes: Notes) -> None:
    for n in range(6):
        await notes.write(f"bad{n}.md", "zebra", frontmatter={"invalid": True})
    await notes.write("good.md", f"zebra {'filler ' * 200}")
    answers = [
        await notes.post("search/keyword", terms=["zebra"], limit=1),
        await notes.post("search/hybrid", query="zebra", limit=1),
    ]
    for found in (answer.json() for answer in answers):
        assert ([match["path"] for match in found["matches"]], found["total_matches"]) == (["good.md"], 1)


@requirement("memory.as-of")
async def test_a_search_finds_what_holds_now_or_at_the_time_that_was_asked_for(notes: Notes) -> None:
    await type_note(notes, "jan.md", "valid_from: 2026-01-10", "valid_to: 2026-03-01")
    await type_note(notes, "march.md", "valid_from: 2026-03-01")
    await type_note(notes, "always.md")
    await type_note(notes, "later.md", "valid_from: 2999-01-01T10:00:00+02:00")
    await notes.until_found("zebra", ["always.md", "march.md"])

    async def at(as_of: str) -> list[str]:
        return sorted(await notes.found("zebra", as_of=as_of))

    assert await at("2026-01-09") == ["always.md"]
    assert await at("2026-02-28") == ["always.md", "jan.md"]  # before March
    assert await at("2026-02-28T23:59:59.999999Z") == ["always.md", "jan.md"]
    assert await at("2026-03-01T00:00:00Z") == ["always.md", "march.md"]
    assert await at("2999-01-01T08:00:00") == ["always.md", "later.md", "march.md"]
    refused = await notes.post("search/keyword", terms=["zebra"], as_of="March")
    assert (refused.status_code, "as_of" in refused.text) == (400, True)


@requirement("memory.validity-problems")
@pytest.mark.parametrize(
    "key",
    ["valid_from: soon", "valid_to: [1]", "valid_to: 2026-02-30", "invalid: {a: 1}", 'invalid_claims: ["nothing"]'],
)
async def test_a_value_that_cannot_be_read_is_a_problem_of_the_note_alone(notes: Notes, key: str) -> None:
    await type_note(notes, "bad.md", key, "title: Kept")
    await type_note(notes, "good.md")
    await notes.until_found("zebra", ["bad.md", "good.md"])
    document = (await notes.read("bad.md")).json()["document"]
    assert key.partition(":")[0] in document["frontmatter_problem"]
    assert document["frontmatter"]["title"] == "Kept"
    assert "frontmatter_problem" not in (await notes.read("good.md")).json()["document"]


@requirement("memory.invalid-claim")
async def test_a_passage_that_is_invalid_leaves_and_the_rest_of_the_note_stays(notes: Notes) -> None:
    text = "# Costs\n\nzebra\n\n## Offer\n\ngiraffe\n\n### Details\n\nlion\n\n## Terms\n\n- one tiger\n- two puma ^b1\n"
    await type_note(notes, "n.md", text=text)
    await type_note(notes, "offer.md", 'derived_from: ["[[n#Details]]"]', text="okapi")
    await type_note(notes, "block.md", "derived_from: ['[[n#^b1]]']", text="okapi")
    await type_note(notes, "whole.md", "derived_from: [[n]]", text="okapi")
    await notes.until_found("okapi", ["block.md", "offer.md", "whole.md"])
    await type_note(notes, "n.md", "invalid_claims:", '  - "#Offer | it expired"', text=text)
    await notes.until_found("giraffe", [])
    assert await notes.found("lion") == []
    assert await notes.found("zebra") == await notes.found("puma") == ["n.md"]
    assert sorted(await notes.found("okapi")) == ["block.md", "whole.md"]
    marked = (await notes.post("search/keyword", terms=["okapi"], include_invalid=True)).json()["matches"]
    (cause,) = [match["invalid"]["cause"] for match in marked if match["path"] == "offer.md"]
    assert (cause["kind"], cause["target"], cause["reason"]) == ("claim", "n.md#Offer", "it expired")
    await type_note(notes, "n.md", "invalid_claims: ['^B1']", text=text)
    await notes.until_found("puma", [])
    assert await notes.found("giraffe") == await notes.found("tiger") == ["n.md"]
    assert sorted(await notes.found("okapi")) == ["offer.md", "whole.md"]
    # An edit on disk keeps the version before it, although the index has not its whole text among the words.
    listed: list[Any] = []

    async def kept() -> bool:
        answer = await notes.world.admin.get("/api/v1/memory/versions", params={"path": "n.md"})
        listed[:] = answer.json().get("versions", [])
        return len(listed) >= 2

    await soon(kept, lambda: f"kept: {listed}")


@requirement("memory.invalid-claim")
@pytest.mark.parametrize("length", [300, 10_000])
def test_the_anchors_of_a_note_with_long_headings_take_little_memory(length: int) -> None:
    parents = "".join(f"{'#' * level} {letter * length}\n" for level, letter in enumerate("abcde", 1))
    text = f"# Top\n\n## Costs\n\n# Rest\n{parents}" + "".join(f"###### k{n}\n" for n in range(1_000))
    kept = cut_passages(text, ["#Top", "#" + "a" * length]).anchors
    assert kept["#Top"] == ("#top", "#costs", "#top#costs")
    assert "#k999" in kept["#" + "a" * length]
    assert sum(len(name) for names in kept.values() for name in names) < 2_000_000


async def test_derivations_that_go_in_a_circle_end(notes: Notes) -> None:
    await type_note(notes, "a.md", "derived_from: [[c]]")
    await type_note(notes, "b.md", "derived_from: [[a]]")
    await type_note(notes, "c.md", "derived_from: [[b]]")
    await notes.until_found("zebra", ["a.md", "b.md", "c.md"])
    await type_note(notes, "b.md", "derived_from: [[a]]", "invalid: true")
    await notes.until_found("zebra", [])
    await type_note(notes, "b.md", "derived_from: [[a]]")
    await notes.until_found("zebra", ["a.md", "b.md", "c.md"])


async def test_a_file_that_comes_later_or_moves_is_what_a_note_was_derived_from(notes: Notes) -> None:
    await type_note(notes, "b.md", "derived_from: Old/a.md")
    await type_note(notes, "c.md", "derived_from: [[a]]")
    await notes.until_found("zebra", ["b.md", "c.md"])
    await type_note(notes, "Old/a.md", "invalid: true")
    await notes.until_found("zebra", [])
    (notes.root / "New").mkdir()
    (notes.root / "Old/a.md").rename(notes.root / "New/a.md")
    await notes.until_found("zebra", ["b.md"])
    (notes.root / "New/a.md").unlink()
    await notes.until_found("zebra", ["b.md", "c.md"])
