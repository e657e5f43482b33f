"""The files of the signing key: `keys/provenance.key` in the data folder, mode 0600, and the public key beside it.

For the text format of the keys see `signed_note`.
"""

from __future__ import annotations

from pathlib import Path

from stentor.core import filesystem
from stentor.core.errors import StartRefused
from stentor.core.settings import Settings
from stentor.domains.provenance.signing.signed_note import (
    NoteError,
    NoteSigner,
    NoteVerifier,
    generate_signer,
    parse_verifier,
)


def key_path(settings: Settings) -> Path:
    return settings.provenance.key or settings.storage.data_dir / "keys" / "provenance.key"


def public_key_path(key: Path) -> Path:
    return key.with_suffix(".pub")


def find_signer(path: Path) -> NoteSigner | None:
    """Return the key, or None when the file does not exist. Raises StartRefused when the file cannot be used."""
    try:
        text = path.read_text("utf-8")
        if path.stat().st_mode & filesystem.GROUP_OTHER_BITS:
            raise StartRefused(f"{path} signs checkpoints, and other users can read it: chmod 600 {path}")
        return NoteSigner.parse(text)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StartRefused(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        reason = error if isinstance(error, NoteError) else "it is not text"
        raise StartRefused(f"{path} is not a signed-note key ({reason}): restore it, or move it away.") from None


def ensure_signer(path: Path, origin: str = "") -> NoteSigner:
    """Return the key; generate it with the name `origin` at the first use. Raises StartRefused."""
    try:
        signer = find_signer(path)
        if signer is None:
            _create(path, generate_signer(origin).text, 0o600)
            signer = find_signer(path)  # read back: another process may have created the file first
        if signer is None:
            raise StartRefused(f"{path} was removed while it was read.")
        # Each time and not with the key: a key that was restored from a backup may come without it.
        _create(public_key_path(path), signer.verifier.text, 0o644)
    except OSError as error:
        raise StartRefused(f"{path} cannot be created: {error.strerror}.") from None
    except NoteError as error:
        raise StartRefused(f"SERVICE_PROVENANCE_ORIGIN cannot be the name of a log: {error}.") from None
    if origin and signer.verifier.name != origin:
        raise StartRefused(
            f"{path} signs for {signer.verifier.name!r}, and SERVICE_PROVENANCE_ORIGIN is {origin!r}: "
            "unset it, or name another file in SERVICE_PROVENANCE_KEY."
        )
    return signer


def find_verifier(path: Path) -> NoteVerifier | None:
    """Return the public key, which users without access to the private key can read; None without a file.

    Raises StartRefused.
    """
    try:
        return parse_verifier(public_key_path(path).read_text("utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StartRefused(f"{public_key_path(path)} cannot be read: {error.strerror}.") from None
    except ValueError:
        raise StartRefused(f"{public_key_path(path)} is not a verifier key.") from None


def _create(path: Path, text: str, mode: int) -> None:
    # Looked for first: the folder of an existing key may be read-only.
    if not path.exists():
        filesystem.create_once(path, text, mode)
