"""What an archive holds: one Parquet file for each table, whose columns are those of the database. Pure.

Texts, integers and numbers keep their values; times in microseconds become timestamps of UTC, and convert back exactly.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from stentor.core.db.sql import Row
from stentor.core.runlog import EVENT_COLUMNS

ColumnKind = Literal["text", "integer", "number", "time"]
EVENTS_TABLE = "events"


class ArchivedTable(msgspec.Struct, frozen=True, eq=False):
    """A table with its columns in the order of a row."""

    name: str
    columns: dict[str, ColumnKind]


def _columns(text: str) -> dict[str, ColumnKind]:
    """Return the columns of a list of names; a mark behind a name gives its kind, none means text."""
    kinds: dict[str, ColumnKind] = {"#": "integer", "~": "number", "@": "time"}
    return {name.rstrip("#~@"): kinds.get(name[-1], "text") for name in text.split()}


EVENT_KINDS: dict[str, ColumnKind] = {"happened_at": "time", "duration_ms": "integer"}
TASKS = ArchivedTable(
    "tasks",
    _columns(
        "tenant task_id status type title priority# assigned_agent runtime_kind created_at@ queued_at@ "
        "first_started_at@ start_time@ completion_time@ timeout_seconds# epoch# outcome_class learning_eligible# "
        "performance~ provenance_id head_id parent_task_id session_id submitted_by submitted_status body_hash "
        "required_capabilities agent_preference metadata input result error"
    ),
)
EVENTS = ArchivedTable(
    EVENTS_TABLE,
    {"number": "integer", **{name: EVENT_KINDS.get(name, "text") for name in EVENT_COLUMNS}},
)
STEPS = ArchivedTable(
    "steps",
    _columns(
        "tenant task_id key event_id name kind state position# epoch# encoding value value_hash size# error "
        "started_at@ ended_at@ wake_at@ reference options handled# together"
    ),
)
SIGNALS = ArchivedTable("signals", _columns("tenant task_id event_id name value"))
GRADES = ArchivedTable(
    "grades", _columns("tenant task_id epoch# agent_id grade~ comment graded_by graded_at@ learned#")
)
CALLS = ArchivedTable(
    "model_calls",
    _columns(
        "call_id tenant task_id key_name agent_id operation provider model outcome input_tokens# output_tokens# "
        "cached_tokens# estimated# cost# latency_ms# happened_at@ team"
    ),
)
TABLES = (TASKS, EVENTS, STEPS, SIGNALS, GRADES, CALLS)


class TaskArchive(msgspec.Struct, frozen=True):
    """An archive as the database knows it. `name` is its folder, `event_id` the event that recorded it.

    `ended_at` is None while it is being written; times in microseconds. `first_at` and `last_at` are when its first and
    its last task were submitted.
    """

    number: int
    name: str
    tenant: str
    tasks: int
    events: int
    size_bytes: int
    first_at: int | None
    last_at: int | None
    started_at: int
    ended_at: int | None
    event_id: str | None


class ArchivedBatch(msgspec.Struct):
    """The rows of tasks that are archived together, by the name of their table.

    `value_hashes` are the contents of steps that may become unused, `leaves` the hash of each number in the run log.
    """

    tenant: str
    task_ids: list[str]
    rows: dict[str, list[Row]]
    value_hashes: set[str]
    leaves: dict[int, str]

    def count(self, table: ArchivedTable) -> int:
        return len(self.rows.get(table.name, ()))


class ArchiveResult(msgspec.Struct):
    """What a run archived. `skipped` counts tasks whose events differ from the signed run log, or with damage."""

    archives: int = 0
    tasks: int = 0
    events: int = 0
    size_bytes: int = 0
    skipped: int = 0


class ArchiveChanged(Exception):
    """A task of the archive changed after its files were written: they do not count, and the tasks stay."""
