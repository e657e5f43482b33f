"""`stentor history`: what is kept of a note, and back to it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.cli.program import Program


def write(service: Any, text: str) -> None:
    body = {"operation": "write", "document": {"path": "a.md", "content": text}}
    with service.client() as http:
        assert http.post("/api/v1/memory/write", json=body).status_code == 200


def test_a_note_goes_back_to_an_earlier_version(served: tuple[Program, Any]) -> None:
    program, service = served
    for text in ("one", "two"):
        write(service, text)
    listed = program("history", "a.md", "--json").json["versions"]
    assert [one["current"] for one in listed] == [True, False]
    shown = program("history", "a.md").out.splitlines()
    assert [line[:12] for line in shown] == [one["version"][:12] for one in listed]
    assert shown[0].endswith("written through the service by admin  (current)")
    back = program("history", "a.md", "--restore", listed[1]["version"][:8])
    assert (back.code, (service.data_dir / "vault/a.md").read_text()) == (0, "one")
    newest = program("history", "a.md").out.splitlines()[0]
    assert f"restored through the service by admin, first stored {listed[1]['created_at'][:19]}Z  (current)" in newest


def test_what_is_not_kept_cannot_be_gone_back_to(served: tuple[Program, Any]) -> None:
    program, service = served
    write(service, "one")
    unknown = program("history", "a.md", "--restore", "0000")
    assert (unknown.code, unknown.out) == (2, "")
    assert "No version of a.md begins with 0000" in unknown.err
    assert program("history", "none.md").code == 3
    assert (service.data_dir / "vault/a.md").read_text() == "one"


@pytest.mark.only("sqlite", reason="on PostgreSQL a command that may write needs a service")
def test_without_a_service_the_folder_itself_is_asked(served: tuple[Program, Any]) -> None:
    program, service = served
    write(service, "one")
    service.process.terminate()
    service.process.wait(60)
    program.environ = {"SERVICE_EMBEDDING_MODEL": "none"}
    assert len(program("history", "a.md", "--json").json["versions"]) == 1
