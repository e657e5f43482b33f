"""What a run log is verified against: verifier keys, checkpoints stored outside the database, and witnesses.

The verification itself is in `run_log`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import httpx

from stentor.bootstrap.storage import external_state as stored_outside
from stentor.cli.input_files import read_key_text, reading
from stentor.cli.output import EXIT_USAGE, CommandFailed, print_notice
from stentor.core.errors import RunLogDamaged, StartRefused
from stentor.core.settings import Settings
from stentor.domains.provenance.audit.checkpoint_claims import CheckpointClaim, parse_claim
from stentor.domains.provenance.audit.verification import WitnessPolicy
from stentor.domains.provenance.signing import keyfile
from stentor.domains.provenance.signing.signed_note import (
    NoteError,
    NoteVerifier,
    cosigned_at,
    parse_verifier,
    parse_witness_key,
    split_notes,
)
from stentor.domains.provenance.witness.client import WitnessTarget, parse_targets
from stentor.domains.provenance.witness.wire import MAX_BODY_BYTES, checkpoint_path

WITNESS_TIMEOUT_SECONDS = 10.0


class WitnessSelection(NamedTuple):
    """The witnesses that must have signed; `targets` are the configured ones, which can be queried."""

    policy: WitnessPolicy
    targets: list[WitnessTarget]


def load_verifiers(chosen: Settings, given: list[str], file: Path | None) -> list[NoteVerifier]:
    """Return the given verifier keys, else the one of the data folder (or beside `file`), if it exists."""
    if given:
        return [_read_verifier(text) for text in given]
    path = keyfile.key_path(chosen)
    # A backup of another installation is verified with the key next to it, not with the key of this installation.
    if file is not None and chosen.provenance.key is None:
        path = file.parent / "keys" / path.name
    try:
        signer = keyfile.find_signer(path)
    except StartRefused:
        signer = None  # the public half suffices for users who may not read the private key
    verifier = signer.verifier if signer else keyfile.find_verifier(path)
    return [verifier] if verifier else []


def _read_verifier(text: str) -> NoteVerifier:
    try:
        return parse_verifier(read_key_text("--verifier", text))
    except (NoteError, UnicodeDecodeError) as error:
        raise CommandFailed(f"--verifier {text} is not a verifier key: {error}.", EXIT_USAGE) from None


def read_checkpoint_files(
    paths: list[Path], keys: list[NoteVerifier], witnesses: Sequence[NoteVerifier]
) -> list[CheckpointClaim]:
    """Return all checkpoints in these files; each file is a sequence of notes. Raises CommandFailed."""
    claims: list[CheckpointClaim] = []
    for path in paths:
        try:
            with reading(f"--checkpoints {path}"):
                notes = split_notes(path.read_text("utf-8"))
        except UnicodeDecodeError:
            raise CommandFailed(f"--checkpoints {path} is not a text file.", EXIT_USAGE) from None
        if not notes:
            raise CommandFailed(f"--checkpoints {path} contains no checkpoint.", EXIT_USAGE)
        claims += [parse_claim(note, keys, str(path), witnesses) for note in notes]
    return claims


def read_local_checkpoints(
    chosen: Settings, keys: list[NoteVerifier], witnesses: Sequence[NoteVerifier]
) -> list[CheckpointClaim]:
    """Return the newest checkpoints that the installation stores outside its database.

    An attacker who rewrote the whole database may not have reached these. Raises CommandFailed for unreadable files.
    """
    places = stored_outside(chosen)
    try:
        notes = [(f"keys/{places.state_path.name}", places.read_checkpoint())]
        if places.checkpoint_file is not None:
            notes.append((str(places.checkpoint_file), places.read_last_delivered()))
    except RunLogDamaged as error:
        raise CommandFailed(error.message) from None
    return [parse_claim(note, keys, source, witnesses) for source, note in notes if note is not None]


def select_witnesses(settings: Settings, given: list[str], *, is_own_log: bool) -> WitnessSelection:
    """Return the given witnesses, all of which must have signed; else the configured ones if it is the own log."""
    if given:
        witnesses = [_read_witness_key(text) for text in given]
        return WitnessSelection(WitnessPolicy(witnesses, len({witness.text for witness in witnesses})), [])
    targets = parse_targets(settings.provenance.witnesses) if is_own_log else []
    quorum = settings.provenance.witness_quorum if targets else 0
    return WitnessSelection(WitnessPolicy([target.verifier for target in targets], quorum), targets)


def fetch_witness_checkpoints(selection: WitnessSelection, keys: list[NoteVerifier]) -> list[CheckpointClaim]:
    """Fetch the newest checkpoint that each witness signed, which no change of the database can remove.

    An unreachable witness is reported and contributes no checkpoint.
    """
    claims: list[CheckpointClaim] = []
    for target in selection.targets:
        for key in keys:
            note = _fetch_checkpoint(target, key.name)
            if note is None:
                continue
            # The response is not trusted: it counts only with the signature of the configured witness.
            if _is_cosigned(note, target):
                claims.append(parse_claim(note, keys, target.url, selection.policy.witnesses))
            else:
                print_notice(f"The response of {target.url} is not signed by the witness {target.name}.", "yellow")
    return claims


def _fetch_checkpoint(target: WitnessTarget, origin: str) -> str | None:
    try:
        # Ignores proxies from the environment, as the service does when it calls the witnesses.
        with httpx.Client(trust_env=False, timeout=WITNESS_TIMEOUT_SECONDS) as http:
            response = http.get(f"{target.url}/{checkpoint_path(origin)}")
    except httpx.HTTPError as error:
        print_notice(f"The witness {target.name} is unreachable ({type(error).__name__}).", "yellow")
        return None
    if response.status_code != 200 or len(response.content) > MAX_BODY_BYTES:
        print_notice(
            f"The witness {target.name} has no checkpoint of {origin} (status {response.status_code}).", "yellow"
        )
        return None
    return response.text


def _is_cosigned(note: str, target: WitnessTarget) -> bool:
    try:
        return cosigned_at(note, target.verifier) is not None
    except NoteError:
        return False


def _read_witness_key(text: str) -> NoteVerifier:
    try:
        return parse_witness_key(read_key_text("--witness", text).strip())
    except (NoteError, UnicodeDecodeError) as error:
        raise CommandFailed(f"--witness {text} is not the key of a witness: {error}.", EXIT_USAGE) from None
