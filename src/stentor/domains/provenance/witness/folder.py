"""The folder of a witness: its key, and of each log the newest checkpoint that it signed.

A witness that forgot what it signed may sign a fork, so a key without its state is refused.
"""

from __future__ import annotations

import fcntl
import os
from hashlib import sha256
from pathlib import Path

import msgspec

from stentor.core import filesystem
from stentor.core.errors import StartRefused
from stentor.domains.provenance.cosignatures import Cosigner, make_cosigner, read_cosigner
from stentor.domains.provenance.notes import NoteError

KEY, STATE, LOCK = "witness.key", "witness.state", "witness.lock"
_OTHERS = 0o077


class WitnessFolder:
    """Held from construction to `close`. Raises StartRefused."""

    def __init__(self, path: Path, name: str) -> None:
        self._path = path
        try:
            path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StartRefused(f"{path} cannot be used: {error.strerror}.") from None
        try:
            self._hold()
            self.cosigner = self._key(name)
            self._notes = self._state()
        except BaseException:
            self.close()
            raise

    def newest(self, origin: str) -> str | None:
        """The newest note that was signed of this log."""
        return self._notes.get(origin)

    def keep(self, origin: str, note: str) -> None:
        """Returns when it is on the disk. Raises OSError, and then nothing is kept."""
        notes = self._notes | {origin: note}
        filesystem.write_atomically(self._path / STATE, msgspec.json.encode(notes).decode())
        self._notes = notes

    def keep_evidence(self, origin: str, submission: str) -> Path:
        """A signed submission that does not extend what was signed: it proves that the log was rewritten."""
        path = self._path / f"evidence-{sha256(origin.encode()).hexdigest()[:16]}.txt"
        filesystem.write_atomically(path, submission)
        return path

    def close(self) -> None:
        os.close(self._lock)

    def _hold(self) -> None:
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StartRefused(f"{self._path} is in use by another witness.") from None

    def _key(self, name: str) -> Cosigner:
        path = self._path / KEY
        if not path.exists():
            if (self._path / STATE).exists():
                raise StartRefused(f"{path} is gone, and its state is there: restore it, or begin another folder.")
            if not name:
                raise StartRefused("A new witness needs a name: --name, such as example.com/witness.")
            made = _checked(lambda: make_cosigner(name))
            filesystem.write_atomically(self._path / STATE, "{}")
            filesystem.write_atomically(path, f"{made.text}\n")
        if path.stat().st_mode & _OTHERS:
            raise StartRefused(f"{path} is secret, and others can read it: chmod 600 {path}")
        cosigner = _checked(lambda: read_cosigner(path.read_text("utf-8").strip()))
        if name and cosigner.verifier.name != name:
            raise StartRefused(f"The witness in {self._path} is {cosigner.verifier.name}, not {name}.")
        return cosigner

    def _state(self) -> dict[str, str]:
        path = self._path / STATE
        try:
            return msgspec.json.decode(path.read_bytes(), type=dict[str, str])
        except FileNotFoundError:
            raise StartRefused(
                f"{path} is gone: without it this witness could sign a log that was rewritten. Restore it, or begin "
                "another folder with another key."
            ) from None
        except (OSError, msgspec.DecodeError):
            raise StartRefused(f"{path} cannot be read: restore it.") from None


def _checked(make: object) -> Cosigner:
    try:
        return make()  # type: ignore[operator, no-any-return]
    except (NoteError, OSError, UnicodeDecodeError) as error:
        raise StartRefused(f"The key of the witness cannot be used: {error}.") from None
