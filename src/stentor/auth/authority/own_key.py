"""The key that the service signs its own receipts with: `keys/receipts.key` in the data folder, mode 0600."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

from joserfc.errors import JoseError
from joserfc.jwk import OKPKey

from stentor.auth.authority.keys import generate
from stentor.core import jsontext
from stentor.core.errors import InvalidRequest, StartRefused

_OTHERS = 0o077


def key_file(data_dir: Path) -> Path:
    return data_dir / "keys" / "receipts.key"


def find(data_dir: Path) -> OKPKey | None:
    """The key, or None when it was never used. Raises StartRefused when the file cannot be used."""
    path = key_file(data_dir)
    try:
        data = path.read_bytes()
        if path.stat().st_mode & _OTHERS:
            raise StartRefused(f"{path} signs receipts, and others can read it: chmod 600 {path}")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StartRefused(f"{path} cannot be read: {error.strerror}.") from None
    return _read(path, data)


def find_or_make(data_dir: Path) -> OKPKey:
    """The key, made at its first use. Raises StartRefused."""
    found = find(data_dir)
    if found is None:
        try:
            _make(key_file(data_dir))
        except OSError as error:
            raise StartRefused(f"{key_file(data_dir)} cannot be made: {error.strerror}.") from None
        found = find(data_dir)
    if found is None:
        raise StartRefused(f"{key_file(data_dir)} went away while it was read.")
    return found


def _make(path: Path) -> None:
    """Written beside it and linked into place, so that another process sees no key or a whole one."""
    path.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(jsontext.encode(generate().as_dict(private=True)) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):  # another process was first: its key is the one
            os.link(beside, path)
    finally:
        beside.unlink()


def _read(path: Path, data: bytes) -> OKPKey:
    try:
        key = OKPKey.import_key(jsontext.decode(data))
        if key.is_private and key.curve_name == "Ed25519":
            return key
    except (InvalidRequest, JoseError, ValueError, TypeError, KeyError, AttributeError):
        pass
    raise StartRefused(
        f"{path} holds no Ed25519 private key (JWK): restore it, or move it away to have a new one made."
    )
