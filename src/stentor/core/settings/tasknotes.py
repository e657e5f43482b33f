"""Settings: tasks as notes of the vault."""

from __future__ import annotations

from dataclasses import dataclass

from stentor.core.settings import kinds
from stentor.core.settings.kinds import setting


@dataclass(frozen=True)
class TaskNoteSettings:
    task_notes: bool = setting(
        "SERVICE_TASK_NOTES",
        True,
        "Whether every task is mirrored as a note in the vault's folder `Tasks`.",
        kinds.flag,
    )
    task_inbox: bool = setting(
        "SERVICE_TASK_INBOX", True, "Whether notes in the vault's folder `Tasks/Inbox` become tasks.", kinds.flag
    )
    inbox_capabilities: tuple[str, ...] = setting(
        "SERVICE_TASK_INBOX_CAPABILITIES",
        (),
        "Capabilities that notes in the inbox may ask for, with commas; empty is all. Nobody knows who wrote a note.",
        kinds.items,
    )
    inbox_quiet: float = setting(
        "SERVICE_INBOX_QUIET_SECONDS",
        3.0,
        "How long a note in the inbox must lie unchanged before it becomes a task.",
        kinds.number(0, 3600, float),
    )
