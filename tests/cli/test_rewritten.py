"""A run log that was rewritten while the service was stopped: nothing is signed until somebody accepts it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg

from tests.cli.program import Program
from tests.conftest import Service
from tests.databases import rows
from tests.patience import until
from tests.requirements import requirement

TREE = ("events_waiting", "provenance_leaves", "provenance_tiles", "provenance_checkpoints")


def act(service: Service) -> None:
    """Leave an event in the run log, and have it signed."""
    with service.client() as http:
        body = {"name": f"ann-{http.get('/health').elapsed.microseconds}", "capabilities": ["echo"]}
        assert http.post("/api/v1/registry/agents", json=body).status_code == 201
        assert http.post("/api/v1/provenance/checkpoint").status_code == 200


def stop(service: Service) -> None:
    service.process.terminate()
    service.process.wait(60)


def rewrite(service: Service) -> None:
    """Change an event, throw the tree away and let the next start build it again, with database writes alone."""
    rows(service.database, "update events set message = 'I did not' where event_type = 'agent_registered' returning 1")
    for table in TREE:
        rows(service.database, f"delete from {table} returning 1")
    rows(service.database, "insert into events_waiting (event_id) select event_id from events returning 1")


def provenance(service: Service) -> tuple[str, str]:
    with service.client() as http:
        found = http.get("/api/v1/health/detailed").json()["components"]["provenance"]
    return found["status"], found["detail"]


def figure(service: Service, name: str) -> float:
    with service.client() as http:
        lines = http.get("/metrics").text.splitlines()
    return float(next(line.split()[1] for line in lines if line.startswith(f"{name} ")))


@requirement("provenance.held-outside")
def test_a_log_that_was_rewritten_with_database_writes_is_not_signed(serve: Callable[..., Service]) -> None:
    service = serve()
    act(service)
    stop(service)
    rewrite(service)
    again = serve(service.data_dir)
    with again.client() as http:
        refused = http.post("/api/v1/provenance/checkpoint")
        assert (refused.status_code, refused.json()["error"]["code"]) == (500, "RUN_LOG_DAMAGED")
        assert http.get("/api/v1/health/ready").json() == {"ready": True}
    status, detail = provenance(again)
    assert (status, "stentor provenance accept" in detail) == ("unavailable", True), detail
    assert figure(again, "stentor_provenance_signing_refused") == 1
    program = Program(again.data_dir, again.state)
    verified = program("provenance", "verify")
    assert (verified.code, "keys/provenance.state" in verified.out) == (1, True), verified.out
    doctor = program("doctor", "--json").json["checks"]
    assert [(c["level"], "provenance.state" in c["message"]) for c in doctor if c["check"] == "run log"] == [
        ("problem", True)
    ]
    assert rows(again.database, "select size from provenance_checkpoints") == []
    stop(again)
    assert again.process.stderr is not None
    assert "checkpoints: signing blocked reason=" in again.process.stderr.read()


@requirement("provenance.held-outside")
def test_an_older_copy_of_the_database_is_signed_only_after_a_person_accepted_it(
    serve: Callable[..., Service], tmp_path: Path
) -> None:
    service = serve()
    act(service)
    stop(service)
    kept = _copy(service, tmp_path)
    again = serve(service.data_dir)
    act(again)
    stop(again)
    _put_back(service, kept)
    restored = serve(service.data_dir)
    assert provenance(restored)[0] == "unavailable"
    program = Program(restored.data_dir, restored.state)
    accepted = program("provenance", "accept", "--reason", "restored the backup of Monday")
    assert accepted.code == 0, accepted.err
    assert "events were removed, or an older backup was restored." in " ".join(accepted.err.split())
    assert "accept it" not in accepted.err
    until(lambda: provenance(restored)[0] == "available")
    with restored.client() as http:
        assert http.post("/api/v1/provenance/checkpoint").status_code == 200
    events = rows(restored.database, "select message, metadata from events where event_type = 'history_accepted'")
    assert len(events) == 1
    assert "restored the backup of Monday" in events[0][1]
    stop(restored)
    assert program("provenance", "verify", "--json").json["intact"] is True
    last = serve(service.data_dir)
    assert provenance(last)[0] == "available"
    assert "nothing to accept" in program("provenance", "accept", "--reason", "again").err


@requirement("provenance.held-outside")
def test_the_checkpoint_file_is_held_against_the_log_at_the_start(
    serve: Callable[..., Service], tmp_path: Path
) -> None:
    kept = tmp_path / "kept.txt"
    service = serve(SERVICE_PROVENANCE_CHECKPOINT_FILE=str(kept))
    act(service)
    stop(service)
    rewrite(service)
    (service.data_dir / "keys" / "provenance.state").unlink()  # as in an older copy of the folder
    again = serve(service.data_dir, SERVICE_PROVENANCE_CHECKPOINT_FILE=str(kept))
    status, detail = provenance(again)
    assert (status, "kept.txt" in detail) == ("unavailable", True), detail
    program = Program(again.data_dir, {**again.state, "SERVICE_PROVENANCE_CHECKPOINT_FILE": str(kept)})
    verified = program("provenance", "verify")
    assert (verified.code, "kept.txt" in verified.out) == (1, True), verified.out


@requirement("provenance.lost-key")
def test_signing_continues_without_a_restart_when_the_key_is_there_again(serve: Callable[..., Service]) -> None:
    service = serve()
    act(service)
    stop(service)
    key = service.data_dir / "keys" / "provenance.key"
    saved = key.rename(key.with_name("saved.key"))
    again = serve(service.data_dir)
    status, detail = provenance(again)
    assert (status, "continues without a restart" in detail) == ("unavailable", True), detail
    saved.rename(key)
    until(lambda: provenance(again)[0] == "available")


@requirement("provenance.lost-key")
def test_a_lost_key_is_not_made_again_without_a_word(serve: Callable[..., Service]) -> None:
    service = serve()
    act(service)
    stop(service)
    keys = service.data_dir / "keys"
    old = (keys / "provenance.pub").rename(keys / "old.pub")
    (keys / "provenance.key").unlink()
    (keys / "provenance.state").unlink()
    again = serve(service.data_dir)
    status, detail = provenance(again)
    assert (status, "is missing" in detail) == ("unavailable", True), detail
    assert not (keys / "provenance.key").exists()
    program = Program(again.data_dir, again.state)
    assert "--new-key" in program("provenance", "accept", "--reason", "the disk died").err
    assert program("provenance", "accept", "--new-key", "--reason", "the disk died").code == 0
    until(lambda: provenance(again)[0] == "available")
    with again.client() as http:
        assert http.post("/api/v1/provenance/checkpoint").status_code == 200
    assert len(rows(again.database, "select 1 from events where event_type = 'history_accepted'")) == 1
    both = ("--verifier", str(old), "--verifier", str(keys / "provenance.pub"))
    assert program("provenance", "verify", *both).code == 0


@requirement("provenance.lost-key")
def test_another_key_in_its_place_signs_nothing_either(serve: Callable[..., Service]) -> None:
    service = serve()
    act(service)
    stop(service)
    for name in ("key", "pub", "state"):
        (service.data_dir / "keys" / f"provenance.{name}").unlink()
    assert Program(service.data_dir)("keys", "make").code == 0
    again = serve(service.data_dir)
    status, detail = provenance(again)
    assert (status, "another key" in detail) == ("unavailable", True), detail


def test_the_first_start_needs_nothing_and_keeps_the_newest_checkpoint(serve: Callable[..., Service]) -> None:
    service = serve()
    act(service)
    state = service.data_dir / "keys" / "provenance.state"
    assert state.stat().st_mode & 0o777 == 0o600
    ((note,),) = rows_when_stopped(service, "select note from provenance_checkpoints order by size desc limit 1")
    assert state.read_text() == note
    assert figure(serve(service.data_dir), "stentor_provenance_signing_refused") == 0


def rows_when_stopped(service: Service, text: str) -> list[tuple[Any, ...]]:
    stop(service)
    return rows(service.database, text)


def _copy(service: Service, folder: Path) -> Any:
    if isinstance(service.database, Path):
        return shutil.copy(service.database, folder / "older.db")
    names = ("events", *TREE)
    with psycopg.connect(service.database) as connection:
        for name in names:
            connection.execute(f"create table older_{name} as select * from {name}".encode())
    return names


def _put_back(service: Service, kept: Any) -> None:
    if isinstance(service.database, Path):
        shutil.copy(kept, service.database)
        return
    for name in kept:
        rows(service.database, f"delete from {name} returning 1")
        rows(service.database, f"insert into {name} select * from older_{name} returning 1")
