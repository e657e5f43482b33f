"""Permissions of new files in a vault: as open as their folder, within the umask of the program's start.

The start's umask and not the current one, because a program that hosts a vault may make its own files private.
"""

from __future__ import annotations

import os
import stat

# Setting the umask is the only way to read it. At import, because another thread could create a file in between.
STARTUP_UMASK = os.umask(0o077)
os.umask(STARTUP_UMASK)


def inherited_mode(folder: int, wanted: int) -> int:
    """Return the mode for a new file in a folder (a descriptor), so that a readable vault stays readable."""
    return wanted & stat.S_IMODE(os.fstat(folder).st_mode) & ~STARTUP_UMASK
