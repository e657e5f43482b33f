"""What `stentor provenance` reads besides the service: the database itself, keys, checkpoints kept elsewhere."""

from __future__ import annotations

import base64
import binascii
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, BinaryIO

from stentor import bootstrap
from stentor.bootstrap.provenance import outside as kept_outside
from stentor.cli.local import require_database, require_head
from stentor.cli.output import USAGE, CommandFailed
from stentor.core import settings
from stentor.core.clock import micros_from_datetime
from stentor.core.db import Tx
from stentor.core.db.driver import Driver
from stentor.core.db.sqlite import SqliteDriver
from stentor.core.errors import RunLogDamaged, StartRefused
from stentor.core.security import redaction
from stentor.core.security.redaction import Redactor
from stentor.core.settings import Settings
from stentor.domains.provenance import export, keyfile, merkle
from stentor.domains.provenance.audit import verification
from stentor.domains.provenance.audit.checkpoint_claims import CheckpointClaim, parse_claim
from stentor.domains.provenance.audit.findings import AuditReport
from stentor.domains.provenance.export import EventSelection, RunRoots, read_events
from stentor.domains.provenance.signed_note import NoteError, NoteVerifier, open_note, parse_verifier, split_notes


def settings_of(data_dir: Path | None) -> Settings:
    chosen = settings.load(os.environ, {"data_dir": data_dir})
    redactor = Redactor()
    redactor.add_secret(chosen.database_url)
    redaction.configure_logging("warning", redactor)
    return chosen


def verifiers(chosen: Settings, given: list[str], file: Path | None) -> list[NoteVerifier]:
    """Those that were given; else the folder's own key, if it is there."""
    if given:
        return [_verifier(text) for text in given]
    path = keyfile.key_path(chosen)
    if file is not None and chosen.provenance_key is None:
        path = file.parent / "keys" / path.name
    try:
        own = keyfile.find_signer(path)
    except StartRefused:
        own = None  # whoever may not read the private half verifies with the public one
    found = own.verifier if own else keyfile.find_verifier(path)
    return [found] if found else []


def _verifier(text: str) -> NoteVerifier:
    try:
        path = Path(text)
        return parse_verifier(path.read_text("utf-8") if path.is_file() else text)
    except OSError as error:
        raise CommandFailed(f"--verifier {text} cannot be read: {error.strerror}.", USAGE) from None
    except (NoteError, UnicodeDecodeError) as error:
        raise CommandFailed(f"--verifier {text} is no verifier key: {error}.", USAGE) from None


def outside(
    paths: list[Path], keys: list[NoteVerifier], witnesses: Sequence[NoteVerifier] = ()
) -> list[CheckpointClaim]:
    """The checkpoints in these files, one appended after the other."""
    found: list[CheckpointClaim] = []
    for path in paths:
        try:
            notes = split_notes(path.read_text("utf-8"))
        except OSError as error:
            raise CommandFailed(f"--checkpoints {path} cannot be read: {error.strerror}.", USAGE) from None
        except UnicodeDecodeError:
            raise CommandFailed(f"--checkpoints {path} is not text.", USAGE) from None
        if not notes:
            raise CommandFailed(f"--checkpoints {path} has no checkpoint.", USAGE)
        found += [parse_claim(note, keys, str(path), witnesses) for note in notes]
    return found


def kept(chosen: Settings, keys: list[NoteVerifier], witnesses: Sequence[NoteVerifier] = ()) -> list[CheckpointClaim]:
    """The newest checkpoints that the installation keeps outside its database: whoever rewrote all of the database
    left these. Raises CommandFailed for a file that cannot be read.
    """
    places = kept_outside(chosen)
    try:
        notes = [(f"keys/{places.state_path.name}", places.read_checkpoint())]
        if places.checkpoint_file is not None:
            notes.append((str(places.checkpoint_file), places.read_last_delivered()))
    except RunLogDamaged as error:
        raise CommandFailed(error.message) from None
    return [parse_claim(note, keys, place, witnesses) for place, note in notes if note is not None]


def verified(
    chosen: Settings,
    file: Path | None,
    keys: list[NoteVerifier],
    outside: list[CheckpointClaim],
    progress: verification.Progress,
    witnessing: verification.WitnessPolicy = verification.NO_WITNESSES,
) -> AuditReport:
    return verification.verify_run_log(_driver(chosen, file), keys, outside, progress, witnessing)


def _driver(chosen: Settings, file: Path | None) -> Driver:
    """Raises CommandFailed when there is no database, or one of another version."""
    if file is None:
        require_database(chosen)
        driver = bootstrap.open_driver(chosen)
    elif file.is_file():
        driver = SqliteDriver(file)
    else:
        raise CommandFailed(f"--file {file} is no file.", USAGE)
    require_head(driver)
    return driver


def judged(found: dict[str, Any], keys: list[NoteVerifier]) -> dict[str, Any]:
    """A proof as the service answered it, with `holds`, `signed` (None without a key) and the reason."""
    reason, signed = "", None
    try:
        path = [_raw(text) for text in found["hashes"]]
        root = _raw(found["root"])
        leaf = sha256(b"\0" + found["event"].encode()).digest()
        if not merkle.verify_inclusion(leaf, found["number"], found["size"], path, root):
            reason = "the hashes do not lead from the event to the root"
        elif found["checkpoint"] is not None and keys:
            checkpoint = open_note(found["checkpoint"], keys)
            signed = (checkpoint.size, checkpoint.root) == (found["size"], root)
            reason = "" if signed else "the checkpoint is of another tree"
    except (NoteError, binascii.Error) as error:
        reason, signed = str(error), False
    return {**found, "holds": not reason, "signed": signed, "reason": reason or None}


def _raw(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def selection(tenant: str, task: str | None, since: datetime | None, before: datetime | None) -> EventSelection:
    """Raises CommandFailed for a task and a time range together."""
    if task is not None and (since or before):
        raise CommandFailed("Give a task or a time range, not both.", USAGE)
    start = micros_from_datetime(since.replace(tzinfo=since.tzinfo or UTC)) if since else 0
    end = micros_from_datetime(before.replace(tzinfo=before.tzinfo or UTC)) if before else 2**62
    return EventSelection(tenant, task, start, end)


def exported(chosen: Settings, file: Path | None, form: str, wanted: EventSelection, output: Path | None) -> None:
    connection = _driver(chosen, file).reader()
    try:
        tx = Tx(connection, connection.begin())
        if wanted.task_id is not None and next(read_events(tx, wanted), None) is None:
            raise CommandFailed(f"The tenant {wanted.tenant} has no event of a task {wanted.task_id}.")
        if form == "prov":
            pieces: Iterator[bytes] = export.write_prov_json(lambda: read_events(tx, wanted))
        else:
            pieces = export.write_otlp_json(read_events(tx, wanted), RunRoots(tx, wanted.tenant).root_of)
        with _sink(output) as sink:
            sink.writelines(pieces)
    finally:
        connection.close()


@contextmanager
def _sink(output: Path | None) -> Iterator[BinaryIO]:
    if output is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    try:
        with output.open("wb") as file:
            yield file
    except OSError as error:
        raise CommandFailed(f"--output {output} cannot be written: {error.strerror}.", USAGE) from None
