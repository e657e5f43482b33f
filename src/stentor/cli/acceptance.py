"""`stentor provenance accept`: what it reads, and the acceptance that it leaves for the service."""

from __future__ import annotations

from typing import NamedTuple

from stentor import bootstrap
from stentor.bootstrap.provenance import outside
from stentor.cli.local import require_database, require_head
from stentor.cli.output import CommandFailed
from stentor.core.db import Tx
from stentor.core.settings import Settings
from stentor.domains.provenance import keyfile, signing_guard, store
from stentor.domains.provenance.signed_note import NoteVerifier
from stentor.domains.provenance.signing_guard import Acceptance

MOST_REASON = 1_000


class Accepted(NamedTuple):
    """`objection` is what stood against the tree, `made_key` the verifier key of a new key."""

    acceptance: Acceptance
    objection: str
    made_key: str | None


def objection(chosen: Settings) -> tuple[str | None, int, str]:
    """What stands against signing, and the size and root (in hex) of the tree. Raises CommandFailed, StentorError."""
    require_database(chosen)
    driver = bootstrap.open_driver(chosen)
    require_head(driver)
    signer, kept = keyfile.find_signer(keyfile.key_path(chosen)), outside(chosen)
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


def accept(chosen: Settings, reason: str, *, new_key: bool) -> Accepted:
    """Leave the acceptance for the service. Raises CommandFailed, StentorError."""
    if not 0 < len(reason.strip()) <= MOST_REASON:
        raise CommandFailed(f"--reason needs 1 to {MOST_REASON} characters.")
    against, size, root = objection(chosen)
    if against is None:
        raise CommandFailed("There is nothing to accept: the run log is what was signed before.")
    key, made = _key(chosen, new_key=new_key)
    acceptance = Acceptance(reason.strip(), size, root, key.text)
    try:
        outside(chosen).save_acceptance(acceptance)
    except OSError as error:
        raise CommandFailed(f"The acceptance cannot be written: {error.strerror}.") from None
    return Accepted(acceptance, against, key.text if made else None)


def _key(chosen: Settings, *, new_key: bool) -> tuple[NoteVerifier, bool]:
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
    return keyfile.ensure_signer(path, chosen.provenance_origin).verifier, True
