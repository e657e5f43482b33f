"""Patterns of callers. RE2 takes time in proportion to the text, whatever the pattern: none can hang the server.

For that it has no references back and no looking around; a pattern with those is refused.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import re2

from stentor.surfaces.vault.logic.faults import BadLogic

LONGEST, LARGEST = 500, 1_000
"""Of a pattern: characters, and steps of the program that it becomes."""
_MEMORY = 4 * 1024 * 1024


def regexp(pattern: Any, text: Any) -> bool:
    """Whether the pattern is found anywhere in the text; false for what are no texts. Raises BadLogic."""
    if not isinstance(pattern, str) or not isinstance(text, str):
        return False
    return _compiled(pattern).search(text) is not None


def glob(pattern: Any, text: Any) -> bool:
    """Whether the whole text is like the pattern, whose `*` stands for any signs of one line."""
    if not isinstance(pattern, str) or not isinstance(text, str):
        return False
    return _compiled(".*".join(map(re2.escape, pattern.split("*")))).fullmatch(text) is not None


@lru_cache(256)
def _compiled(pattern: str) -> Any:
    if len(pattern) > LONGEST:
        raise BadLogic(f"A pattern has {LONGEST} characters at most.")
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MEMORY
    try:
        compiled = re2.compile(pattern, options)
    except re2.error as error:
        raise BadLogic(f"The pattern {pattern!r} cannot be used: {_reason(error)}.") from None
    if compiled.programsize > LARGEST:
        raise BadLogic(f"The pattern {pattern!r} repeats too much.")
    return compiled


def _reason(error: Exception) -> str:
    reason = error.args[0] if error.args else "it is malformed"
    return reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
