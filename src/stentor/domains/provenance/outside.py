"""What is kept outside the database, where database writes alone do not reach: the newest checkpoint that this machine
signed or verified, the operator's checkpoint file, and an acceptance of another history.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from stentor.core import filesystem
from stentor.core.errors import RunLogDamaged
from stentor.domains.provenance.notes import NoteError, read_note, split_notes

STATE, ACCEPTANCE = "provenance.state", "provenance.accepted"
TAIL_BYTES = 65_536
"""Of the checkpoint file, which grows for ever, only the end is read."""


class Acceptance(msgspec.Struct, frozen=True):
    """That the operator takes this tree for the history from now on, to be signed with this key (its public half).

    Written by `stentor provenance accept`, carried out by the service, which records it in the run log.
    """

    reason: str
    size: int
    root: str
    key: str


@dataclass(frozen=True)
class Outside:
    """The files. Those of the state are in `keys` of the data folder; `checkpoint_file` is where the operator says."""

    folder: Path
    checkpoint_file: Path | None

    @property
    def state_path(self) -> Path:
        return self.folder / STATE

    @property
    def acceptance_path(self) -> Path:
        return self.folder / ACCEPTANCE

    def state(self) -> str | None:
        """The kept note; None when there is none yet. Raises RunLogDamaged when it cannot be read."""
        return _text(self.state_path)

    def keep(self, note: str) -> None:
        """Raises RunLogDamaged: what is not kept must not be signed."""
        try:
            filesystem.write_atomically(self.state_path, note)
        except OSError as error:
            raise RunLogDamaged(f"{self.state_path.name} cannot be written: {error.strerror}.") from error

    def last_delivered(self) -> str | None:
        """The last whole note of the checkpoint file; None without a file. Raises RunLogDamaged when it has none.

        The last one, not the largest: after an accepted restore the file goes on with smaller trees.
        """
        path = self.checkpoint_file
        if path is None:
            return None
        try:
            tail = _tail(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise RunLogDamaged(f"The checkpoint file {path.name} cannot be read: {error.strerror}.") from error
        for note in reversed(split_notes(tail)):
            if _is_note(note):  # a crash may have cut the last one
                return note
        if not tail.strip():
            return None
        raise RunLogDamaged(f"The checkpoint file {path.name} has no checkpoint at its end.")

    def acceptance(self) -> Acceptance | None:
        """Raises RunLogDamaged when it cannot be read."""
        text = _text(self.acceptance_path)
        if text is None:
            return None
        try:
            return msgspec.json.decode(text, type=Acceptance)
        except msgspec.DecodeError:
            raise RunLogDamaged(f"keys/{self.acceptance_path.name} is malformed: remove it.") from None

    def accept(self, acceptance: Acceptance) -> None:
        """Raises OSError."""
        filesystem.write_atomically(self.acceptance_path, msgspec.json.encode(acceptance).decode())

    def forget_acceptance(self) -> None:
        self.acceptance_path.unlink(missing_ok=True)


def _text(path: Path) -> str | None:
    try:
        return path.read_text("utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise RunLogDamaged(f"keys/{path.name} cannot be read: {reason}.") from error


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
        return file.read().decode("utf-8", "replace")


def _is_note(text: str) -> bool:
    try:
        read_note(text)
    except NoteError:
        return False
    return True
