"""What of a note in the inbox counts, where its answer stands, and when it is asked."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stentor.core import ids, jsontext
from stentor.domains.tasknotes import inbox_notes, model, render
from stentor.domains.tasknotes.inbox_notes import InboxNote, InvalidTaskNote
from stentor.domains.tasks.model import TaskMetadata
from stentor_vault.notes import frontmatter, paths
from tests.requirements import requirement

TEXT = st.text(st.characters(exclude_categories=()))
HEAD = b"---\ntype: echo\nrequired_capabilities: [echo]\n---\n"


@given(TEXT, TEXT)
@requirement("tasks.note-holds-hostile-text")
def test_any_text_stands_whole_between_fences_that_it_cannot_close(text: str, other: str) -> None:
    """Of two blocks, the second begins where the first one's fence ends it, whatever is in the first."""
    made = render.render_code_block(text, "text") + "MARK\n" + render.render_code_block(other, "text")
    lines = made.encode(errors="backslashreplace").decode().split("\n")
    fence = lines[0].removesuffix("text")
    closing = next(
        n for n, line in enumerate(lines[1:], 1) if line.strip().startswith(fence) and not line.strip(fence[0])
    )
    assert lines[closing + 1] == "MARK"
    assert "\n".join(lines[1:closing]).rstrip("\n") == render.escape_control_characters(text).encode(
        errors="backslashreplace"
    ).decode().rstrip("\n")


Names = st.text(min_size=1, max_size=255).filter(str.isprintable)


@given(Names, Names, st.lists(Names, max_size=5), st.none() | Names, TEXT)
@requirement("tasks.note-mirrors-task")
def test_the_frontmatter_of_any_task_reads_back_as_its_record(
    task_id: str, kind: str, names: list[str], error: str | None, text: str
) -> None:
    record = model.TaskNoteRecord(
        task_id, "failed", kind, None, 1, 1, None, 2, 300, 0, "agent_failure", True, None, "p", "h", "BOB",
        tuple(names), None, TaskMetadata(tags=tuple(names)), jsontext.dump(text.encode(errors="replace").decode()),
        None, None if error is None else jsontext.dump({"code": error}),
    )  # fmt: skip
    note = render.render_note("default", record).content.decode()
    assert frontmatter.read(note) == model.build_frontmatter(record)
    assert frontmatter.read(note)["task_id"] == task_id


@requirement("tasks.note-mirrors-task")
def test_a_clock_that_was_set_back_makes_no_duration_negative() -> None:
    record = model.TaskNoteRecord(
        "t", "completed", "echo", None, 1, 1, 3_600_000_000, 2, 300, 0, "success", True, None, "p", "h", "BOB",
        (), None, TaskMetadata(), "1", None, None,
    )  # fmt: skip
    assert model.build_frontmatter(record)["duration_ms"] == 0


@given(st.binary(max_size=300) | st.binary(max_size=100).map(lambda raw: b"---\n" + raw + b"\n---\nx"))
@requirement("tasks.inbox-problem-answered")
def test_any_bytes_are_a_task_or_no_request_or_told_what_to_change(raw: bytes) -> None:
    draft, problems = None, []
    try:
        draft = inbox_notes.parse_task_note(raw)
    except InvalidTaskNote as error:
        problems = error.problems
    if problems:
        assert frontmatter.read(render.render_problem("\n".join(problems)).decode())["status"] == "refused"
    else:
        assert draft is None or draft.input


@given(st.text(min_size=1, max_size=255).filter(lambda name: "/" not in name))
@requirement("tasks.inbox-answer")
def test_every_name_that_a_vault_holds_has_a_name_for_its_answer(name: str) -> None:
    path = f"{model.INBOX_FOLDER}/{name}.md"
    try:
        path = paths.normalize_path(path)
    except paths.InvalidPath:
        return
    for number in (1, 2):
        answer = inbox_notes.build_answer_path(path, number)
        assert paths.normalize_path(answer) == answer
        assert not inbox_notes.is_candidate(answer)


@requirement("tasks.inbox-others-ignored")
@pytest.mark.parametrize(
    ("path", "may"),
    [
        ("Tasks/Inbox/q.md", True),
        ("Tasks/Inbox/q.MD", True),
        ("Tasks/Inbox/my answer.md", True),
        ("Tasks/Inbox/q (answer).md", False),
        ("Tasks/Inbox/q (answer 2).md", False),
        ("Tasks/Inbox/q.txt", False),
        ("Tasks/Inbox/sub/q.md", False),
        ("Tasks/q.md", False),
        ("Inbox/q.md", False),
        ("Tasks/Inbox/q (Conflicted copy mac 202611210100).md", False),
        ("Tasks/Inbox/q.sync-conflict-20261121-010000-ABCDEFG.md", False),
    ],
)
def test_which_files_may_be_requests(path: str, may: bool) -> None:
    assert inbox_notes.is_candidate(path) is may


def asked(state: inbox_notes.InboxState, **fields: Any) -> InboxNote:
    known = {
        "path": "p",
        "content_hash": "one",
        "modified_at": 1,
        "attempt": 3,
        "task_id": "t",
        "problem": None,
    }
    values: dict[str, Any] = {**known, "state": state, **fields}
    return InboxNote(**values)


@requirement("tasks.inbox-once", "tasks.inbox-asks-again")
@pytest.mark.parametrize(
    ("known", "content", "modified", "answered", "step"),
    [
        (None, "one", 1, False, ("ask", 0)),
        (None, "one", 1, True, ("adopt", 0)),
        (asked("asked"), "one", 1, False, ("nothing", 3)),
        (asked("asked"), "two", 2, False, ("nothing", 3)),
        (asked("answered"), "one", 1, True, ("nothing", 3)),
        (asked("answered"), "two", 2, True, ("nothing", 3)),
        (asked("answered"), "one", 1, False, ("nothing", 3)),
        (asked("answered"), "one", 2, False, ("ask", 4)),
        (asked("answered"), "two", 2, False, ("ask", 4)),
        (asked("refused"), "one", 1, True, ("nothing", 3)),
        (asked("refused"), "one", 2, True, ("nothing", 3)),
        (asked("refused"), "two", 2, True, ("ask", 4)),
        (asked("refused"), "one", 2, False, ("ask", 4)),
    ],
)
def test_when_a_note_is_asked(
    known: InboxNote | None, content: str, modified: int, answered: bool, step: tuple[str, int]
) -> None:
    assert inbox_notes.choose_step(known, content, modified, has_answer=answered) == step


@requirement("tasks.inbox-once")
def test_the_id_of_a_task_follows_from_path_content_and_attempt() -> None:
    ids = {inbox_notes.derive_task_id(path, content, n) for path in "ab" for content in "cd" for n in (0, 1)}
    assert len(ids) == 8
    assert inbox_notes.derive_task_id("a", "c", 0) in ids


@requirement("tasks.inbox-fields")
def test_names_may_be_a_list_or_a_text_with_commas_and_metadata_may_be_nested() -> None:
    draft = inbox_notes.parse_task_note(
        b"---\ntype: echo\nrequired_capabilities: a, b, a\nmetadata:\n  priority: low\n  tags: [x]\n---\n\nhello\n\n"
    )
    assert draft is not None
    assert (draft.required_capabilities, draft.input) == (("a", "b"), "hello")
    assert (draft.metadata.priority, draft.metadata.tags) == ("low", ("x",))


@requirement("tasks.note-name-ignores-caller-id")
def test_the_note_s_place_follows_from_time_tenant_and_id() -> None:
    folder, name = model.locate_note("default", "x", 1_795_246_100_123_456)
    assert (folder, name[:18]) == ("Tasks/2026/11", "2026-11-21T072820-")
    assert model.locate_note("other", "x", 1_795_246_100_123_456)[1] != name
    assert model.is_mirrored(f"{folder}/{name}")
    assert model.is_mirrored(folder)
    assert not model.is_mirrored("Tasks/Inbox/a.md")
    assert not model.is_mirrored("Tasks/20261/a.md")


@requirement("tasks.note-survives-crash")
@given(st.integers(min_value=0, max_value=2**48 - 1), st.integers(min_value=0, max_value=10**6))
def test_a_cursor_before_an_event_sorts_before_all_ids_of_that_time(moment: int, back: int) -> None:
    text = f"{moment:012x}"
    event_id = f"{text[:8]}-{text[8:]}-7abc-8abc-0123456789ab"
    cursor = ids.rewind(event_id, back)
    earlier = f"{max(0, moment - back):012x}"
    assert cursor < f"{earlier[:8]}-{earlier[8:]}-7000-8000-000000000000"
    assert cursor <= event_id
