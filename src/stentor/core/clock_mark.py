"""What the clock said at the last look, in a file: so the next process sees whether it was set while none ran.

The file has a time of the database's clock and one of the clock since the boot of this machine, which nobody can set,
with the id of the boot. After another boot, or on another machine, the two cannot be compared and nothing is known.
"""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
log = logging.getLogger(__name__)


class ClockLook(msgspec.Struct, frozen=True):
    """`now` is what the clock said, `begun` the time since the boot just before; both in microseconds."""

    boot_id: str
    begun: int
    now: int


class ClockMark:
    """The last reading of the clock. Fails open: without a file that can be used, no jump is found."""

    def __init__(self, path: Path, boot_id: str | None = None) -> None:
        self._path = path
        self._boot_id = boot_id or _read_boot_id()

    def read(self) -> tuple[int, int] | None:
        """Return `begun` and `now` of the last look, None unless it was made since the same boot."""
        try:
            look = msgspec.json.decode(self._path.read_bytes(), type=ClockLook)
        except (OSError, msgspec.MsgspecError):
            return None
        return (look.begun, look.now) if look.boot_id == self._boot_id else None

    def write(self, begun: int, now: int) -> None:
        """Store a look. Not synced to the disk: after a crash of the machine the boot is another one."""
        if self._boot_id is None:
            return
        new = self._path.with_suffix(".new")
        try:
            new.write_bytes(msgspec.json.encode(ClockLook(self._boot_id, begun, now)))
            new.replace(self._path)
        except OSError as error:
            log.warning("clock: mark not written path=%s error=%s", self._path, error)


def _read_boot_id() -> str | None:
    """Return the id of this boot, None where the system has none."""
    try:
        return _BOOT_ID.read_text().strip() or None
    except OSError:
        return None
