"""Pieces of one sequence, such as the turns of a conversation, support each other in a hybrid search."""

from __future__ import annotations

import pytest

from stentor.domains.memory.hybrid_scores import WHOLE_CHARS, find_support, place_in_sequence
from tests.domains.memory.conftest import Notes
from tests.requirements import requirement


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("talk/turn-012.md", ("talk/turn-", 12)),
        ("talk/D3_7 Ann.md", ("talk/D3_", 7)),
        ("2026-11-26.md", ("2026-11-", 26)),
        ("v2/notes.md", None),
        ("plain.md", None),
    ],
)
def test_the_last_number_of_the_file_name_is_the_place(path: str, place: tuple[str, int] | None) -> None:
    assert place_in_sequence(path) == place


def test_only_matches_above_the_mean_support_a_neighbour_and_a_long_piece_stands_for_itself() -> None:
    scores = {"t/1.md": 1.0, "t/2.md": 0.2, "t/3.md": 0.2, "u/2.md": 0.2, "plain.md": 0.2}
    lengths = dict.fromkeys(scores, 40) | {"t/3.md": 10 * WHOLE_CHARS}
    support = find_support(scores, lengths, {"t/1.md"})
    assert set(support) == {"t/2.md", "t/3.md"}
    assert 0 < support["t/3.md"] < support["t/2.md"] < 0.2
    assert find_support(scores, lengths, ()) == {}
    assert find_support({}, {}, ()) == {}


@requirement("memory.search-in-sequences")
async def test_the_answer_beside_the_question_is_found_before_others_like_it(notes: Notes) -> None:
    turns = {
        1: "Ann: Has the kiln been repaired?",
        2: "Ben: Yes, on Friday, by my brother.",
        7: "Ann: Did you see the film?",
        8: "Ben: Yes, on Friday, by the way.",
    }
    for number, text in turns.items():
        await notes.write(f"talk/turn-{number:03}.md", text)
    answer = await notes.post("search/hybrid", query="kiln repaired Friday")
    matches = answer.json()["matches"]
    assert [match["path"] for match in matches[:2]] == ["talk/turn-001.md", "talk/turn-002.md"]
    assert all(0 < match["score"] <= 1 for match in matches)
