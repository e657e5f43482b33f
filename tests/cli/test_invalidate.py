"""`stentor invalidate`: out of the searches, back, and what is out."""

from __future__ import annotations

from typing import Any

from tests.cli.program import Program
from tests.requirements import requirement


def write(service: Any, path: str, text: str) -> None:
    body = {"operation": "write", "document": {"path": path, "content": text}}
    with service.client() as http:
        assert http.post("/api/v1/memory/write", json=body).status_code == 200


@requirement("memory.invalidate-note", "memory.invalidate-claim", "memory.invalidate-source")
def test_a_note_a_passage_and_a_source_leave_and_come_back(served: tuple[Program, Any]) -> None:
    program, service = served
    write(service, "a.md", "# A\n\n## Costs\n\nten\n")
    write(service, "b.md", '---\nderived_from: ["[[a]]", "https://x.example"]\n---\ntext')
    assert program("invalidate").out == "Nothing is invalid.\n"
    left = program("invalidate", "a.md", "--reason", "it was wrong")
    lines = ["a.md: it was wrong (by admin)", "b.md <- [[a]]: it was wrong (by admin)"]
    assert left.out.splitlines() == [*lines, "2 notes are excluded from search."]
    assert program("invalidate").out.splitlines() == lines
    assert program("invalidate", "a.md", "--restore").out.splitlines()[-1] == "2 notes are searchable again."

    assert program("invalidate", "a.md#Costs", "--reason", "old").out == "The passage is excluded from search.\n"
    assert program("invalidate").out == "passage a.md#Costs: old (by admin)\n"
    assert "#Costs | old | admin" in (service.data_dir / "vault/a.md").read_text()
    assert program("invalidate", "a.md#Costs", "--restore").code == 0

    write(service, "C# guide.md", "# Costs\n\nten\n")
    assert program("invalidate", "C# guide.md#Costs", "--reason", "old").code == 0
    assert program("invalidate", "C# guide.md#Costs", "--restore").code == 0
    assert program("invalidate", "C# guide.md", "--reason", "old").out.startswith("C# guide.md: old (by admin)")
    assert program("invalidate", "C# guide.md", "--restore").code == 0

    gone = program("invalidate", "https://x.example", "--source", "--reason", "old", "--json").json
    assert [(note["path"], note["cause"]["kind"]) for note in gone["left"]] == [("b.md", "source")]
    assert program("invalidate").out.startswith("source https://x.example: old (by admin, ")
    back = program("invalidate", "https://x.example", "--source", "--restore")
    assert back.out.splitlines()[-1] == "1 note is searchable again."


def test_a_mark_needs_a_reason_and_something_to_mark(served: tuple[Program, Any]) -> None:
    program, _ = served
    without = program("invalidate", "a.md")
    assert (without.code, "--reason" in without.err) == (2, True)
    assert program("invalidate", "none.md", "--reason", "x").code == 3
