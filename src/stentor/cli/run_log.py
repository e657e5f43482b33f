"""What `stentor provenance` reads besides the service: the database itself, keys, checkpoints kept elsewhere.

The witnesses whose signatures `stentor provenance verify` asks for, and what they say themselves.

`stentor provenance accept`: what it reads, and the acceptance that it leaves for the service.
"""

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
from typing import Any, BinaryIO, NamedTuple

import httpx

from stentor import bootstrap
from stentor.bootstrap.parts.provenance import external_state
from stentor.cli.local_service import require_current_schema, require_database
from stentor.cli.output import EXIT_USAGE, CommandFailed, print_notice
from stentor.core import settings
from stentor.core.clock import micros_from_datetime
from stentor.core.db import Tx
from stentor.core.db.driver import Driver
from stentor.core.db.sqlite import SqliteDriver
from stentor.core.errors import RunLogDamaged, StartRefused
from stentor.core.security import redaction
from stentor.core.security.redaction import Redactor
from stentor.core.settings import Settings
from stentor.domains.provenance import export, keyfile, merkle, signing_guard, store
from stentor.domains.provenance.audit import verification
from stentor.domains.provenance.audit.checkpoint_claims import CheckpointClaim, parse_claim
from stentor.domains.provenance.audit.findings import AuditReport
from stentor.domains.provenance.audit.verification import WitnessPolicy
from stentor.domains.provenance.export import EventSelection, RunRoots, read_events
from stentor.domains.provenance.signed_note import (
    NoteError,
    NoteVerifier,
    cosigned_at,
    open_note,
    parse_verifier,
    parse_witness_key,
    split_notes,
)
from stentor.domains.provenance.signing_guard import Acceptance
from stentor.domains.provenance.witness.client import WitnessTarget, parse_targets
from stentor.domains.provenance.witness.wire import MAX_BODY_BYTES, checkpoint_path


def load_run_log_settings(data_dir: Path | None) -> Settings:
    chosen = settings.load(os.environ, {"SERVICE_DATA_DIR": data_dir})
    redactor = Redactor()
    redactor.add_secret(chosen.storage.database_url)
    redaction.configure_logging("warning", redactor)
    return chosen


def load_verifiers(chosen: Settings, given: list[str], file: Path | None) -> list[NoteVerifier]:
    """Those that were given; else the folder's own key, if it is there."""
    if given:
        return [_read_verifier(text) for text in given]
    path = keyfile.key_path(chosen)
    if file is not None and chosen.provenance.key is None:
        path = file.parent / "keys" / path.name
    try:
        own = keyfile.find_signer(path)
    except StartRefused:
        own = None  # whoever may not read the private half verifies with the public one
    found = own.verifier if own else keyfile.find_verifier(path)
    return [found] if found else []


def _read_verifier(text: str) -> NoteVerifier:
    try:
        path = Path(text)
        return parse_verifier(path.read_text("utf-8") if path.is_file() else text)
    except OSError as error:
        raise CommandFailed(f"--verifier {text} cannot be read: {error.strerror}.", EXIT_USAGE) from None
    except (NoteError, UnicodeDecodeError) as error:
        raise CommandFailed(f"--verifier {text} is no verifier key: {error}.", EXIT_USAGE) from None


def read_checkpoint_files(
    paths: list[Path], keys: list[NoteVerifier], witnesses: Sequence[NoteVerifier] = ()
) -> list[CheckpointClaim]:
    """The checkpoints in these files, one appended after the other."""
    found: list[CheckpointClaim] = []
    for path in paths:
        try:
            notes = split_notes(path.read_text("utf-8"))
        except OSError as error:
            raise CommandFailed(f"--checkpoints {path} cannot be read: {error.strerror}.", EXIT_USAGE) from None
        except UnicodeDecodeError:
            raise CommandFailed(f"--checkpoints {path} is not text.", EXIT_USAGE) from None
        if not notes:
            raise CommandFailed(f"--checkpoints {path} has no checkpoint.", EXIT_USAGE)
        found += [parse_claim(note, keys, str(path), witnesses) for note in notes]
    return found


def read_local_checkpoints(
    chosen: Settings, keys: list[NoteVerifier], witnesses: Sequence[NoteVerifier] = ()
) -> list[CheckpointClaim]:
    """The newest checkpoints that the installation keeps outside its database: whoever rewrote all of the database
    left these. Raises CommandFailed for a file that cannot be read.
    """
    places = external_state(chosen)
    try:
        notes = [(f"keys/{places.state_path.name}", places.read_checkpoint())]
        if places.checkpoint_file is not None:
            notes.append((str(places.checkpoint_file), places.read_last_delivered()))
    except RunLogDamaged as error:
        raise CommandFailed(error.message) from None
    return [parse_claim(note, keys, place, witnesses) for place, note in notes if note is not None]


def verify_database(
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
        raise CommandFailed(f"--file {file} is no file.", EXIT_USAGE)
    require_current_schema(driver)
    return driver


def verify_proof(found: dict[str, Any], keys: list[NoteVerifier]) -> dict[str, Any]:
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


def parse_selection(tenant: str, task: str | None, since: datetime | None, before: datetime | None) -> EventSelection:
    """Raises CommandFailed for a task and a time range together."""
    if task is not None and (since or before):
        raise CommandFailed("Give a task or a time range, not both.", EXIT_USAGE)
    start = micros_from_datetime(since.replace(tzinfo=since.tzinfo or UTC)) if since else 0
    end = micros_from_datetime(before.replace(tzinfo=before.tzinfo or UTC)) if before else 2**62
    return EventSelection(tenant, task, start, end)


def export_events(chosen: Settings, file: Path | None, form: str, wanted: EventSelection, output: Path | None) -> None:
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
        raise CommandFailed(f"--output {output} cannot be written: {error.strerror}.", EXIT_USAGE) from None


WITNESS_TIMEOUT_SECONDS = 10.0


class WitnessSelection(NamedTuple):
    """`targets` are the configured ones, which can be asked for what they signed."""

    policy: WitnessPolicy
    targets: list[WitnessTarget]


def select_witnesses(settings: Settings, given: list[str], *, is_own_log: bool) -> WitnessSelection:
    """Those that were given, all of which must have signed; else, for the folder's own log, the configured ones."""
    if given:
        named = [_read_witness_key(text) for text in given]
        return WitnessSelection(WitnessPolicy(named, len({one.text for one in named})), [])
    targets = parse_targets(settings.provenance.witnesses) if is_own_log else []
    return WitnessSelection(
        WitnessPolicy([one.verifier for one in targets], settings.provenance.witness_quorum if targets else 0), targets
    )


def fetch_witness_checkpoints(asked: WitnessSelection, keys: list[NoteVerifier]) -> list[CheckpointClaim]:
    """The newest checkpoint that each witness signed, from itself: the database cannot leave it out.

    One that cannot be reached is told and counts as one that says nothing.
    """
    found: list[CheckpointClaim] = []
    for target in asked.targets:
        for key in keys:
            note = _fetch_checkpoint(target, key.name)
            if note is None:
                continue
            if _is_cosigned(note, target):
                found.append(parse_claim(note, keys, target.url, asked.policy.witnesses))
            else:
                print_notice(f"What {target.url} answered is not signed by the witness {target.name}.", "yellow")
    return found


def _fetch_checkpoint(target: WitnessTarget, origin: str) -> str | None:
    try:
        with httpx.Client(trust_env=False, timeout=WITNESS_TIMEOUT_SECONDS) as http:
            answer = http.get(f"{target.url}/{checkpoint_path(origin)}")
    except httpx.HTTPError as error:
        print_notice(f"The witness {target.name} cannot be asked ({type(error).__name__}).", "yellow")
        return None
    if answer.status_code != 200 or len(answer.content) > MAX_BODY_BYTES:
        print_notice(f"The witness {target.name} shows no checkpoint of {origin} ({answer.status_code}).", "yellow")
        return None
    return answer.text


def _is_cosigned(note: str, target: WitnessTarget) -> bool:
    try:
        return cosigned_at(note, target.verifier) is not None
    except NoteError:
        return False


def _read_witness_key(text: str) -> NoteVerifier:
    path = Path(text)
    try:
        return parse_witness_key((path.read_text("utf-8") if path.is_file() else text).strip())
    except OSError as error:
        raise CommandFailed(f"--witness {text} cannot be read: {error.strerror}.", EXIT_USAGE) from None
    except (NoteError, UnicodeDecodeError) as error:
        raise CommandFailed(f"--witness {text} is no key of a witness: {error}.", EXIT_USAGE) from None


MAX_REASON_LENGTH = 1_000


class AcceptanceResult(NamedTuple):
    """`objection` is what stood against the tree, `made_key` the verifier key of a new key."""

    acceptance: Acceptance
    objection: str
    made_key: str | None


def find_objection(chosen: Settings) -> tuple[str | None, int, str]:
    """What stands against signing, and the size and root (in hex) of the tree. Raises CommandFailed, StentorError."""
    require_database(chosen)
    driver = bootstrap.open_driver(chosen)
    require_current_schema(driver)
    signer, kept = keyfile.find_signer(keyfile.key_path(chosen)), external_state(chosen)
    verifier = signer.verifier if signer else None
    state, delivered = kept.read_checkpoint(), kept.read_last_delivered()
    connection = driver.reader()
    try:
        tx = Tx(connection, connection.begin())
        found = signing_guard.find_objection(tx, verifier, state, delivered, kept)
        size = store.tree_size(tx)
        return found, size, store.root_at(tx, size).hex()
    finally:
        connection.close()


def accept_run_log(chosen: Settings, reason: str, *, new_key: bool) -> AcceptanceResult:
    """Leave the acceptance for the service. Raises CommandFailed, StentorError."""
    if not 0 < len(reason.strip()) <= MAX_REASON_LENGTH:
        raise CommandFailed(f"--reason needs 1 to {MAX_REASON_LENGTH} characters.")
    against, size, root = find_objection(chosen)
    if against is None:
        raise CommandFailed("There is nothing to accept: the run log is what was signed before.")
    key, made = _ensure_key(chosen, new_key=new_key)
    acceptance = Acceptance(reason.strip(), size, root, key.text)
    try:
        external_state(chosen).save_acceptance(acceptance)
    except OSError as error:
        raise CommandFailed(f"The acceptance cannot be written: {error.strerror}.") from None
    return AcceptanceResult(acceptance, against, key.text if made else None)


def _ensure_key(chosen: Settings, *, new_key: bool) -> tuple[NoteVerifier, bool]:
    path = keyfile.key_path(chosen)
    signer = keyfile.find_signer(path)
    if signer is not None:
        return signer.verifier, False
    if not new_key:
        raise CommandFailed(f"The key {path} is gone: restore it, or begin a new one with --new-key.")
    if keyfile.public_key_path(path).exists():
        raise CommandFailed(
            f"{keyfile.public_key_path(path)} is the public half of the key that is gone, and verifies what it signed: "
            "move it to another name first."
        )
    return keyfile.ensure_signer(path, chosen.provenance.origin).verifier, True
