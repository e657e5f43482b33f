"""`stentor provenance`: with the service running, without it, and on a file that somebody edited."""

from __future__ import annotations

import base64
import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stentor.cli.provenance.run_log import EventProof, verify_proof
from stentor.domains.provenance import merkle
from stentor.domains.provenance.signing.signed_note import generate_signer
from tests.cli.program import SUMMARIZE, TEXT, Program
from tests.conftest import Service
from tests.databases import rows
from tests.requirements import requirement


def ran(program: Program, service: Service) -> tuple[Program, Any, str]:
    """Have it do one task and sign what it recorded; answers the task's id too."""
    made = program("task", "submit", "--input", TEXT, *SUMMARIZE, "--wait", "--json")
    assert made.code == 0, made.err
    with service.client() as http:
        assert http.post("/api/v1/provenance/checkpoint").status_code == 200
    return program, service, str(made.json["task_id"])


@pytest.fixture
def done(served: tuple[Program, Any]) -> tuple[Program, Any, str]:
    """A running service that has done one task and signed what it recorded."""
    return ran(*served)


@pytest.fixture(scope="module")
def read(serve_module: Callable[..., Service]) -> tuple[Program, Any, str]:
    """The same, one for all tests that only read."""
    service = serve_module()
    return ran(Program(service.data_dir, {"SERVICE_CLIENT_KEY": service.key, **service.state}), service)


@requirement("provenance.verify-clean")
def test_a_log_verifies_while_the_service_runs_and_after_it(done: tuple[Program, Any, str]) -> None:
    program, service, _ = done
    running = program("provenance", "verify", "--json")
    assert (running.code, running.json["intact"], running.json["key_known"]) == (0, True, True)
    service.process.terminate()
    service.process.wait(60)
    after = program("provenance", "verify")
    assert after.code == 0
    assert "The run log is intact." in after.out
    found = program("provenance", "verify", "--json").json
    assert f"Numbered events: {found['events']}; not numbered yet: 0; checkpoints: " in after.out
    assert (found["waiting"], found["covered"]) == (0, found["events"])


@requirement("provenance.verify-clean")
def test_a_log_verifies_after_a_crash(done: tuple[Program, Any, str]) -> None:
    program, service, _ = done
    service.kill()
    assert program("provenance", "verify", "--json").json["intact"] is True


@requirement("provenance.verify-finds-tampering")
def test_tampering_ends_with_1_and_names_the_event_and_the_task(done: tuple[Program, Any, str], tmp_path: Path) -> None:
    program, service, task_id = done
    service.process.terminate()
    service.process.wait(60)
    database, words = service.database, list[str]()
    if isinstance(database, Path):
        database = Path(shutil.copy(database, tmp_path / "copy.db"))
        words = ["--file", str(database), "--verifier", str(service.data_dir / "keys" / "provenance.pub")]
    ((event_id,),) = rows(
        database,
        "update events set message = '[bold]I did not' where event_type = 'task_completed' returning event_id",
    )
    found = program("provenance", "verify", *words)
    assert found.code == 1
    assert f"(event {event_id}, task {task_id}): the event is not what was recorded" in found.out
    as_json = program("provenance", "verify", *words, "--json")
    assert (as_json.code, as_json.json["intact"]) == (1, False)
    assert [(f["kind"], f["event_id"], f["task_id"]) for f in as_json.json["findings"]] == [
        ("changed", event_id, task_id)
    ]


@requirement("provenance.signed-checkpoints")
def test_checkpoints_that_were_kept_elsewhere_are_held_against_the_log(
    serve: Callable[..., Service], tmp_path: Path
) -> None:
    kept = tmp_path / "kept.txt"
    service = serve(SERVICE_PROVENANCE_CHECKPOINT_FILE=str(kept), SERVICE_PROVENANCE_ORIGIN="example.com/runs")
    with service.client() as http:
        assert http.post("/api/v1/provenance/checkpoint").json()["origin"] == "example.com/runs"
    service.process.terminate()
    service.process.wait(60)
    assert kept.read_text().startswith("example.com/runs\n")
    program = Program(service.data_dir, service.state)
    sound = program("provenance", "verify", "--checkpoints", str(kept), "--json")
    assert (sound.code, sound.json["checkpoints_checked"] >= 2) == (0, True)
    for table in ("events", "events_waiting", "provenance_leaves", "provenance_tiles", "provenance_checkpoints"):
        rows(service.database, f"delete from {table} returning 1")
    assert program("provenance", "verify").code == 1  # keys/provenance.state is left
    (service.data_dir / "keys" / "provenance.state").unlink()
    assert program("provenance", "verify").code == 0  # nothing is left that could tell
    gone = program("provenance", "verify", "--checkpoints", str(kept))
    assert gone.code == 1
    assert "but there are 0" in gone.out


def test_a_run_is_shown_as_a_tree(read: tuple[Program, Any, str]) -> None:
    program, _, task_id = read
    shown = program("provenance", "show", task_id)
    assert shown.code == 0
    kinds = ["prompt_received", "routing_decision", "task_queued", "task_started", "task_completed", "learning_updated"]
    assert [kind for line in shown.out.splitlines() for kind in kinds if f"{kind} " in line] == kinds
    as_json = program("provenance", "show", task_id, "--json").json
    assert as_json["root"] == as_json["events"][0]["provenance_id"]
    assert program("provenance", "show", "nobody").code == 3
    assert program("provenance", "show", "..").code == 3, "an id, not a relative path"


@requirement("provenance.inclusion-and-consistency")
def test_a_proof_is_verified_here_and_fails_with_another_key(read: tuple[Program, Any, str], tmp_path: Path) -> None:
    program, _, task_id = read
    proof = program("provenance", "proof", task_id)
    assert proof.code == 0
    assert "The proof is valid" in proof.out
    assert "Its root is in a signed checkpoint." in proof.out
    number = program("provenance", "proof", task_id, "--json").json["number"]
    # No checkpoint ends there: the events of a submission are numbered together.
    unsigned = program("provenance", "proof", task_id, "--size", str(number + 1))
    assert (unsigned.code, "no checkpoint signed its root" in unsigned.out.replace("\n", " ")) == (1, True)
    other = tmp_path / "other.pub"
    other.write_text(generate_signer("stentor/other").verifier.text)
    refused = program("provenance", "proof", task_id, "--verifier", str(other), "--json")
    assert (refused.code, refused.json["holds"], refused.json["reason"]) == (1, False, "no known key signed it")


@requirement("provenance.inclusion-and-consistency")
@pytest.mark.parametrize(
    ("requested", "said", "holds"),
    [("e1", "e1", True), ("t1", "e1", True), ("e2", "e1", False), ("e2", "e2", False), ("t2", "e1", False)],
)
def test_a_proof_of_another_event_is_invalid(requested: str, said: str, holds: bool) -> None:
    """`said` is the id that the service writes beside the event e1 of the task t1."""
    events = ['{"event_id":"e1","task_id":"t1"}', '{"event_id":"e2","task_id":null}']
    leaves = [hashlib.sha256(b"\0" + event.encode()).digest() for event in events]
    texts = [base64.b64encode(each).decode() for each in (*leaves, merkle.compute_root(leaves))]
    proof = EventProof(said, events[0], texts[0], 0, 2, [texts[1]], texts[2], None)
    reason = None if holds else "it is of another event"
    assert verify_proof(proof, [], requested) == {"holds": holds, "signed": None, "reason": reason}
    known = [generate_signer("log").verifier]
    assert verify_proof(proof, known, requested)["signed"] is False, "there is no checkpoint"
    unreadable = msgspec.structs.replace(proof, event="[1]")
    assert verify_proof(unreadable, [], requested)["reason"] == "what it proves is not an event"


@requirement("provenance.export")
def test_exports_are_written_as_they_are_read(read: tuple[Program, Any, str], tmp_path: Path) -> None:
    program, _, task_id = read
    lines = program("provenance", "export", "--format", "otlp", "--task", task_id).out.splitlines()
    assert [list(json.loads(line)) for line in lines] == [["resourceSpans"]] * 6
    path = tmp_path / "run.json"
    assert program("provenance", "export", "--format", "prov", "--output", str(path)).code == 0
    assert len(json.loads(path.read_text())["activity"]) >= 6
    none = program("provenance", "export", "--format", "otlp", "--since", "2100-01-01")
    assert (none.code, none.out) == (0, "")


WRONG = [
    (["verify", "--file", "nowhere.db"], 2, "is not a file"),
    (["verify", "--verifier", "nonsense"], 2, "is not a verifier key"),
    (["verify", "--checkpoints", "nowhere.txt"], 2, "cannot be read"),
    (["export", "--format", "otlp", "--task", "nobody"], 1, "No event of task nobody"),
    (["export", "--format", "otlp", "--task", "x", "--since", "2026-01-01"], 2, "not both"),
]


@pytest.mark.only("sqlite", reason="its database is at the address, whatever the folder")
def test_a_folder_without_a_database_is_said_to_have_none(read: tuple[Program, Any, str]) -> None:
    failed = read[0]("provenance", "verify", "--data-dir", "nowhere")
    assert (failed.code, "has no database" in failed.err.replace("\n", " ")) == (4, True), failed.err


def test_a_backup_of_an_earlier_version_is_upgraded_as_a_copy(program: Program, tmp_path: Path) -> None:
    assert program("db", "upgrade").code == 0
    backup = Path(shutil.copy(program.data_dir / "stentor.db", tmp_path / "old one.db"))
    rows(backup, "update alembic_version set version_num = '0046' returning 1")
    failed = program("provenance", "verify", "--file", str(backup))
    assert failed.code == 1
    assert f"`cp '{backup}' copy/stentor.db`, `stentor db upgrade --data-dir copy`" in failed.err


@pytest.mark.parametrize(("words", "code", "sentence"), WRONG, ids=[" ".join(words) for words, _, _ in WRONG])
def test_what_cannot_be_done_is_said(
    read: tuple[Program, Any, str], words: list[str], code: int, sentence: str
) -> None:
    program, _, _ = read
    failed = program("provenance", *words)
    assert (failed.code, sentence in failed.err.replace("\n", " ")) == (code, True), failed.err
