"""Files of the service are for its user alone: the mode of what this process makes from now on."""

from __future__ import annotations

import os

OTHERS = 0o077
"""Bits of a mode that let others in."""


def only_for_owner() -> None:
    """From now on files and folders that this process and its children make are closed to other users."""
    os.umask(OTHERS)
