"""Names of records that people choose and that stand in addresses: keys, schedules."""

from __future__ import annotations

import re

from stentor.core.errors import InvalidRequest

_PATTERN = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")


def check_name(name: str) -> None:
    """Raise InvalidRequest for a text that is no such name."""
    if not _PATTERN.fullmatch(name):
        raise InvalidRequest(
            "name: must be 1 to 63 characters of a-z, 0-9, `_`, `-` and `.`, beginning with a letter or digit"
        )
