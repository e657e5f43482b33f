"""`stentor search`: the memory from the command line."""

from __future__ import annotations

from typing import Any

import pytest

from stentor.cli.client.responses import Response
from stentor.cli.commands.memory import search
from tests.cli.program import Program
from tests.requirements import requirement

NOTES = {
    "Ops/deploys.md": "# Deploys\n\nWe deploy on Tuesdays.\nAna approves each deploy.\n",
    "Ops/old.md": "---\nvalid_to: 2025-12-31\n---\nWe deploy on Fridays.\n",
    "lunch.md": "Lunch is at noon. \x1b[31m\n",
}


def write_notes(service: Any) -> None:
    with service.client() as http:
        for path, content in NOTES.items():
            body = {"operation": "write", "document": {"path": path, "content": content}}
            assert http.post("/api/v1/memory/write", json=body).status_code == 200


@requirement("memory.command")
def test_notes_are_found_with_their_path_and_what_they_say(served: tuple[Program, Any]) -> None:
    program, service = served
    write_notes(service)
    found = program("search", "who", "approves", "a", "deploy")
    assert found.code == 0
    assert found.out.splitlines()[:2] == [
        "Ops/deploys.md  Deploys",
        "  # Deploys We deploy on Tuesdays. Ana approves each deploy.",
    ]
    assert "Ops/old.md" not in found.out
    assert "Ops/old.md" in program("search", "deploy", "--as-of", "2025-03-01").out
    one = program("search", "deploy", "--limit", "1", "--json").json["matches"]
    assert [note["path"] for note in one] == ["Ops/deploys.md"]
    assert "\x1b" not in program("search", "lunch").out


@requirement("memory.command")
def test_no_note_ends_with_1_and_what_is_wrong_is_told(served: tuple[Program, Any]) -> None:
    program, service = served
    write_notes(service)
    none = program("search", "zebra")
    assert (none.code, none.out) == (1, "No note answers this.\n")
    assert program("search", "zebra", "--json").json["matches"] == []
    unknown = program("search", "deploy", "--vault", "other")
    assert (unknown.code, unknown.out) == (3, "")
    assert "there is no vault 'other'" in unknown.err
    assert "as_of: must be a date" in program("search", "deploy", "--as-of", "soon").err
    assert program("search").code == 2


@requirement("memory.command")
def test_that_notes_may_be_missing_is_told_beside_the_notes(capsys: pytest.CaptureFixture[str]) -> None:
    for state, told in (
        ({}, ""),
        ({"incomplete": True}, "The search index is being built, so notes may be missing.\n"),
    ):
        search._show(Response({"matches": []} | state, search.FoundNotes).value)
        assert capsys.readouterr() == ("No note answers this.\n", told)


def test_a_weak_match_is_marked(capsys: pytest.CaptureFixture[str]) -> None:
    search._show(search.FoundNotes([search.FoundNote("lunch.md", "Lunch", "Lunch is at noon.", weak=True)]))
    assert capsys.readouterr().out.splitlines()[0] == "lunch.md  Lunch  (weak match)"
