"""Chooses tasks for the next archive and reads their rows, in one snapshot of the database."""

from __future__ import annotations

import logging
from collections.abc import Sequence, Set

from stentor.core import jsontext
from stentor.core.db import Tx
from stentor.core.db.driver import Row
from stentor.core.deflate import inflate
from stentor.core.errors import CorruptRecord
from stentor.core.runlog import leaf_hash
from stentor.domains.contents import store as contents
from stentor.domains.provenance.store import newest_checkpoint
from stentor.domains.retention import store
from stentor.domains.retention.model import CALLS, EVENTS, GRADES, SIGNALS, STEPS, TASKS, ArchivedBatch
from stentor.domains.steps.model import decode_value

MAX_TASKS = 200
MAX_EVENTS = 4_000
MAX_BYTES = 32 << 20
"""Limits of an archive, whose rows one transaction deletes: it occupies the database's writer for about 0.1 s. A single
task may exceed them.
"""
log = logging.getLogger(__name__)
_ID = list(TASKS.columns).index("task_id")
_STEP_COLUMNS = list(STEPS.columns)
_KEY, _TASK, _ENCODING, _VALUE, _HASH = map(_STEP_COLUMNS.index, ("key", "task_id", "encoding", "value", "value_hash"))


def choose_tasks(
    tx: Tx, tenant: str, before: int, after: store.Position, limit: int, without: Set[str] = frozenset()
) -> tuple[list[str], store.Position | None]:
    """Return at most `limit` tasks that may be archived, oldest first, and the position after them; None at the end."""
    chosen: list[str] = []
    size = events = 0
    while True:
        window = store.list_window(tx, tenant, before, after, store.WINDOW)
        archivable = store.list_archivable(tx, tenant, [task_id for task_id, _ in window], before)
        for task_id, created_at in window:
            if task_id in archivable and task_id not in without:
                size, events = size + archivable[task_id][0], events + archivable[task_id][1]
                if chosen and (len(chosen) == limit or events > MAX_EVENTS or size > MAX_BYTES):
                    return chosen, after
                chosen.append(task_id)
            after = created_at, task_id
        if len(window) < store.WINDOW:
            return chosen, None


def read_batch(tx: Tx, tenant: str, task_ids: Sequence[str]) -> ArchivedBatch:
    """Read all rows of tasks, but leave out tasks whose events are not those of the signed run log, or with damage.

    An archive must not make a changed event look as if it had been recorded like that.
    """
    checkpoint = newest_checkpoint(tx)
    rows = store.read_events(tx, tenant, task_ids)
    excluded = _find_unproven(rows, 0 if checkpoint is None else checkpoint.size)
    steps, damaged = _read_steps(tx, tenant, [task_id for task_id in task_ids if task_id not in excluded])
    excluded |= damaged
    tasks = [row for row in store.read_rows(tx, TASKS, tenant, task_ids) if row[_ID] not in excluded]
    kept = [row[_ID] for row in tasks]
    values: dict[str, list[Row]] = {TASKS.name: tasks}
    values |= {table.name: store.read_rows(tx, table, tenant, kept) for table in (SIGNALS, GRADES, CALLS)}
    values[STEPS.name] = [row for row in steps if row[_TASK] not in damaged]
    hashes = {str(row[_HASH]) for row in values[STEPS.name] if row[_HASH] is not None}
    events = sorted((row for row in rows if row[4] not in excluded), key=lambda row: row[1])
    values[EVENTS.name] = [row[1:] for row in events]
    return ArchivedBatch(tenant, kept, values, hashes, {row[1]: row[0] for row in events})


def _find_unproven(rows: Sequence[Row], signed: int) -> set[str]:
    """Return the tasks with an event that differs from its leaf, or is not among the first `signed` ones."""
    unproven: set[str] = set()
    for leaf, number, *event in rows:
        if number is None or number >= signed:
            unproven.add(str(event[2]))
        elif leaf_hash(tuple(event)).hex() != leaf:
            log.error("archive: event differs from the run log, task stays task_id=%s event_id=%s", event[2], event[0])
            unproven.add(str(event[2]))
    return unproven


def _read_steps(tx: Tx, tenant: str, task_ids: Sequence[str]) -> tuple[list[Row], set[str]]:
    """Return the steps with their values in the row, and the tasks with a value that cannot be read."""
    deflated = store.read_deflated_values(tx, tenant, task_ids)
    steps: list[Row] = []
    damaged = set[str]()
    for row in store.read_rows(tx, STEPS, tenant, task_ids):
        values = list(row)
        key, what = (str(row[_TASK]), str(row[_KEY])), f"The value of step {row[_KEY]!r}"
        try:
            if row[_HASH] is not None:
                values[_VALUE] = _read_content(tx, tenant, row, what)
            elif key in deflated:
                values[_VALUE] = inflate(deflated[key], what).decode()
        except (CorruptRecord, UnicodeDecodeError) as error:
            # Deleting the row would lose what can still be repaired.
            log.error("archive: damaged step, task stays task_id=%s error=%s", row[_TASK], error)
            damaged.add(str(row[_TASK]))
        steps.append(tuple(values))
    return steps, damaged


def _read_content(tx: Tx, tenant: str, row: Row, what: str) -> str:
    """Return a long value as the JSON that a short one is stored as."""
    content = contents.read(tx, tenant, str(row[_HASH]), what)
    return content.decode() if row[_ENCODING] == "json" else jsontext.dump(decode_value("base64", content))
