"""The work of `stentor provenance` that does not go through the service: verify, export and accept the run log.

The keys and checkpoints to verify against come from `checkpoint_sources`. The hashes are recomputed in
`domains.provenance.audit`; the output is in `view`.
"""

from __future__ import annotations

import base64
import binascii
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from stentor.bootstrap.storage import external_state as stored_outside
from stentor.bootstrap.storage import open_driver
from stentor.cli.output import EXIT_USAGE, CommandFailed
from stentor.cli.service.offline import require_current_schema, require_database
from stentor.core.clock import micros_from_datetime
from stentor.core.db import Tx
from stentor.core.db.driver import Driver
from stentor.core.db.sqlite.driver import SqliteDriver
from stentor.core.jsontext import JsonObject
from stentor.core.settings import Settings
from stentor.domains.provenance import export, merkle, store
from stentor.domains.provenance.audit import verification
from stentor.domains.provenance.audit.checkpoint_claims import CheckpointClaim
from stentor.domains.provenance.audit.findings import AuditReport
from stentor.domains.provenance.export import EventSelection, RunRoots, read_events
from stentor.domains.provenance.signing import keyfile, signing_guard
from stentor.domains.provenance.signing.signed_note import NoteError, NoteVerifier, open_note
from stentor.domains.provenance.signing.signing_guard import Acceptance
from stentor.domains.retention.verification import verify_archives

MAX_REASON_LENGTH = 1_000


class AcceptanceResult(NamedTuple):
    """`objection` is the mismatch that was accepted, `made_key` the verifier key of a new key, if one was generated."""

    acceptance: Acceptance
    objection: str
    made_key: str | None


def verify_database(
    chosen: Settings,
    file: Path | None,
    keys: list[NoteVerifier],
    outside: list[CheckpointClaim],
    progress: verification.Progress,
    witnessing: verification.WitnessPolicy,
) -> AuditReport:
    """Recompute all hashes of the run log and compare them with its checkpoints and those from `outside`."""
    return verification.verify_run_log(_open_driver(chosen, file), keys, outside, progress, witnessing)


def add_archives(
    report: AuditReport, chosen: Settings, file: Path | None, folder: Path, progress: verification.Progress
) -> None:
    """Verify the archives in a folder as well, and add their findings to a report."""
    archives = verify_archives(_open_driver(chosen, file), folder, progress)
    report.findings += archives.findings
    report.archives_read = archives.archives


def _open_driver(chosen: Settings, file: Path | None) -> Driver:
    """Open the database file, or the configured database. Raises CommandFailed if missing or of another schema."""
    if file is None:
        require_database(chosen)
        driver = open_driver(chosen)
    elif file.is_file():
        driver = SqliteDriver(file)
    else:
        raise CommandFailed(f"--file {file} does not exist or is not a file.", EXIT_USAGE)
    require_current_schema(driver, file)
    return driver


class EventProof(msgspec.Struct, frozen=True):
    """The service's proof that `event` (its JSON) is number `number` in a tree; `checkpoint` is a signed note of it.

    `event` is None if its body is in an archive that the service cannot read, or is not for this key: then the proof is
    of the leaf's hash.
    """

    provenance_id: str
    event: str | None
    leaf_hash: str
    number: int
    size: int
    hashes: list[str]
    root: str
    checkpoint: str | None


class CheckedEventProof(EventProof, frozen=True):
    """A proof with the result of its verification.

    `holds` is whether it is valid, `reason` why not; `signed` is whether its root is in a signed checkpoint, None if no
    key is known.
    """

    holds: bool
    signed: bool | None
    reason: str | None


class _EventIds(msgspec.Struct):
    event_id: str
    task_id: str | None


def verify_proof(proof: EventProof, keys: list[NoteVerifier], requested: str) -> JsonObject:
    """Verify a proof of the service for the id of an event or a task; return the fields that `CheckedEventProof` adds.

    Of a proof without the event the id cannot be verified.
    """
    reason, signed = "", False if keys else None
    try:
        path = [_decode_hash(text) for text in proof.hashes]
        root = _decode_hash(proof.root)
        # RFC 6962: the prefix byte 0 separates leaf hashes from those of inner nodes.
        event = proof.event
        leaf = _decode_hash(proof.leaf_hash) if event is None else sha256(b"\0" + event.encode()).digest()
        # Uses the ids inside the event, which are hashed: the service could put any id next to it.
        ids = None if event is None else msgspec.json.decode(event, type=_EventIds)
        if ids and (ids.event_id != proof.provenance_id or requested not in (ids.event_id, ids.task_id)):
            reason = "it is of another event"
        elif not merkle.verify_inclusion(leaf, proof.number, proof.size, path, root):
            reason = "the hashes do not lead from the event to the root"
        elif proof.checkpoint is not None and keys:
            checkpoint = open_note(proof.checkpoint, keys)
            signed = (checkpoint.size, checkpoint.root) == (proof.size, root)
            reason = "" if signed else "the checkpoint belongs to another tree"
    except (NoteError, binascii.Error) as error:
        reason, signed = str(error), False
    except msgspec.DecodeError:
        reason, signed = "what it proves is not an event", False
    return {"holds": not reason, "signed": signed, "reason": reason or None}


def _decode_hash(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def parse_selection(tenant: str, task: str | None, since: datetime | None, before: datetime | None) -> EventSelection:
    """Build the selection of events to export. Raises CommandFailed for a task together with a time range."""
    if task is not None and (since or before):
        raise CommandFailed("Pass either --task or a time range (--since, --before), not both.", EXIT_USAGE)
    start = micros_from_datetime(since.replace(tzinfo=since.tzinfo or UTC)) if since else 0
    end = micros_from_datetime(before.replace(tzinfo=before.tzinfo or UTC)) if before else 2**62
    return EventSelection(tenant, task, start, end)


def export_events(
    chosen: Settings, file: Path | None, form: str, selection: EventSelection, output: Path | None
) -> None:
    """Write the selected events as PROV-JSON or OTLP/JSON to a file or standard output. Raises CommandFailed."""
    # The consumer of the output may be slow: a pager waits for its reader.
    connection = _open_driver(chosen, file).reader(may_idle=True)
    try:
        tx = Tx(connection, connection.begin())
        if selection.task_id is not None and next(read_events(tx, selection), None) is None:
            raise CommandFailed(f"No event of task {selection.task_id} in the tenant {selection.tenant}.")
        if form == "prov":
            # A function, because PROV-JSON lists the events several times, once for each kind of record.
            chunks: Iterator[bytes] = export.write_prov_json(lambda: read_events(tx, selection))
        else:
            chunks = export.write_otlp_json(read_events(tx, selection), RunRoots(tx, selection.tenant).root_of)
        with _open_output(output) as sink:
            sink.writelines(chunks)
    finally:
        connection.close()


@contextmanager
def _open_output(output: Path | None) -> Iterator[BinaryIO]:
    if output is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    try:
        with output.open("wb") as file:
            yield file
    except OSError as error:
        raise CommandFailed(f"--output {output} cannot be written: {error.strerror}.", EXIT_USAGE) from None


def find_objection(chosen: Settings) -> tuple[str | None, int, str]:
    """Return the mismatch with the last signed checkpoint (or None), and the size and root (hex) of the tree.

    Raises CommandFailed and StentorError.
    """
    require_database(chosen)
    driver = open_driver(chosen)
    require_current_schema(driver)
    signer, storage = keyfile.find_signer(keyfile.key_path(chosen)), stored_outside(chosen)
    verifier = signer.verifier if signer else None
    # Read the stored checkpoints before the tree: a service that signs in between can then only make the tree longer.
    state, delivered = storage.read_checkpoint(), storage.read_last_delivered()
    connection = driver.reader()
    try:
        tx = Tx(connection, connection.begin())
        objection = signing_guard.find_blocking_reason(tx, verifier, state, delivered, storage)
        size = store.tree_size(tx)
        return objection, size, store.root_at(tx, size).hex()
    finally:
        connection.close()


def accept_run_log(chosen: Settings, reason: str, *, new_key: bool) -> AcceptanceResult:
    """Save an acceptance of the current run log for the service to apply. Raises CommandFailed, StentorError."""
    if not 0 < len(reason.strip()) <= MAX_REASON_LENGTH:
        raise CommandFailed(f"--reason must have 1 to {MAX_REASON_LENGTH} characters.")
    objection, size, root = find_objection(chosen)
    if objection is None:
        raise CommandFailed("There is nothing to accept: the run log matches the last signed checkpoint.")
    # The acceptance names size, root and key, so that it cannot be applied to any other state of the run log.
    key, is_new = _ensure_key(chosen, new_key=new_key)
    acceptance = Acceptance(reason.strip(), size, root, key.text)
    try:
        stored_outside(chosen).save_acceptance(acceptance)
    except OSError as error:
        raise CommandFailed(f"The acceptance cannot be written: {error.strerror}.") from None
    return AcceptanceResult(acceptance, objection, key.text if is_new else None)


def _ensure_key(chosen: Settings, *, new_key: bool) -> tuple[NoteVerifier, bool]:
    path = keyfile.key_path(chosen)
    signer = keyfile.find_signer(path)
    if signer is not None:
        return signer.verifier, False
    if not new_key:
        raise CommandFailed(f"The key {path} is missing: restore it, or generate a new one with --new-key.")
    # It would stay unchanged next to the new key, and not match it.
    if keyfile.public_key_path(path).exists():
        raise CommandFailed(
            f"{keyfile.public_key_path(path)} is the public half of the missing key and still needed to verify its "
            "signatures: rename it first."
        )
    return keyfile.ensure_signer(path, chosen.provenance.origin).verifier, True
