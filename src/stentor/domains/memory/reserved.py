"""Folders of the vault where agents do not write: what lies there acts with more authority than theirs."""

from __future__ import annotations

import unicodedata

from stentor.auth.principal import Principal
from stentor.core.errors import Forbidden

TASKS, RECORDS = "tasks", "memory"
"""Notes below `Tasks/Inbox` become tasks, those below `Memory/` are records of the governed memory's namespaces."""


def check_writer(principal: Principal, path: str, *, governed: bool) -> None:
    """Refuse an agent's write below `Tasks/`, and below `Memory/` unless the governed memory admitted it (`governed`).

    Compares as file systems do that fold case. Raises Forbidden.
    """
    if principal.role == "admin":
        return
    top = unicodedata.normalize("NFKC", path).casefold().partition("/")[0].strip()
    if top == TASKS or (top == RECORDS and not governed):
        raise Forbidden(f"Agents do not write to {path.partition('/')[0]!r}: submit a task, or use the memory server.")
