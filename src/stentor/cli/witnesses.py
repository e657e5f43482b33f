"""The witnesses whose signatures `stentor provenance verify` asks for, and what they say themselves."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import httpx

from stentor.cli.output import USAGE, CommandFailed, notice
from stentor.core.settings import Settings
from stentor.domains.provenance.audit.checkpoint_claims import CheckpointClaim, parse_claim
from stentor.domains.provenance.audit.verification import WitnessPolicy
from stentor.domains.provenance.signed_note import NoteError, NoteVerifier, cosigned_at, parse_witness_key
from stentor.domains.provenance.witness.client import WitnessTarget, parse_targets
from stentor.domains.provenance.witness.wire import MAX_BODY_BYTES, checkpoint_path

SECONDS = 10.0


class Asked(NamedTuple):
    """`targets` are the configured ones, which can be asked for what they signed."""

    witnessing: WitnessPolicy
    targets: list[WitnessTarget]


def chosen(settings: Settings, given: list[str], *, own: bool) -> Asked:
    """Those that were given, all of which must have signed; else, for the folder's own log, the configured ones."""
    if given:
        named = [_witness(text) for text in given]
        return Asked(WitnessPolicy(named, len({one.text for one in named})), [])
    targets = parse_targets(settings.witnesses) if own else []
    return Asked(WitnessPolicy([one.verifier for one in targets], settings.witness_quorum if targets else 0), targets)


def fetched(asked: Asked, keys: list[NoteVerifier]) -> list[CheckpointClaim]:
    """The newest checkpoint that each witness signed, from itself: the database cannot leave it out.

    One that cannot be reached is told and counts as one that says nothing.
    """
    found: list[CheckpointClaim] = []
    for target in asked.targets:
        for key in keys:
            note = _newest(target, key.name)
            if note is None:
                continue
            if _signed(note, target):
                found.append(parse_claim(note, keys, target.url, asked.witnessing.witnesses))
            else:
                notice(f"What {target.url} answered is not signed by the witness {target.name}.", "yellow")
    return found


def _newest(target: WitnessTarget, origin: str) -> str | None:
    try:
        with httpx.Client(trust_env=False, timeout=SECONDS) as http:
            answer = http.get(f"{target.url}/{checkpoint_path(origin)}")
    except httpx.HTTPError as error:
        notice(f"The witness {target.name} cannot be asked ({type(error).__name__}).", "yellow")
        return None
    if answer.status_code != 200 or len(answer.content) > MAX_BODY_BYTES:
        notice(f"The witness {target.name} shows no checkpoint of {origin} ({answer.status_code}).", "yellow")
        return None
    return answer.text


def _signed(note: str, target: WitnessTarget) -> bool:
    try:
        return cosigned_at(note, target.verifier) is not None
    except NoteError:
        return False


def _witness(text: str) -> NoteVerifier:
    path = Path(text)
    try:
        return parse_witness_key((path.read_text("utf-8") if path.is_file() else text).strip())
    except OSError as error:
        raise CommandFailed(f"--witness {text} cannot be read: {error.strerror}.", USAGE) from None
    except (NoteError, UnicodeDecodeError) as error:
        raise CommandFailed(f"--witness {text} is no key of a witness: {error}.", USAGE) from None
