"""The kinds of requests: a handful that can be named, told cheaply."""

from __future__ import annotations

import timeit
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor.domains.llm.model import ChatRequest, ImagePart, LlmMessage, TextPart, ToolDefinition
from stentor.domains.modelrouting.model import LENGTHS, SUBJECTS, classify_request
from tests.requirements import requirement


def said(text: str, **fields: Any) -> ChatRequest:
    return ChatRequest("auto", (LlmMessage("user", (TextPart(text),)),), **fields)


@pytest.mark.parametrize(
    ("text", "subject"),
    [
        ("Write a Python function that reverses a list.", "code"),
        ("What does this do?\n```\nx = 1\n```", "code"),
        ("def f(x):\n    return x", "code"),
        ("SELECT name FROM users WHERE id = 3", "code"),
        ("What is 17 * 23?", "maths"),
        ("Tom has 3 apples and buys 4. How many has he?", "maths"),
        ("Solve the equation for x.", "maths"),
        ("海水为什么是咸的？", "script"),
        ("Почему море солёное?", "script"),
        ("Why is the sea salty?", "question"),
        ("how do tides work", "question"),
        ("Czy morze jest słone?", "question"),
        ("Summarize this letter in two sentences.", "instruction"),
        ("", "instruction"),
    ],
)
def test_the_subject_of_a_text(text: str, subject: str) -> None:
    assert classify_request(said(text)) == f"{subject}/short"


@requirement("modelrouting.kinds")
def test_what_is_asked_for_beside_the_text_comes_first() -> None:
    code = "Write a Python function."
    assert classify_request(said(code, tools=(ToolDefinition("weather"),))) == "tools/short"
    assert classify_request(said(code, response_format={"type": "json_object"})) == "json/short"
    assert classify_request(said(code, response_format={"type": "text"})) == "code/short"
    image = ChatRequest("auto", (LlmMessage("user", (TextPart(code), ImagePart("https://example.com/a.png"))),))
    assert classify_request(image) == "images/medium"


def test_the_last_thing_that_the_user_said_has_the_subject() -> None:
    messages = (LlmMessage("user", (TextPart("def f(): pass"),)), LlmMessage("assistant", (TextPart("1 + 1"),)))
    assert (
        classify_request(ChatRequest("auto", (*messages, LlmMessage("user", (TextPart("Thank you."),)))))
        == "instruction/short"
    )


def test_the_length_is_that_of_the_whole_request() -> None:
    assert classify_request(said("a" * 700)) == "instruction/short"
    assert classify_request(said("a" * 900)) == "instruction/medium"
    assert classify_request(said("a" * 9_000)) == "instruction/long"


@requirement("modelrouting.kinds")
@given(st.text(max_size=300))
def test_every_text_has_one_of_24_kinds(text: str) -> None:
    subject, _, length = classify_request(said(text)).partition("/")
    assert subject in SUBJECTS
    assert length in LENGTHS
    assert len(SUBJECTS) * len(LENGTHS) == 24


@pytest.mark.parametrize(
    "piece", ["\n", " \n", "    ", "1 ", "1" + " " * 50, "select ", "{ ", "; \t", "def", "\t", "é"]
)
def test_no_text_takes_longer_than_its_length_explains(piece: str) -> None:
    """Steps of the search grow with the text, not with its square: a second of the event loop would stop all callers.

    Compared with a plain text of the same length in the same process, so that a slow machine changes nothing.
    """

    def fastest(text: str) -> float:
        request = said(text)
        return min(timeit.repeat(lambda: classify_request(request), number=1, repeat=5))

    assert fastest(piece * (2_000 // len(piece))) < 100 * fastest("words " * 333)
