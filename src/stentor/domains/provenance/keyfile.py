"""The key that signs checkpoints: `keys/provenance.key` in the data folder, mode 0600; its public half beside it."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from stentor.core.errors import StartRefused
from stentor.core.settings import Settings
from stentor.domains.provenance.signed_note import (
    NoteError,
    NoteSigner,
    NoteVerifier,
    generate_signer,
    parse_signer,
    parse_verifier,
)

_OTHERS = 0o077


def key_path(settings: Settings) -> Path:
    return settings.provenance.key or settings.storage.data_dir / "keys" / "provenance.key"


def public_key_path(key: Path) -> Path:
    return key.with_suffix(".pub")


def find_signer(path: Path) -> NoteSigner | None:
    """The key, or None when there is none. Raises StartRefused when the file cannot be used."""
    try:
        text = path.read_text("utf-8")
        if path.stat().st_mode & _OTHERS:
            raise StartRefused(f"{path} signs checkpoints, and others can read it: chmod 600 {path}")
        return parse_signer(text)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StartRefused(f"{path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        reason = error if isinstance(error, NoteError) else "it is not text"
        raise StartRefused(f"{path} holds no key of signed notes ({reason}): restore it, or move it away.") from None


def ensure_signer(path: Path, origin: str = "") -> NoteSigner:
    """The key, made at its first use under the name `origin`. Raises StartRefused."""
    try:
        signer = find_signer(path)
        if signer is None:
            made = generate_signer(origin)
            _write(path, made.text, 0o600)
            signer = find_signer(path)
        if signer is None:
            raise StartRefused(f"{path} went away while it was read.")
        _write(public_key_path(path), signer.verifier.text, 0o644)
    except OSError as error:
        raise StartRefused(f"{path} cannot be made: {error.strerror}.") from None
    except NoteError as error:
        raise StartRefused(f"SERVICE_PROVENANCE_ORIGIN cannot be the name of a log: {error}.") from None
    if origin and signer.verifier.name != origin:
        raise StartRefused(
            f"{path} signs for {signer.verifier.name!r}, and SERVICE_PROVENANCE_ORIGIN is {origin!r}: "
            "unset it, or name another file in SERVICE_PROVENANCE_KEY."
        )
    return signer


def find_verifier(path: Path) -> NoteVerifier | None:
    """The public half, for whoever may not read the private one; None when there is none. Raises StartRefused."""
    try:
        return parse_verifier(public_key_path(path).read_text("utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StartRefused(f"{public_key_path(path)} cannot be read: {error.strerror}.") from None
    except ValueError:
        raise StartRefused(f"{public_key_path(path)} holds no verifier key.") from None


def _write(path: Path, text: str, mode: int) -> None:
    """Written beside it and linked into place, so that another process sees none or a whole one."""
    if path.exists():
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            os.fchmod(file.fileno(), mode)  # the public half is for others, whatever the umask
            file.write(f"{text}\n")
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):  # another process was first: its key is the one
            os.link(beside, path)
    finally:
        beside.unlink()
