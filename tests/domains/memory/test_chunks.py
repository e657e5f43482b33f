"""A document in pieces that a model takes whole: nothing of it is lost, and nothing is counted that is far too long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor_vault.text.markdown import MAX_CHARS_PER_TOKEN, Chunk, split_chunks

MOST = 40
WORDS = st.lists(st.sampled_from(["sea", "salt", "a-rather-long-word", "x" * 300, "\n", "\n\n", "- item"]))


def count(text: str) -> int:
    return len(text.split())


def bodies(made: list[Chunk], title: str = "title") -> list[str]:
    """The chunks without title and heading, which stand in their first line."""
    return [chunk.text.partition("\n")[2] if chunk.text.startswith(title) else chunk.text for chunk in made]


@given(WORDS)
def test_no_chunk_has_more_tokens_than_the_model_takes_and_every_word_is_in_one(words: list[str]) -> None:
    text = " ".join(words)
    made = split_chunks("title", text, MOST, count)
    assert [chunk.ordinal for chunk in made] == list(range(len(made)))
    assert all(count(chunk.text) <= MOST for chunk in made)
    assert [word for body in bodies(made) for word in body.split()] == text.split()


@pytest.mark.parametrize(
    "text", ["x word\n" * 20_000, "x" * 100_000, "\n" * 99_999 + "x", "x\n\n" * 30_000, "é" * 100_000]
)
def test_what_is_far_too_long_is_cut_before_it_is_counted(text: str) -> None:
    counted: list[int] = []

    def counting(piece: str) -> int:
        counted.append(len(piece))
        return count(piece)

    made = split_chunks("title", text, MOST, counting)
    assert max(counted) <= MAX_CHARS_PER_TOKEN * MOST
    assert sum(body.count("x") + body.count("é") for body in bodies(made)) == text.count("x") + text.count("é")


def test_a_short_section_is_one_chunk_under_its_heading() -> None:
    made = split_chunks("Boats", "# Sails\n\nTwo of them.\n\nOne is red.\n\n# Oars\n\nSix.\n", MOST, count)
    assert [(chunk.heading, chunk.text) for chunk in made] == [
        ("Sails", "Boats > Sails\nTwo of them.\n\nOne is red."),
        ("Oars", "Boats > Oars\nSix."),
    ]


def test_a_document_without_words_has_its_title() -> None:
    assert [chunk.text for chunk in split_chunks("Empty", "", MOST, count)] == ["Empty"]


def test_code_within_a_line_hides_no_heading() -> None:
    made = split_chunks("Boats", "```row``` comes first.\n# Oars\nSix.\n", MOST, count)
    assert [chunk.heading for chunk in made] == ["", "Oars"]
