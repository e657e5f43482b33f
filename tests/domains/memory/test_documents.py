"""Notes as documents: what is written is read again, and the same change twice is the same note. Pure."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stentor.core.errors import InvalidRequest
from stentor_vault.notes.frontmatter import BOM
from stentor_vault.text import documents, markdown
from stentor_vault.text.documents import with_parents
from tests.domains.notes.test_frontmatter import MAPS, TEXTS
from tests.requirements import requirement

RULED = "---\n\nIntro paragraph.\n\n---\n\nOutro.\n"
CARRYING = "---\ntags: [b]\n---\nbody\n"
BODIES = st.one_of(
    TEXTS,
    st.lists(
        st.sampled_from(["---\n", "---", "a: 1\n", "a: [\n", "- a\n", "text\n", "\n", "# h\n", BOM]), max_size=7
    ).map("".join),
)
FILES = st.none() | BODIES.map(str.encode)


def read(raw: bytes) -> tuple[str, dict[str, Any]]:
    document = documents.parse_document("a.md", raw)
    assert document is not None
    return document.content, document.frontmatter


def write(raw: bytes | None, content: str, values: dict[str, Any] | None = None) -> bytes:
    return documents.edit_document(raw, content, values, replace_frontmatter=True)


@requirement("memory.same-write-same-note")
@example(None, f"---\n:\n---\n{BOM}", None, False)
@given(FILES, BODIES, st.none() | MAPS, st.booleans())
def test_the_same_change_twice_is_the_same_note(
    raw: bytes | None, content: str, values: dict[str, Any] | None, whole: bool
) -> None:
    try:
        once = documents.edit_document(raw, content, values, replace_frontmatter=whole)
    except InvalidRequest:
        return  # what is there cannot be edited
    assert documents.edit_document(once, content, values, replace_frontmatter=whole) == once


@requirement("memory.same-write-same-note")
@given(FILES, BODIES, MAPS)
def test_what_is_written_with_its_frontmatter_is_read_again(
    raw: bytes | None, content: str, values: dict[str, Any]
) -> None:
    try:
        made = write(raw, content, values)
    except InvalidRequest:
        return
    assert read(made) == (content.removeprefix(BOM), values)


@requirement("memory.same-write-same-note")
@pytest.mark.parametrize("before", [None, b"old", b"---\ntags: [a]\nold: 1\n---\nold", b"\xef\xbb\xbfold", b""])
def test_a_block_at_the_head_of_the_content_is_the_frontmatter_of_new_and_old_notes(before: bytes | None) -> None:
    assert read(write(before, CARRYING)) == ("body\n", {"tags": ["b"]})
    assert write(write(before, CARRYING), CARRYING) == write(before, CARRYING)
    assert read(write(before, CARRYING, {})) == (CARRYING, {})
    assert read(write(before, CARRYING, {"x": 1})) == (CARRYING, {"x": 1})


def test_an_update_adds_the_block_at_the_head_of_its_content() -> None:
    made = documents.edit_document(b"---\nold: 1  # mine\n---\nold", CARRYING, None, replace_frontmatter=False)
    assert made == b"---\nold: 1  # mine\ntags:\n  - b\n---\nbody\n"


@pytest.mark.parametrize("before", [None, b"old", BOM.encode() + b"old", b"---\na: 1\n---\nold"])
def test_a_byte_order_mark_stands_once_at_the_head(before: bytes | None) -> None:
    made = write(write(before, f"{BOM}q"), f"{BOM}q2")
    assert made.startswith(BOM.encode())
    assert made.count(BOM.encode()) == 1
    assert read(made)[0] == "q2"


@requirement("memory.same-write-same-note")
@pytest.mark.parametrize(
    "content", [RULED, RULED.replace("Intro", "Intro: a: b"), "---\n# Title\n---\nx", "---\n---\nx"]
)
def test_a_content_that_begins_with_a_rule_is_read_whole_and_takes_frontmatter(content: str) -> None:
    for before in (None, b"old", b"---\na: 1\n---\nold"):
        made = write(before, content)
        assert read(made)[0] == content
        assert write(made, content) == made
        tagged = documents.edit_document(made, None, {"tags": ["x"]}, replace_frontmatter=False)
        assert read(tagged) == (content, read(made)[1] | {"tags": ["x"]})


@requirement("memory.same-write-same-note")
def test_text_between_two_rules_that_a_person_wrote_is_text() -> None:
    assert read(RULED.encode()) == (RULED, {})
    assert write(RULED.encode(), RULED) == RULED.encode()
    assert write(RULED.encode(), RULED, {}) == RULED.encode()
    assert write(RULED.encode(), "new") == b"new"


@pytest.mark.parametrize(
    ("text", "tags"),
    [
        (
            "---\ntags: one, two three\n---\n#four/five #One, (#six)\n",
            ["one", "two", "three", "four/five", "One", "six"],
        ),
        ("---\ntags: ['#a b', 5, '', '#', '2026']\n---\n#a #a\n", ["a b", "2026", "a"]),
        (
            "#\u0939\u093f\u0928\u094d\u0926\u0940 #cafe\u0301, #a/1/ #2026 #1st",
            ["\u0939\u093f\u0928\u094d\u0926\u0940", "caf\xe9", "a/1", "1st"],
        ),
        ("1. x\n   ```c\n   #include <x>\n   ```\n#yes\n> ~~~\n> #no\n> ~~~\n#too\n```\n#no\n", ["yes", "too"]),
        ("[[Plan (2026)#Costs]] [[C++#Syntax|#x]] https://x.org/?q=#frag [x](a.md?#no) #yes", ["yes"]),
        (f"#{'a/' * 120} #{'b' * 201} #c", ["c"]),
        ("```npm i``` then see #setup\n- ```#no``` #deploy\n```\n```#no```\n```\n#ops\n", ["setup", "deploy", "ops"]),
        ("```\n#no\n```\n`#no` x#no #1 ## Heading [[#no]] [x](#no) [[a#no]] https://x/#no\n", []),
    ],
)
def test_the_tags_are_those_of_the_frontmatter_and_of_the_text(text: str, tags: list[str]) -> None:
    document = documents.parse_document("a.md", text.encode())
    assert document is not None
    assert document.tags == tags
    program = documents.parse_document("a.c", b"#include <x>\n")
    assert program is not None
    assert program.tags == []


def test_a_note_has_a_bounded_number_of_tags_and_a_tag_of_levels() -> None:
    text = " ".join(f"#t{n}" for n in range(1_500))
    document = documents.parse_document("a.md", text.encode())
    assert document is not None
    assert document.tags == [f"t{n}" for n in range(1_000)]
    assert len(with_parents(["a/" * 90 + "a"])) == 21


def test_a_block_that_ends_with_the_file_is_closed_before_a_body() -> None:
    assert write(b"---\na: 1\n---", "body") == b"---\na: 1\n---\nbody"
    assert write(b"---\r\na: 1\r\n---", "body") == b"---\r\na: 1\r\n---\r\nbody"


@requirement("memory.nul-is-400")
@pytest.mark.parametrize("before", [None, b"old"])
def test_a_content_with_nul_is_refused(before: bytes | None) -> None:
    with pytest.raises(InvalidRequest, match="NUL"):
        write(before, "a\0b")


@pytest.mark.parametrize("fragment", ["\n", "\r\n", "#\n\n", " \n", "#\r", "# ", "- a\n"])
def test_a_note_is_read_in_linear_time_whatever_is_between_its_rules(fragment: str) -> None:
    # With quadratic time the call would not finish.
    content, values = read(f"---\n{fragment * 2_000}!\n---\nbody\n".encode())
    assert (content.endswith("body\n"), values) == (True, {})


def test_a_key_below_comments_and_empty_lines_makes_a_block_the_frontmatter() -> None:
    assert read(b"---\n\n  # first\r\n\r\n# second\rkey: 1\n---\nbody\n") == ("body\n", {"key": 1})


@pytest.mark.parametrize("filling", [" ", "\t", " #", "# ", "#"])
def test_a_heading_is_read_in_linear_time(filling: str) -> None:
    # With quadratic time the call would not finish.
    line = f"# a{filling * 200_000}x"
    assert markdown.match_heading(line) == (line[2:], 1)


@pytest.mark.parametrize(
    ("line", "heading"),
    [
        ("# a", ("a", 1)),
        ("   ###### a b \t", ("a b", 6)),
        ("## a ##  ", ("a", 2)),
        ("## a # ##", ("a #", 2)),
        ("# #", ("", 1)),
        ("# ", ("", 1)),
        ("#", None),
        ("#a", None),
        ("    # a", None),
        ("####### a", None),
    ],
)
def test_a_heading_has_a_level_and_a_text_without_its_closing_marks(line: str, heading: tuple[str, int] | None) -> None:
    assert markdown.match_heading(line) == heading
