"""What the service writes is for its own user; a person's vault stays as open as it was."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from stentor.core import filesystem
from tests.cli.program import Program
from tests.conftest import Service
from tests.requirements import requirement

pytestmark = pytest.mark.only("sqlite", reason="the database is a file in the folder")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def write_note(service: Service, path: str) -> None:
    with service.client() as http:
        body = {"operation": "write", "document": {"path": path, "content": "the harbour"}}
        answer = http.post("/api/v1/memory/write", json=body)
        assert answer.status_code in (200, 201), answer.text


@requirement("vault.modes")
def test_nothing_in_a_data_folder_is_open_to_other_users(serve: Callable[..., Service]) -> None:
    before = os.umask(0o022)
    try:
        service = serve()
    finally:
        os.umask(before)
    write_note(service, "Notes/one.md")
    public = {"provenance.pub"}
    found = [path for path in [service.data_dir, *service.data_dir.rglob("*")] if mode(path) & 0o077]
    assert [path for path in found if path.name not in public] == []


@requirement("vault.modes")
def test_a_folder_that_was_open_is_closed_at_the_start(serve: Callable[..., Service]) -> None:
    service = serve()
    service.process.terminate()
    service.process.wait(60)
    folder, database = service.data_dir, service.data_dir / "stentor.db"
    folder.chmod(0o755)
    database.chmod(0o644)
    (folder / "vault").chmod(0o755)
    doctor = Program(folder)("doctor", "--json").json["checks"]
    said = " ".join(one["message"] for one in doctor if one["check"] == "data folder" and one["level"] == "warning")
    assert f"`chmod 600 {database}`" in said
    again = serve(folder)
    assert [mode(path) & 0o066 for path in (folder, database, folder / "vault")] == [0, 0, 0]
    write_note(again, "two.md")
    assert mode(folder / "vault" / "two.md") == 0o600


@requirement("vault.modes")
def test_other_peoples_content_of_the_folder_keeps_its_modes(serve: Callable[..., Service], tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "public_html").mkdir(parents=True)
    (home / "bin.sh").write_text("echo")
    for path in (home, home / "public_html", home / "bin.sh"):
        path.chmod(0o755)
    serve(home)
    assert [mode(path) for path in (home, home / "public_html", home / "bin.sh")] == [0o755] * 3
    own = [path for path in home.rglob("*") if path.name not in {"public_html", "bin.sh", "provenance.pub"}]
    assert [path for path in own if mode(path) & 0o077] == []


@requirement("vault.modes")
@pytest.mark.parametrize(("before", "after"), [(0o777, 0o755), (0o2775, 0o2755), (0o1777, 0o1777), (0o750, 0o750)])
def test_nobody_else_can_replace_the_keys_in_a_folder_with_other_content(
    tmp_path: Path, before: int, after: int
) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "theirs").write_text("x")
    tmp_path.chmod(before)
    filesystem.restrict_permissions(tmp_path)
    assert mode(tmp_path) == after
    assert mode(tmp_path / "keys") == 0o700


@requirement("vault.modes")
def test_notes_in_a_persons_own_vault_are_as_open_as_their_folder(
    serve: Callable[..., Service], tmp_path: Path
) -> None:
    vault = tmp_path / "mine"
    vault.mkdir(mode=0o755)
    (vault / "shut").mkdir(mode=0o700)
    before = os.umask(0o022)
    try:
        service = serve(SERVICE_VAULT_DIR=str(vault))
    finally:
        os.umask(before)
    for path in ("one.md", "new/two.md", "shut/three.md"):
        write_note(service, path)
    made = {name: mode(vault / name) for name in ("one.md", "new", "new/two.md", "shut/three.md")}
    assert made == {"one.md": 0o644, "new": 0o755, "new/two.md": 0o644, "shut/three.md": 0o600}
    assert mode(vault) == 0o755
