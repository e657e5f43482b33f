"""Patches of parts of a note, without a server: the target changes, the rest stays."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor.core.errors import StentorError
from stentor_vault.notes.frontmatter import InvalidFrontmatter
from stentor_vault.server.patching import note_parts
from stentor_vault.server.patching.instruction import (
    ContentExists,
    FieldExists,
    InvalidInstruction,
    NoSuchTarget,
    PatchFailed,
    VersionMismatch,
    parse_instruction,
)
from stentor_vault.server.patching.outline import parse_outline

NOTE = """---
alpha: 1  # kept
tags: [a]
---
Lead.

# One

Text of one. ^one

```
# no heading
```

## Sub

Deep.

### Leaf

- first
- last ^item

# Two
| A | B |
| - | - |
| 1 | 2 |

^table
"""


def apply_patch(text: str, kind: str, target: Any, operation: str, **fields: Any) -> str:
    names = {
        "reject": "rejectIfContentPreexists",
        "create": "createTargetIfMissing",
        "if_match": "ifMatch",
    }
    options = {names.get(name, name): value for name, value in fields.items()}
    instruction = parse_instruction({"targetType": kind, "target": target, "operation": operation, **options})
    return note_parts.apply_instruction(text, instruction).text


def find_difference(before: str, after: str) -> tuple[str, str]:
    """Return the removed and the added text, without the common start and end."""
    start = 0
    while start < min(len(before), len(after)) and before[start] == after[start]:
        start += 1
    end = 0
    while end < min(len(before), len(after)) - start and before[-1 - end] == after[-1 - end]:
        end += 1
    return before[start : len(before) - end], after[start : len(after) - end]


@pytest.mark.parametrize(
    ("operation", "removed", "added"),
    [
        ("append", "", "\nNew.\n"),
        ("prepend", "", "New.\n\n"),
        ("replace", "Deep.\n\n### Leaf\n\n- first\n- last ^item", "New."),
    ],
)
def test_section_edit_adds_lines_and_keeps_the_rest(operation: str, removed: str, added: str) -> None:
    after = apply_patch(NOTE, "heading", ["One", "Sub"], operation, content="\n\nNew.\n\n\n")
    for part in (
        "alpha: 1  # kept\n",
        "Lead.\n\n# One\n\nText of one. ^one\n\n```\n# no heading\n```\n",
        "\n# Two\n| A",
    ):
        assert part in after
    assert after.replace(added, "", 1) == NOTE.replace(removed, "", 1) if removed == "" else added in after


def test_heading_levels_in_content_are_relative_to_the_target() -> None:
    after = apply_patch(
        NOTE, "heading", ["One", "Sub"], "append", content="# Child\n\n## Grandchild\n\n```\n# code\n```"
    )
    assert "### Child\n\n#### Grandchild\n\n```\n# code\n```\n" in after
    whole = apply_patch(
        NOTE, "heading", ["One", "Sub"], "replace", scope="markerAndContent", content="# Other\n\n## In it"
    )
    assert "```\n\n## Other\n\n### In it\n\n# Two" in whole
    instruction = parse_instruction(
        {"targetType": "heading", "target": ["One", "Sub", "Leaf"], "operation": "append", "content": "#### X"}
    )
    warnings = note_parts.apply_instruction(NOTE, instruction).warnings
    assert [warning.code for warning in warnings] == ["heading-depth-overflow"]


def test_heading_rename_keeps_its_level() -> None:
    assert find_difference(
        NOTE, apply_patch(NOTE, "heading", ["One", "Sub"], "replace", scope="marker", content="Neu")
    ) == (
        "Sub",
        "Neu",
    )
    assert "## Sub more\n" in apply_patch(NOTE, "heading", ["One", "Sub"], "append", scope="marker", content=" more")


def test_delete_removes_a_section_its_content_or_its_heading() -> None:
    without_section = apply_patch(NOTE, "heading", ["One", "Sub"], "delete", scope="markerAndContent")
    assert without_section == NOTE[: NOTE.index("## Sub")] + NOTE[NOTE.index("# Two") :]
    without_content = apply_patch(NOTE, "heading", ["One", "Sub"], "delete")
    assert "## Sub\n\n# Two" in without_content
    assert "\nDeep.\n\n## Leaf\n" in apply_patch(NOTE, "heading", ["One", "Sub"], "delete", scope="marker")


@pytest.mark.parametrize(
    ("place", "order"),
    [
        ("last", ["A", "A1", "A2", "B"]),
        ("first", ["A", "B", "A1", "A2"]),
        ({"before": ["A", "A2"]}, ["A", "A1", "B", "A2"]),
    ],
)
def test_section_moves_with_its_subsections(place: Any, order: list[str]) -> None:
    text = "# A\n\n## A1\n\n## A2\n\n# B\n\nb\n\n## C\n\nc\n"
    after = apply_patch(
        text, "heading", ["B"], "replace", scope="parent", destination={"parent": ["A"], "place": place}
    )
    assert "## B\n\nb\n\n### C\n\nc\n" in after
    names = [line.lstrip("# ") for line in after.splitlines() if line.startswith("#") and "C" not in line]
    assert names == order
    moved_back = apply_patch(
        after, "heading", ["A", "B"], "replace", scope="parent", destination={"parent": None, "place": "last"}
    )
    assert parse_outline(moved_back).find_section(("B", "C")) is not None
    with pytest.raises(PatchFailed, match="below itself"):
        apply_patch(
            text, "heading", ["B"], "replace", scope="parent", destination={"parent": ["B", "C"], "place": "last"}
        )
    with pytest.raises(NoSuchTarget):
        apply_patch(text, "heading", ["B"], "replace", scope="parent", destination={"parent": ["X"], "place": "last"})


def test_missing_heading_is_created_with_its_parents() -> None:
    after = apply_patch(NOTE, "heading", ["Two", "New", "Deep"], "append", content="# Inner", create=True)
    assert after.endswith("^table\n## New\n### Deep\n#### Inner\n")
    assert apply_patch("text", "heading", ["New"], "replace", content="x", create=True) == "text\n# New\nx\n"
    with pytest.raises(NoSuchTarget):
        apply_patch(NOTE, "heading", ["Two", "New"], "append", content="x")
    with pytest.raises(NoSuchTarget):
        apply_patch(NOTE, "heading", ["Sub"], "append", content="a path begins at the top")


def test_headings_with_the_same_name_have_distinct_addresses() -> None:
    text = "# Log\n\na\n\n# Log\n\nb\n\n## In\n"
    [first, second] = note_parts.build_document_map(text)["headings"]
    assert first == "Log"
    assert apply_patch(text, "heading", [second, "In"], "append", content="x").endswith("b\n\n## In\nx\n")
    assert "a\n\nx\n" in apply_patch(text, "heading", ["Log"], "append", content="x")


def test_block_is_edited_in_its_line_or_as_a_whole() -> None:
    assert "\nText of one. And. ^one\n" in apply_patch(NOTE, "block", "one", "append", content=" And.")
    assert "New. ^one\n" in apply_patch(NOTE, "block", "one", "replace", content="New.")
    assert "- last more ^item\n" in apply_patch(NOTE, "block", "item", "append", content=" more")
    assert "Text of one. ^two\n" in apply_patch(NOTE, "block", "one", "replace", scope="marker", content="two")
    assert "Text of one.\n" in apply_patch(NOTE, "block", "one", "delete", scope="marker")
    assert "# One\n\n```" in apply_patch(NOTE, "block", "one", "delete", scope="markerAndContent")
    assert "New.\n\nText of one. ^one\n" in apply_patch(
        NOTE, "block", "one", "prepend", scope="markerAndContent", content="New."
    )
    assert apply_patch("a", "block", "new", "append", content="b", create=True) == "a\n\nb ^new\n"
    with pytest.raises(NoSuchTarget):
        apply_patch(NOTE, "block", "none", "append", content="x")


def test_table_rows_are_added_and_replaced() -> None:
    head = "| A | B |\n| - | - |\n"
    for operation, rows in (
        ("append", "| 1 | 2 |\n| x | y\\|z |\n"),
        ("prepend", "| x | y\\|z |\n| 1 | 2 |\n"),
        ("replace", "| x | y\\|z |\n"),
    ):
        assert f"# Two\n{head}{rows}\n^table\n" in apply_patch(NOTE, "block", "table", operation, value=[["x", "y|z"]])
    with pytest.raises(PatchFailed, match="columns"):
        apply_patch(NOTE, "block", "table", "append", value=[["x"]])
    with pytest.raises(PatchFailed, match="not a table"):
        apply_patch(NOTE, "block", "one", "append", value=[["x"]])
    with pytest.raises(InvalidInstruction, match="line break"):
        apply_patch(NOTE, "block", "table", "append", value=[["x", "a\nb"]])


def test_block_of_a_section_is_edited_by_its_index() -> None:
    text = "# A\n\none\n\n- x\n- y\n\n^list\n\nthree\n\n## B\n"
    assert "- y\n- z\n\n^list\n" in apply_patch(text, "heading", ["A"], "append", within=1, content="\n- z")
    assert "three more\n\n## B" in apply_patch(text, "heading", ["A"], "append", within=-1, content=" more")
    assert text.replace("one\n\n", "") == apply_patch(text, "heading", ["A"], "delete", within=0)
    after = apply_patch(text, "heading", ["A"], "append", scope="markerAndContent", within=1, content="new")
    assert "^list\n\nnew\n\nthree" in after
    with pytest.raises(NoSuchTarget):
        apply_patch(text, "heading", ["A"], "append", within=3, content="x")


def test_frontmatter_field_is_set_renamed_extended_and_deleted() -> None:
    assert find_difference(
        NOTE, apply_patch(NOTE, "frontmatter", "alpha", "replace", scope="marker", content="beta")
    ) == (
        "alph",
        "bet",
    )
    assert "tags:\n  - a\n  - b\n" in apply_patch(NOTE, "frontmatter", "tags", "append", value=["b"])
    assert "alpha: null\n" in apply_patch(NOTE, "frontmatter", "alpha", "delete")
    assert "---\ntags: [a]\n---" in apply_patch(NOTE, "frontmatter", "alpha", "delete", scope="markerAndContent")
    assert apply_patch("---\na: 1\n---\nx", "frontmatter", "a", "delete", scope="markerAndContent") == "x"
    inserted = apply_patch(NOTE, "frontmatter", "tags", "prepend", scope="markerAndContent", value={"x": 1, "w": "z"})
    assert "# kept\nx: 1\nw: z\ntags: [a]\n" in inserted
    assert apply_patch("x", "frontmatter", "new", "append", value=["a"], create=True).startswith(
        "---\nnew:\n  - a\n---\nx"
    )
    replacement: Any = {"scope": "markerAndContent", "value": {"x": 1, "alpha": 2}}
    assert "---\nalpha: 2\nx: 1\ntags: [a]\n" in apply_patch(NOTE, "frontmatter", "alpha", "replace", **replacement)
    created = apply_patch("x", "frontmatter", "a", "replace", scope="markerAndContent", value={"a": 1}, create=True)
    assert created.startswith("---\na: 1\n---\nx")
    with pytest.raises(FieldExists):
        apply_patch(NOTE, "frontmatter", "alpha", "replace", scope="markerAndContent", value={"tags": 1})
    for value in ("text", 5, {"a": 1}):
        with pytest.raises(PatchFailed):
            apply_patch(NOTE, "frontmatter", "tags", "append", value=value)
    with pytest.raises(FieldExists):
        apply_patch(NOTE, "frontmatter", "alpha", "replace", scope="marker", content="tags")
    with pytest.raises(NoSuchTarget):
        apply_patch(NOTE, "frontmatter", "none", "replace", value=1)


def test_existing_content_is_rejected_on_request() -> None:
    after = apply_patch(NOTE, "heading", ["One"], "append", content="# New", reject=True)
    with pytest.raises(ContentExists):
        apply_patch(after, "heading", ["One"], "append", content="# New", reject=True)
    with pytest.raises(ContentExists):
        apply_patch(NOTE, "block", "one", "prepend", content=" Text of ", reject=True)


def test_instruction_for_another_version_raises_version_mismatch() -> None:
    version = note_parts.build_document_map(NOTE)["version"]
    assert apply_patch(NOTE, "heading", ["Two"], "append", content="x", if_match=version) != NOTE
    with pytest.raises(VersionMismatch):
        apply_patch(NOTE + " ", "heading", ["Two"], "append", content="x", if_match=version)


@pytest.mark.parametrize(
    "fields",
    [
        {"target": "A::B"},
        {"target": 5},
        {"target": ["x"] * 51},
        {"targetType": "file"},
        {"operation": "rename"},
        {"scope": "parent"},
        {"content": None},
        {"value": 1},
        {"content": ["x"]},
        {"content": "x" * 1_000_001},
        {"scope": "marker", "content": "a\nb"},
        {"targetType": "block"},
        {"targetType": "block", "target": "a b"},
        {"targetType": "block", "target": "a", "value": [["x"]]},
        {"targetType": "block", "target": "a", "content": None, "value": [1]},
        {"targetType": "block", "target": "a", "scope": "marker", "operation": "append"},
        {"targetType": "frontmatter", "target": "a"},
        {"targetType": "frontmatter", "target": "a", "content": None, "scope": "marker", "value": "x"},
        {"operation": "delete"},
        {"operation": "replace", "scope": "parent", "content": None, "destination": {"parent": []}},
        {"operation": "replace", "scope": "parent", "content": None, "destination": {"parent": [], "place": "top"}},
        {"operation": "replace", "scope": "parent", "content": None, "destination": {"parent": [], "place": {}}},
        {"within": 0, "createTargetIfMissing": True},
        {"within": 0, "operation": "replace", "scope": "markerAndContent"},
        {"within": "0"},
        {"createTargetIfMissing": "true"},
    ],
)
def test_invalid_instruction_raises_an_error(fields: dict[str, Any]) -> None:
    instruction = {"targetType": "heading", "target": ["A"], "operation": "append", "content": "x"} | fields
    with pytest.raises(InvalidInstruction):
        parse_instruction({name: value for name, value in instruction.items() if value is not None or name == "target"})


def test_patch_keeps_windows_line_endings_and_the_byte_order_mark() -> None:
    text = "\ufeff---\r\na: 1\r\n---\r\n# A\r\n\r\nx\r\n\r\n# B\r\n\ttrailing  \r\n\r\n"
    after = apply_patch(text, "heading", ["A"], "append", content="one\n\ntwo")
    assert after == text.replace("x\r\n", "x\r\n\r\none\r\n\r\ntwo\r\n")


def test_text_before_an_underlined_heading_keeps_it_a_heading() -> None:
    for line in ("text", "#tag"):
        text = f"# A\n{line}\n---\nend\n"
        assert note_parts.read_heading(text, ("A",), "content") == f"{line}\n---\nend\n"
        assert (
            apply_patch(text, "heading", ["A"], "replace", content=note_parts.read_heading(text, ("A",), "content"))
            == text
        )
    text = "# A\n#tag\n===\n"
    assert apply_patch(text, "heading", ["A"], "append", content="x") == "# A\nx\n\n#tag\n===\n"


def test_an_underlined_heading_stays_one_when_sections_before_it_come_and_go() -> None:
    text = "# A\ntext\n## B\nb\n\nC\n===\nbody\n"
    without_b = apply_patch(text, "heading", ["A", "B"], "delete", scope="markerAndContent")
    assert without_b == "# A\ntext\n\nC\n===\nbody\n"
    assert apply_patch(text, "heading", ["A", "B"], "delete", scope="marker") == without_b.replace("text", "text\n\nb")
    created = apply_patch(without_b, "heading", ["A", "New"], "append", content="hello", create=True)
    assert created == "# A\ntext\n\n## New\nhello\n\nC\n===\nbody\n"
    moved = apply_patch(
        text, "heading", ["A", "B"], "replace", scope="parent", destination={"parent": None, "place": "first"}
    )
    assert moved == "# B\nb\n\n# A\ntext\n\nC\n===\nbody\n"


@pytest.mark.parametrize(
    ("parent", "expected"),
    [
        (["A"], "intro\n# A\ntext\n## C d\n\n### E\n## B\nb\n\n"),
        (None, "intro\n\nC\nd\n===\n\nE\n---\n# A\n"),
    ],
    ids=["below a heading", "at the top"],
)
def test_an_underlined_heading_moves_with_its_level(parent: Any, expected: str) -> None:
    text = "intro\n# A\ntext\n## B\nb\n\nC\nd\n===\n\nE\n---\n"
    assert apply_patch(
        text, "heading", ["C\nd"], "replace", scope="parent", destination={"parent": parent, "place": "first"}
    ).startswith(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("list:\n- a\n- b ^x\n\nnext\n", "list:\n- a\n\nnext\n"),
        ("list:\r\n- a\r\n- b ^x\r\n\r\nnext\r\n", "list:\r\n- a\r\n\r\nnext\r\n"),
        ("- a\n- b ^x\n- c\n", "- a\n- c\n"),
        ("one\n\ntwo ^x\n\nthree\n", "one\n\nthree\n"),
        ("---\na: 1\n---\ntwo ^x\n\nthree\n", "---\na: 1\n---\nthree\n"),
    ],
)
def test_the_blocks_around_a_deleted_block_stay_apart(text: str, expected: str) -> None:
    assert apply_patch(text, "block", "x", "delete", scope="markerAndContent") == expected


def test_the_blocks_around_a_deleted_block_without_an_id_stay_apart() -> None:
    assert apply_patch("one\n- a\n\ntwo\n", "heading", None, "delete", within=1) == "one\n\ntwo\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("---\na: 1\n---\nbody\n", "body\n"),
        ("---\n# a comment\na: 1\n---\nbody\n", "---\n# a comment\n---\nbody\n"),
        ("---\na: 1\n---\n---\nb: 1\n---\nbody\n", "---\n---\n---\nb: 1\n---\nbody\n"),
    ],
    ids=["nothing else", "a comment", "a body like frontmatter"],
)
def test_the_frontmatter_goes_with_its_last_line(text: str, expected: str) -> None:
    assert apply_patch(text, "frontmatter", "a", "delete", scope="markerAndContent") == expected


COMMON_LINES = [
    "",
    "",
    "text",
    "text ^b1",
    "# A",
    "## B",
    "# A",
    "### C",
    "- item",
    "  - sub ^b2",
    "> quote",
    "```",
    "^b3",
]
UNUSUAL_LINES = [
    "    code",
    "| a | b |",
    "| - | - |",
    "---",
    "===",
    "#tag",
    "é\u2028x",
    "\t",
    "1. one",
    "<div>",
    "[x]: y",
]
LINES = st.sampled_from([*COMMON_LINES, *UNUSUAL_LINES])


def has_valid_frontmatter(text: str) -> bool:
    """Whether the frontmatter block of the text, if it starts with one, is valid YAML."""
    try:
        parse_outline(text)
    except InvalidFrontmatter:
        return False
    return True


TEXTS = st.builds(
    lambda lines, ends, last: "".join(f"{line}{end}" for line, end in zip(lines, ends, strict=False)) + last,
    st.lists(LINES, max_size=14),
    st.lists(st.sampled_from(["\n", "\n", "\r\n"]), min_size=14, max_size=14),
    st.sampled_from(["", "end"]),
).filter(has_valid_frontmatter)


def list_sections(text: str) -> list[tuple[tuple[str, ...], Any]]:
    sections: list[tuple[tuple[str, ...], Any]] = []

    def walk(section: Any, path: tuple[str, ...]) -> None:
        sections.append((path, section))
        for name, child in section.children.items():
            walk(child, (*path, name))

    walk(parse_outline(text).root, ())
    return sections


@given(TEXTS)
def test_every_character_belongs_to_exactly_one_section(text: str) -> None:
    spans = []
    for _, section in list_sections(text):
        spans += [span for span in (section.marker, section.body, section.trailing_blank) if span is not None]
    assert "".join(span.extract(text) for span in spans) == text[spans[0].start :]


@pytest.mark.requirement("vault.outside-stays")
@given(TEXTS, st.sampled_from(["append", "prepend", "replace", "delete"]), st.data())
def test_heading_patch_keeps_all_characters_outside_of_its_target(
    text: str, operation: str, data: st.DataObject
) -> None:
    path, section = data.draw(st.sampled_from(list_sections(text)))
    content = {} if operation == "delete" else {"content": "NEW"}
    after = apply_patch(text, "heading", list(path), operation, **content)
    span = section.content
    assert after.startswith(text[: span.start])
    assert after.endswith(text[span.end :])
    if operation in ("append", "prepend"):
        assert after.replace("NEW", "", 1).split() == text.split()


@given(TEXTS, st.data())
def test_heading_replacement_is_idempotent(text: str, data: st.DataObject) -> None:
    path, _ = data.draw(st.sampled_from(list_sections(text)))
    once = apply_patch(text, "heading", list(path), "replace", content="NEW")
    assert apply_patch(once, "heading", list(path), "replace", content="NEW") == once
    assert note_parts.read_heading(once, path, "content").strip() == "NEW"


@given(TEXTS, st.data())
def test_content_of_a_section_can_be_written_back(text: str, data: st.DataObject) -> None:
    path, section = data.draw(st.sampled_from(list_sections(text)))
    content = note_parts.read_heading(text, path, "content")
    after = apply_patch(text, "heading", list(path), "replace", content=content)
    if content.strip():
        assert after.replace("\r\n", "\n").split() == text.replace("\r\n", "\n").split()
    else:
        assert after == text[: section.content.start] + text[section.content.end :]


@pytest.mark.requirement("vault.outside-stays")
@given(TEXTS, st.sampled_from(["append", "prepend", "replace", "delete"]), st.data())
def test_block_patch_keeps_all_characters_outside_of_its_target(text: str, operation: str, data: st.DataObject) -> None:
    blocks = parse_outline(text).blocks
    if not blocks:
        return
    name = data.draw(st.sampled_from(list(blocks)))
    span = blocks[name].content
    content = {} if operation == "delete" else {"content": "NEW"}
    after = apply_patch(text, "block", name, operation, **content)
    expected = {
        "append": span.extract(text) + "NEW",
        "prepend": "NEW" + span.extract(text),
        "replace": "NEW",
        "delete": "",
    }[operation]
    assert after == text[: span.start] + expected + text[span.end :]


@given(TEXTS, TEXTS, st.sampled_from(["content", "markerAndContent", "marker", "parent"]), st.data())
def test_patch_of_any_text_succeeds_or_raises_a_stentor_error(
    text: str, content: str, scope: str, data: st.DataObject
) -> None:
    path, _ = data.draw(st.sampled_from(list_sections(text)))
    parent, _ = data.draw(st.sampled_from(list_sections(text)))
    payload: dict[str, Any] = {"content": content}
    if scope == "parent":
        payload = {"destination": {"parent": list(parent), "place": "last"}}
    try:
        after = apply_patch(text, "heading", list(path), "replace", scope=scope, **payload)
    except StentorError:
        return
    assert isinstance(after, str)
    if scope == "parent":
        assert sorted("".join(after.split()).replace("#", "")) == sorted("".join(text.split()).replace("#", ""))
