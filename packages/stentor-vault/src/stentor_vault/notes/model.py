"""What a vault is: files with bytes, a state that can be compared, and changes that lose nobody's work.

How a vault plugin fails. No message holds what the plugin answered, nor the key it was asked with.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Protocol

import msgspec

from stentor_vault.errors import Conflict, InvalidRequest, NotFound, ServiceUnavailable, Timeout

ANY_STATE = "*"
"""As an expected state: whatever is there, or nothing."""
NO_FILE = ""
"""As an expected state: no file."""
MAX_NOTE_BYTES = 20 * 1024 * 1024


class VaultUnavailable(ServiceUnavailable):
    """The vault cannot be reached: its folder is gone, its disk full, its plugin down."""


class NoSuchNote(NotFound):
    """The vault has no file at this path."""


class NoteChanged(Conflict):
    """The file is not in the state that the change was made for. `current` is its hash, empty for no file."""

    code = "NOTE_CHANGED"

    def __init__(self, path: str, current: str) -> None:
        super().__init__(f"{path!r} was changed meanwhile; read it again.", {"path": path, "content_hash": current})
        self.current = current


class NameTaken(Conflict):
    """Another file of the folder has this name in other letters, which some systems cannot tell apart."""


class NoteTooLarge(InvalidRequest):
    """The file is larger than a note may be."""


class Stat(msgspec.Struct, frozen=True):
    """A file of the vault; times in microseconds, the size in bytes."""

    path: str
    size: int
    modified_at: int
    created_at: int


class Note(msgspec.Struct, frozen=True):
    """A file with its bytes, exactly as they are on disk."""

    stat: Stat
    content: bytes

    @property
    def path(self) -> str:
        return self.stat.path

    @property
    def hash(self) -> str:
        return content_hash(self.content)


class FileChange(msgspec.Struct, frozen=True):
    """What a write or delete did: the file afterwards (None when it is gone) and the bytes before (None for none)."""

    stat: Stat | None
    previous: bytes | None


def content_hash(content: bytes) -> str:
    """SHA-256 in hex."""
    return hashlib.sha256(content).hexdigest()


class Vault(Protocol):
    """A tree of notes. Paths are relative and in NFC; every method may raise InvalidPath and VaultUnavailable.

    `expected` is the state that a change is made for: a content hash, ANYTHING or NOTHING. A change
    for another state than the present one raises NoteChanged and does nothing.
    """

    async def read(self, path: str) -> Note:
        """Raises NoSuchNote."""
        ...

    async def write(self, path: str, content: bytes, expected: str = ANY_STATE) -> FileChange:
        """The whole file at once, or nothing of it; makes its folders. Raises NoteChanged, NameTaken."""
        ...

    async def delete(self, path: str, expected: str = ANY_STATE) -> FileChange:
        """Into the vault's trash. Raises NoSuchNote, NoteChanged."""
        ...

    async def list_folder(self, folder: str = "") -> list[str]:
        """One level: names in order, those of folders end in a slash. Raises NoSuchNote for an unknown folder."""
        ...

    async def walk(self, folder: str = "") -> list[Stat]:
        """Every file below the folder, in the order of the paths; none for an unknown folder."""
        ...

    async def check(self) -> None:
        """Whether the vault can be used now."""
        ...


def matches_state(expected: str, present: bytes | None) -> bool:
    """Whether the present bytes (None for no file) are the expected state."""
    if expected == ANY_STATE:
        return True
    return expected == (NO_FILE if present is None else content_hash(present))


def iter_ancestors(path: str) -> Iterator[str]:
    """`a/b/c.md`: `a`, then `a/b`."""
    parts = path.split("/")[:-1]
    for end in range(1, len(parts) + 1):
        yield "/".join(parts[:end])


class VaultUnreachable(VaultUnavailable):
    """Nobody answers at the vault plugin's address, or the connection broke off."""

    code, status = "VAULT_UNREACHABLE", 502


class VaultKeyRejected(VaultUnavailable):
    """The vault plugin does not know the key that it was asked with; the operator has to set NOTES_API_KEY."""

    code, status = "VAULT_KEY_REFUSED", 502


class VaultProtocolError(VaultUnavailable):
    """The vault plugin answered what it never should: a failure of its own, a redirect, no JSON where JSON is due."""

    code, status = "VAULT_BROKEN", 502


class VaultTimeout(Timeout, VaultUnavailable):
    """The vault plugin took longer than it may. Whether a change was made is not known."""
