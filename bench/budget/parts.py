"""Which part of the service a source file, a table or an index belongs to."""

from __future__ import annotations

from functools import cache
from types import FrameType

HTTP, VALIDATION, ROUTING, TASKS = "HTTP", "validation", "routing", "task rows"
EXECUTION, RUN_LOG, TREE, LEARNING = "execution", "run log", "tree", "learning"
WEBHOOKS, NOTES, STREAMS, MODELS = "webhooks", "notes", "live streams", "models"
TRANSACTIONS, LOOP, OTHER = "transactions and commit", "event loop", "other"
PARTS = (
    *(HTTP, VALIDATION, ROUTING, TASKS, EXECUTION, RUN_LOG, TREE, LEARNING),
    *(WEBHOOKS, NOTES, STREAMS, MODELS, TRANSACTIONS, LOOP, OTHER),
)

# The longest prefix of a file's path below `stentor/` decides.
_FOLDERS = {
    "web/": VALIDATION,
    "web/server/": HTTP,
    "web/middleware": HTTP,
    "web/sse": STREAMS,
    "auth/": VALIDATION,
    "surfaces/": HTTP,
    "domains/routing/": ROUTING,
    "domains/registry/": ROUTING,
    "domains/modelrouting/": ROUTING,
    "domains/tasks/": TASKS,
    "domains/sessions/": TASKS,
    "domains/execution/": EXECUTION,
    "domains/steps/": EXECUTION,
    "core/runlog": RUN_LOG,
    "domains/activity/": RUN_LOG,
    "domains/audit/": RUN_LOG,
    "domains/provenance/": TREE,
    "domains/learning/": LEARNING,
    "domains/trust/": LEARNING,
    "domains/webhooks/": WEBHOOKS,
    "domains/tasknotes/": NOTES,
    "domains/notes/": NOTES,
    "domains/memory/": NOTES,
    "core/live": STREAMS,
    "core/fanout/": STREAMS,
    "domains/llm/": MODELS,
    "core/http_client/": MODELS,
    "domains/": OTHER,
    "bootstrap/": OTHER,
}
_TABLES = {
    "events_waiting": TREE,
    "provenance": TREE,
    "events": RUN_LOG,
    "tasks_running": TASKS,
    "task_search": TASKS,
    "task_notes": NOTES,
    "note": NOTES,
    "memory": NOTES,
    "task": TASKS,
    "idempotency": TASKS,
    "webhook": WEBHOOKS,
    "hebbian": LEARNING,
    "sentinel": LEARNING,
    "trust": LEARNING,
    "evidence": LEARNING,
    "llm": MODELS,
    "model": ROUTING,
    "agents": ROUTING,
}


def of_table(name: str) -> str:
    """The part of a table or an index, by the longest prefix of its name."""
    name = name.removeprefix("sqlite_autoindex_")
    fitting = [prefix for prefix in _TABLES if name.startswith(prefix)]
    return _TABLES[max(fitting, key=len)] if fitting else OTHER


def of_stack(frame: FrameType | None) -> str:
    """The part that a thread works for: its innermost frame in a file of a part.

    Tools of all parts (encoding, ids, the database port) count for their caller. Rows that a commit inserts for all
    count for their table.
    """
    inside = LOOP
    while frame is not None:
        code = frame.f_code
        part = _of_file(code.co_filename)
        if part == TRANSACTIONS:
            if code.co_name in ("add", "many"):
                # What is inserted is in a local variable of the driver.
                found = frame.f_locals.get("table" if code.co_name == "add" else "sql")
                if found is not None:
                    return of_table(found.table if code.co_name == "add" else min(found.tables))
            inside = TRANSACTIONS
        elif code.co_name == "leaf_hash":
            return TREE
        elif part is not None:
            return part
        frame = frame.f_back
    return inside


@cache
def _of_file(path: str) -> str | None:
    """None for a tool, which counts for its caller."""
    _, found, below = path.rpartition("/stentor/")
    if not found:
        return None
    if below.startswith("core/db/"):
        return TRANSACTIONS
    fitting = [prefix for prefix in _FOLDERS if below.startswith(prefix)]
    return _FOLDERS[max(fitting, key=len)] if fitting else None
