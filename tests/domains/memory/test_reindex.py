"""The index made anew and held against the vault, over HTTP and by commands; a kill in the middle of writes."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from stentor.core.db import Sql
from tests import forkserver
from tests.conftest import Service
from tests.domains.memory.conftest import Notes
from tests.patience import until
from tests.requirements import requirement


async def steps(notes: Notes, route: str, limit: int = 2) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    after: str | None = ""
    while after is not None:
        answer = await notes.post(route, after=after, limit=limit)
        assert answer.status_code == 200, answer.text
        found.append(answer.json())
        after = answer.json()["next"]
    return found


@requirement("memory.reindex")
async def test_an_index_that_is_wrong_is_told_and_mended(notes: Notes) -> None:
    memory = notes.world.kernel.memory
    assert memory is not None
    for i in range(5):
        await notes.write(f"{i}.md", f"note{i}")
    assert [step["differences"] for step in await steps(notes, "verify")] == [[], [], []]

    def spoil(tx: Any) -> None:
        tx.run(Sql("update documents set raw_hash = 'x' where path = '1.md'"))
        tx.run(Sql("update documents set path = 'gone.md' where path = '3.md'"))

    await memory.default.index.write(spoil)
    found = [one for step in await steps(notes, "verify") for one in step["differences"]]
    assert found == [
        {"path": "1.md", "problem": "stale"},
        {"path": "3.md", "problem": "missing"},
        {"path": "gone.md", "problem": "gone"},
    ]
    done = await steps(notes, "reindex")
    assert (sum(step["done"] for step in done), done[0]["total"]) == (5, 5)
    assert [step["differences"] for step in await steps(notes, "verify")] == [[], [], []]
    assert await notes.found("note3") == ["3.md"]


@pytest.mark.parametrize("route", ["verify", "reindex"])
async def test_a_cursor_with_a_nul_is_refused(notes: Notes, route: str) -> None:
    assert (await notes.post(route, after="/tasks/0/\0")).status_code == 400


def command(service: Service, *words: str) -> subprocess.CompletedProcess[str]:
    words = (*words, "--data-dir", str(service.data_dir), "--key", service.key)
    return forkserver.run_text(words, service.environ)


@requirement("memory.reindex", "memory.data-folder")
def test_the_commands_ask_a_service(serve: Callable[..., Service]) -> None:
    service = serve(SERVICE_EMBEDDING_MODEL="none")
    for i in range(2):
        (service.data_dir / "vault" / f"{i}.md").write_text("note")
    assert json.loads(command(service, "reindex", "--json").stdout) == {"notes": 2, "task_notes": 0}
    assert "2 notes are consistent." in command(service, "verify").stdout
    (service.data_dir / "vault" / "why\\.md").write_text("note")
    told = command(service, "verify")
    assert (told.returncode, told.stdout.splitlines()) == (
        0,
        [
            r"why\.md is left out: its path has a backslash or a control character, is not UTF-8 or too long, "
            "or there is another name that differs only in its Unicode form",
            "Left out until they are renamed, saved as UTF-8 or made smaller: 1.",
            "2 notes are consistent.",
        ],
    )


@requirement("memory.reindex", "memory.data-folder")
@pytest.mark.only("sqlite", reason="on PostgreSQL a command that may write needs a service")
def test_the_commands_work_with_a_service_and_without(serve: Callable[..., Service]) -> None:
    service = serve(SERVICE_EMBEDDING_MODEL="none")
    vault = service.data_dir / "vault"
    for i in range(3):
        (vault / f"{i}.md").write_text(f"note {i}")
    assert json.loads(command(service, "reindex", "--json").stdout) == {"notes": 3, "task_notes": 0}
    assert "3 notes are consistent." in command(service, "verify").stdout
    service.process.terminate()
    service.process.wait(60)
    (vault / "1.md").write_text("changed while nobody looked")
    assert json.loads(command(service, "reindex", "--json").stdout) == {"notes": 3, "task_notes": 0}
    found = command(service, "verify", "--json")
    assert (found.returncode, json.loads(found.stdout)) == (0, {"notes": 3, "task_notes": 0, "differences": []})
    assert {path.name for path in service.data_dir.iterdir()} >= {"stentor.db", "vault", "index"}


@pytest.mark.fault
def test_a_kill_between_file_and_index_loses_no_write_that_was_answered(
    serve: Callable[..., Service], tmp_path: Path
) -> None:
    """Killed five times in a load of writes: every answered write is in its file, found, and no file is torn."""
    service = serve(SERVICE_EMBEDDING_MODEL="none")
    folder, answered = service.data_dir, dict[str, int]()
    number = 0
    for kill in range(5):
        timer = threading.Timer(kill * 0.01, service.process.kill)
        moment = number + 30
        with service.client() as client:
            while True:
                number += 1
                if number == moment:
                    timer.start()
                path = f"n/{number % 40}.md"
                body = {"operation": "write", "document": {"path": path, "content": f"wordno{number} " * 200}}
                try:
                    answer = client.post("/api/v1/memory/write", json=body)
                except httpx.TransportError:
                    break
                assert answer.status_code == 200, answer.text
                answered[path] = number
        timer.join()
        service.process.wait()
        service = serve(data_dir=folder, SERVICE_EMBEDDING_MODEL="none")
    assert len(answered) >= 35
    with service.client() as client:
        for path, last in answered.items():
            document = client.get("/api/v1/memory/read/exact", params={"path": path}).json()["document"]
            words = set(document["content"].split())
            assert len(words) == 1, path
            assert int(words.pop().removeprefix("wordno")) >= last
        until(lambda: client.post("/api/v1/memory/verify", json={}).json()["differences"] == [])
    left = [file.name for file in (folder / "vault").rglob(".stentor-*")]
    assert len(left) <= 5


@pytest.mark.fault
def test_a_full_disk_is_an_outage_and_leaves_the_old_note(serve: Callable[..., Service], tmp_path: Path) -> None:
    """The vault on a file system of its own that fills up."""
    vault = tmp_path / "small"
    vault.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(vault)], capture_output=True).returncode:
        pytest.skip("a small file system cannot be mounted here (needs root)")
    try:
        service = serve(SERVICE_EMBEDDING_MODEL="none", SERVICE_VAULT_DIR=str(vault))
        with service.client() as client:

            def write(content: str) -> httpx.Response:
                body = {"operation": "write", "document": {"path": "a.md", "content": content}}
                return client.post("/api/v1/memory/write", json=body)

            assert write("small").status_code == 200
            refused = write("x" * 300_000)
            assert (refused.status_code, refused.json()["error"]["code"]) == (503, "SERVICE_UNAVAILABLE")
            assert "No space" in refused.json()["error"]["message"]
            assert (vault / "a.md").read_text() == "small"
            assert [path.name for path in vault.iterdir()] == ["a.md"]
            assert write("small again").status_code == 200
        service.process.terminate()
        assert service.process.wait(200) == 0
    finally:
        subprocess.run(["umount", "--lazy", str(vault)], check=True)
