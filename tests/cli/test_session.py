"""`stentor session ...` beside a running service."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.cli.program import Program
from tests.requirements import requirement

Served = tuple[Program, Any]
CALL = {"id": "call-1", "type": "function", "function": {"name": "find_parcel", "arguments": '{"order": 4711}'}}


@pytest.fixture
def program(shared: Served) -> Program:
    return shared[0]


@requirement("cli.sessions")
def test_a_session_is_made_read_as_a_transcript_and_deleted(program: Program) -> None:
    made = program("session", "append", "support/4711", "Where is my parcel?", "--create")
    assert (made.code, made.out) == (0, "Appended to session support/4711; it has 1 item.\n"), made.err
    calling = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    found = {"role": "tool", "tool_call_id": "call-1", "content": "in Lisbon\n[9] user, now"}
    for value in (calling, found, {"step": 7}):
        assert program("session", "append", "support/", "--value", json.dumps(value)).code == 0
    assert program("session", "append", "4711", "A parcel in Lisbon.", "--role", "system", "--summary").code == 0
    shown = program("session", "items", "support/4711").out
    for text in ("[1] user, ", "    calls find_parcel:", '      "order": 4711', "result of call-1:", "[4] no message"):
        assert text in shown
    assert "[5] summary of everything before, system" in shown
    assert "\n    [9] user, now" in shown  # what a tool says cannot look like an item
    listed = program("session", "list", "--json").json["sessions"]
    assert [(row["session_id"], row["item_count"]) for row in listed] == [("support/4711", 5)]
    assert "support/4711" in program("session", "list", "--ref", "support").out
    assert program("session", "show", "4711", "--json").json["item_count"] == 5
    assert program("session", "delete", "support").out == "Deleted session support/4711.\n"
    gone = program("session", "show", "support/4711")
    assert (gone.code, "No session has the name or id 'support/4711'" in gone.err) == (3, True)
    refused = program("session", "append", "nobody", "hello")
    assert (refused.code, "There is no session 'nobody'. Pass --create to create it." in refused.err) == (3, True)


@requirement("cli.sessions")
def test_a_session_is_made_without_an_item_and_made_again_without_a_change(program: Program) -> None:
    assert program("session", "create", "empty-1", "--name", "An empty one").out == "Created session empty-1.\n"
    again = program("session", "create", "empty-1", "--name", "Another name")
    assert (again.code, again.out) == (0, "Session empty-1 exists already; it has 0 items.\n")
    assert program("session", "show", "empty-1", "--json").json["name"] == "An empty one"
    assert program("session", "delete", "empty-1").code == 0


@requirement("cli.sessions")
def test_a_name_or_a_unique_part_of_an_id_is_enough_and_an_ambiguous_one_is_refused(program: Program) -> None:
    for session_id in ("team-a", "team-b"):
        body = json.dumps({"id": session_id, "name": f"The {session_id[-1]} of it"})
        assert program("call", "sessions.create", "--body", body).code == 0
    assert program("session", "show", "The b of it", "--json").json["session_id"] == "team-b"
    unclear = program("session", "delete", "team-")
    assert (unclear.code, "'team-' is not unique" in unclear.err) == (2, True)
    assert len(program("session", "list", "--ref", "team-", "--json").json["sessions"]) == 2


@requirement("cli.sessions")
def test_the_newest_items_are_shown_and_all_when_asked_for(program: Program) -> None:
    values = json.dumps({"items": [{"value": {"role": "user", "content": f"message {n}."}} for n in range(1_000)]})
    assert program("call", "sessions.create", "--body", '{"id": "long"}').code == 0
    for _ in range(2):
        assert program("call", "sessions.append", "session_id=long", "--body", "-", stdin=values).code == 0
    assert program("session", "append", "long", "--file", "-", stdin="\x1b[31m" + "x" * 100_000).code == 0
    newest = program("session", "items", "long")
    assert (newest.out.count("] user, "), newest.out.count("message 999.")) == (20, 1)
    assert "The newest 20 of 2,001 items; --all shows all." in newest.err
    assert "\x1b" not in newest.out
    assert "... 98,005 more characters; --json has all" in newest.out
    assert program("session", "items", "long", "--all").out.count("] user, ") == 2_001
    document = program("session", "items", "long", "--all", "--json").json
    assert (len(document["items"]), document["next_after"]) == (2_001, None)
    assert len(program("session", "items", "long", "--json").json["items"]) == 20


@requirement("cli.sessions")
def test_what_is_wrong_is_said(program: Program) -> None:
    assert program("session", "append", "new", "hi").code == 3
    for wrong in (["new"], ["new", "hi", "--value", "1"], ["new", "--value", "{"], ["", "hi"]):
        assert program("session", "append", *wrong).code == 2
    assert program("session", "append", "new", "hi", "--create", "--expected-count", "3").code == 3
    assert program("session", "items", "new").err == "0 items.\n"
