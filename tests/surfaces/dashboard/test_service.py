"""The dashboard as a real process: in `stentor serve`, alone, and after its gateway was killed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from stentor_vault.notes import frontmatter
from tests.conftest import Service
from tests.databases import content
from tests.forkserver import Process, run_text
from tests.patience import until
from tests.requirements import requirement
from tests.surfaces.dashboard.board import frames

PATH = "/api/cli/execute/stream"
KEY = "dashboard-key-7c1e"
TEXT = {"instruction": "Agents do tasks. Stentor routes each. It records why.", "capability": "summarize"}
QUIET = {"SERVICE_EMBEDDING_MODEL": "none"}
Start = Callable[..., Service]


@contextmanager
def alone(folder: Path, *words: str, **environ: str) -> Iterator[tuple[str, Process]]:
    """A `stentor dashboard` over a data folder; its address."""
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "DASHBOARD_API_KEY": KEY, **environ}
    process = Process(["dashboard", "--json", "--port", "0", "--data-dir", str(folder), *words], env)
    try:
        line = process.stdout.readline()
        assert line, process.stderr.read()
        yield str(json.loads(line)["dashboard"]), process
    finally:
        process.terminate()
        process.communicate(timeout=200)


def client(address: str, **headers: str) -> httpx.Client:
    return httpx.Client(base_url=address, headers={"X-API-Key": KEY, **headers}, timeout=200)


def stream(http: httpx.Client, body: dict[str, Any] = TEXT) -> list[tuple[str, dict[str, Any]]]:
    answer = http.post(PATH, json=body)
    assert answer.status_code == 200, answer.text
    return frames(answer.text)


def kept(database: Path | str) -> list[str]:
    """Digests of the database and its log, or of all rows."""
    if isinstance(database, str):
        parts = [content(database)]
    else:
        parts = [path.read_bytes() for path in (database, database.with_name(f"{database.name}-wal"))]
    return [hashlib.sha256(part).hexdigest() for part in parts]


@requirement(
    "dashboard.store-flags",
    "dashboard.task-record",
    "dashboard.governance-snapshot",
    "dashboard.answers-without-gateway",
)
@pytest.mark.fault
def test_the_dashboard_goes_on_answering_when_its_gateway_is_killed(serve: Start) -> None:
    service = serve(**QUIET, DASHBOARD_API_KEY=KEY)
    with alone(service.data_dir, **service.state) as (address, _), client(address) as http:
        with client(service.ready["dashboard"]) as inside:
            end = stream(inside)[-1][1]
        assert end["status"] == "completed"
        paths = (
            f"/api/tasks/{end['task_id']}",
            f"/api/tasks/{end['task_id']}/activity",
            "/api/monitoring/governance",
            "/api/hebbian/sentinel",
            "/api/routing/config",
            "/api/reports",
        )
        before = [http.get(path).json() for path in paths]
        service.kill()
        after = [http.get(path).json() for path in paths]
        assert before == after
        assert after[0]["status"] == "completed"
        assert after[1]["outcome_class"] == "success"
        assert {agent["name"] for agent in after[2]["agents"]} == {"summarizer", "librarian"}
        assert after[2]["stores"] == {"agent_registry": True, "hebbian_weights": True, "trust": True}
        assert after[4]["source"] == "last_decision"
        refused = http.post(PATH, json=TEXT)
        assert refused.status_code == 503
        assert "stentor serve" in refused.json()["error"]["message"]


@requirement("dashboard.store-flags", "dashboard.never-writes")
def test_a_dashboard_alone_changes_no_byte_of_the_database(serve: Start) -> None:
    service = serve(**QUIET, DASHBOARD_API_KEY=KEY)
    with client(service.ready["dashboard"]) as inside:
        task_id = stream(inside)[-1][1]["task_id"]
    service.kill()
    before = kept(service.database)
    with alone(service.data_dir, **service.state) as (address, process), client(address) as http:
        for path in (f"/api/tasks/{task_id}/activity", "/api/monitoring/governance", "/api/hebbian/sentinel/alerts"):
            assert http.get(path).status_code == 200
        assert kept(service.database) == before
        process.terminate()
        assert process.wait(200) == 0
    assert kept(service.database) == before
    again = serve(**QUIET, DASHBOARD_API_KEY=KEY)
    with again.client() as gateway:
        assert gateway.get(f"/api/v1/tasks/{task_id}").json()["status"] == "completed"


@requirement("dashboard.execute-stream", "dashboard.execute-frames", "dashboard.callers-own-key")
def test_a_dashboard_alone_has_work_done_by_the_gateway_with_the_callers_own_key(serve: Start) -> None:
    service = serve(**QUIET)
    with alone(service.data_dir, **service.state) as (address, _):
        with client(address, Authorization="Bearer writer-key-7c1e") as http:
            found = stream(http)
            assert found[0][0] == "routing"
            assert found[-1][0] == "complete"
            assert "".join(data["text"] for kind, data in found if kind == "token").strip() == found[-1][1]["summary"]
            task_id = found[-1][1]["task_id"]
            record = http.get(f"/api/tasks/{task_id}").json()
            assert (record["submitted_by"], record["status"]) == ("writer", "completed")
            note = service.data_dir / "vault" / found[-1][1]["note_path"]
            until(lambda: note.exists() and frontmatter.read(note.read_text())["status"] == "completed")
            denied = stream(http, {"instruction": "x", "capability": "nobody-has-it"})
            assert [kind for kind, _ in denied] == ["error"]
            assert http.get(f"/api/tasks/{denied[0][1]['task_id']}").json()["status"] == "routing_failed"
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer reader-key-7c1e"}):
            with client(address, **headers) as http:
                answer = http.post(PATH, json=TEXT)
                assert answer.status_code == 403
                assert "Bearer" in answer.json()["error"]["message"]


@requirement("dashboard.execute-routing-failure")
def test_the_note_says_that_routing_failed_before_the_error_does(serve: Start) -> None:
    service = serve(**QUIET, DASHBOARD_API_KEY=KEY)
    with client(service.ready["dashboard"]) as http:
        body = {"instruction": "x", "capability": "nobody-has-it"}
        with http.stream("POST", PATH, json=body) as answer:
            lines = answer.iter_lines()
            assert next(lines) == "event: error"
            notes = list((service.data_dir / "vault" / "Tasks").rglob("*.md"))
            said = [frontmatter.read(note.read_text()) for note in notes]
            task_id = json.loads(next(lines).removeprefix("data: "))["task_id"]
        assert [(note["task_id"], note["status"]) for note in said] == [(task_id, "routing_failed")]


@requirement("dashboard.execute-stream")
def test_the_work_goes_on_when_the_reader_leaves(serve: Start) -> None:
    service = serve(**QUIET, DASHBOARD_API_KEY=KEY)
    with service.client() as gateway:
        agent = gateway.post("/api/v1/registry/agents", json={"name": "ann", "capabilities": ["echo"]}).json()
        with client(service.ready["dashboard"]) as http:
            with http.stream("POST", PATH, json={"instruction": "hello", "capability": "echo"}) as answer:
                assert next(answer.iter_lines()) == "event: routing"
            claims = gateway.post(f"/api/v1/agents/{agent['agent_id']}/claims", json={"wait_seconds": 60}).json()
            claim = claims["tasks"][0]
            path = f"/api/v1/tasks/{claim['task_id']}/complete"
            assert gateway.post(path, json={"epoch": claim["epoch"], "result": "hi"}).status_code == 200
            assert http.get(f"/api/tasks/{claim['task_id']}").json()["status"] == "completed"


@requirement("dashboard.execute-one-terminal-frame", "dashboard.stream-goes-on")
@pytest.mark.fault
def test_a_stream_through_a_gateway_that_is_killed_ends_with_one_error(serve: Start) -> None:
    service = serve(**QUIET)
    with service.client() as gateway:
        gateway.post("/api/v1/registry/agents", json={"name": "ann", "capabilities": ["echo"]})
    with (
        alone(service.data_dir, **service.state) as (address, _),
        client(address, Authorization="Bearer admin-key-7c1e") as http,
    ):
        with http.stream("POST", PATH, json={"instruction": "hello", "capability": "echo"}) as answer:
            lines = answer.iter_lines()
            head = [next(lines), next(lines)]
            service.kill()
            found = frames("\n".join([*head, *lines]))
        assert [kind for kind, _ in found] == ["routing", "error"]
        assert set(found[1][1]) == {"error", "task_id", "atp", "provenance_id"}
        assert http.get(f"/api/tasks/{found[1][1]['task_id']}").json()["status"] == "queued"


@requirement("dashboard.stream-goes-on")
@pytest.mark.fault
def test_a_stream_through_a_gateway_that_comes_back_goes_on(serve: Start) -> None:
    service = serve(**QUIET)
    with service.client() as gateway:
        agent = gateway.post("/api/v1/registry/agents", json={"name": "ann", "capabilities": ["echo"]}).json()
    with (
        alone(service.data_dir, **service.state) as (address, _),
        client(address, Authorization="Bearer admin-key-7c1e") as http,
    ):
        with http.stream("POST", PATH, json={"instruction": "hello", "capability": "echo"}) as answer:
            lines = answer.iter_lines()
            head = [next(lines), next(lines)]
            service.kill()
            with serve(**QUIET).client() as gateway:
                claims = gateway.post(f"/api/v1/agents/{agent['agent_id']}/claims", json={"wait_seconds": 60}).json()
                claim = claims["tasks"][0]
                path = f"/api/v1/tasks/{claim['task_id']}/complete"
                assert gateway.post(path, json={"epoch": claim["epoch"], "result": "hi"}).status_code == 200
                found = frames("\n".join([*head, *lines]))
        assert [kind for kind, _ in found] == ["routing", "token", "complete"]
        assert found[-1][1]["status"] == "completed"


def test_the_dashboard_can_be_left_out(serve: Start) -> None:
    service = serve(SERVICE_DASHBOARD="0", SERVICE_MEMORY="0")
    assert "dashboard" not in service.ready


@requirement("dashboard.auth-keyless")
def test_beside_a_gateway_for_everybody_a_dashboard_without_a_key_stays_on_this_machine(serve: Start) -> None:
    service = serve(SERVICE_HOST="0.0.0.0", SERVICE_MEMORY="0")
    assert service.ready["dashboard"].startswith("http://127.0.0.1:")
    assert any("DASHBOARD_API_KEY" in warning for warning in service.ready["warnings"])
    assert httpx.get(f"{service.ready['dashboard']}/api/monitoring/governance").status_code == 200
    assert service.process.poll() is None


@requirement("dashboard.auth-keyless")
@pytest.mark.parametrize("words", [["--host", "0.0.0.0"], ["--data-dir", "nowhere"]])
def test_a_start_that_must_not_be_says_why_and_exits(tmp_path: Path, words: list[str]) -> None:
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "SERVICE_DATA_DIR": str(tmp_path)}
    done = run_text(["dashboard", "--json", "--port", "0", *words], env, cwd=tmp_path)
    assert done.returncode == 3
    assert json.loads(done.stdout)["error"]


def test_a_folder_without_a_database_yet_is_500_and_no_crash(tmp_path: Path) -> None:
    with alone(tmp_path) as (address, _), client(address) as http:
        assert http.get("/health").status_code == 200
        assert http.get("/api/tasks/x").status_code == 500
        snapshot = http.get("/api/monitoring/governance")
        assert (snapshot.status_code, snapshot.json()["stores"]) == (
            200,
            {"agent_registry": False, "hebbian_weights": False, "trust": False},
        )
        assert not (tmp_path / "stentor.db").exists()
