"""What must be true of every database of Stentor, whatever was killed, and how to see that it is.

Black-box: reads a SQLite file or a PostgreSQL database, never through Stentor's own code; but the run log is
verified by the program itself, because that it can is what has to be true.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests import forkserver

Rows = Callable[[str], list[dict[str, Any]]]
ENDS = {
    "task_completed": "completed",
    "task_failed": "failed",
    "task_aborted": "aborted",
    "task_cancelled": "cancelled",
}
BEGINS = {"task_started": "executing", "task_requeued": "queued", "retried": "queued"} | ENDS
BEGINS |= {"task_waiting": "waiting", "task_resumed": "queued"}
"""What a task is after an event of each kind, and, below, what it must have been before."""
AFTER = {
    "executing": ("queued",),
    "queued": ("executing", "failed", "aborted", "waiting"),
    "waiting": ("executing",),
    "completed": ("executing",),
    "failed": ("queued", "executing"),
    "aborted": ("queued", "executing", "waiting"),
    "cancelled": ("queued", "executing", "waiting"),
}
JOURNAL = ("step_started", "step_completed", "step_failed", "signal_received")
"""Events beside the chain of a task: each follows any earlier one."""
HOUR = 3_600_000_000
EVER = -1
Key = tuple[str, str]


def check(database: Path | str, accepted: Iterable[str] = (), unknown: Iterable[str] = ()) -> list[str]:
    """All that is wrong, in sentences. `accepted` tasks must be there and ended, `unknown` ones may be missing."""
    with closing(read_only(database)) as connection:
        rows = partial(query, connection)
        tasks = {(t["tenant"], t["task_id"]): t for t in rows("select * from tasks")}
        events: dict[Key, list[dict[str, Any]]] = defaultdict(list)
        for event in rows("select * from events where task_id is not null order by event_id"):
            events[event["tenant"], event["task_id"]].append(event)
        roots = {e["event_id"] for e in rows("select event_id from events where event_type = 'message_started'")}
        found = [*_accepted(tasks, set(accepted)), *_strangers(tasks, events, {*accepted, *unknown})]
        for key, task in tasks.items():
            found += _trail(task, events.get(key, []), {*roots, None})
        found += [*_learning(rows, tasks), *_counts(rows, tasks), *_messages(rows)]
    return [*found, *_provenance(database)]


def query(connection: Any, sql: str) -> list[dict[str, Any]]:
    cursor = connection.execute(sql)
    names = [column[0] for column in cursor.description]
    return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]


def read_only(database: Path | str) -> Any:
    """A connection to a file of SQLite or an address of PostgreSQL."""
    if isinstance(database, Path):
        return sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    import psycopg

    return psycopg.connect(database)


def _provenance(database: Path | str) -> Iterator[str]:
    """The run log verifies: what no number reached before the end has its mark."""
    words = ["--file", str(database)] if isinstance(database, Path) else []
    address = {} if words else {"SERVICE_DATABASE_URL": str(database)}
    environ = {"PATH": os.environ["PATH"], **address}
    done = forkserver.run_text(["provenance", "verify", "--json", *words], environ, 300)
    report = json.loads(done.stdout) if done.stdout else {"error": done.stderr}
    for finding in report.get("findings", [report]):
        yield f"the run log does not verify: {finding}"
    if (done.returncode == 0) != (report.get("findings") == []):
        yield f"the verification ended with {done.returncode} and found {report}"


def _accepted(tasks: dict[Key, dict[str, Any]], accepted: set[str]) -> Iterator[str]:
    known = {task_id: task["status"] for (_, task_id), task in tasks.items()}
    for task_id in accepted:
        if task_id not in known:
            yield f"{task_id} was accepted and is lost"
        elif known[task_id] not in ENDS.values():
            yield f"{task_id} was accepted and is still {known[task_id]}"


def _strangers(tasks: dict[Key, Any], events: dict[Key, Any], submitted: set[str]) -> Iterator[str]:
    for _, task_id in events.keys() - tasks.keys():
        yield f"{task_id} has events and no row"
    for _, task_id in tasks:
        if submitted and task_id not in submitted:
            yield f"{task_id} was never submitted"


def _trail(task: dict[str, Any], events: list[dict[str, Any]], roots: set[str | None]) -> Iterator[str]:
    """Of one task: its events are one chain that says what its row says; it begins by itself or with a message."""
    name, kinds = task["task_id"], Counter(event["event_type"] for event in events)
    known = {event["event_id"] for event in events}
    for event in events:
        if event["event_type"] in JOURNAL and event["parent_id"] not in known:
            yield f"{name} has a {event['event_type']} that follows nothing"
    events = [event for event in events if event["event_type"] not in JOURNAL]
    if not events or events[0]["event_type"] != "prompt_received" or events[0]["parent_id"] not in roots:
        yield f"{name} has no beginning"
        return
    if any(later["parent_id"] != earlier["event_id"] for earlier, later in pairwise(events)):
        yield f"{name} has a broken chain of events"
    if (task["provenance_id"], task["head_id"]) != (events[0]["event_id"], events[-1]["event_id"]):
        yield f"{name} does not point to its first and last event"
    if kinds["task_started"] != task["epoch"]:
        yield f"{name} was started {kinds['task_started']} times in {task['epoch']} attempts"
    epochs = [json.loads(e["metadata"])["epoch"] for e in events if e["event_type"] == "task_started"]
    if epochs != sorted(set(epochs)):
        yield f"{name} has epochs that go back: {epochs}"
    yield from _moves(name, events)
    yield from _ends(task, events)


def _moves(name: str, events: list[dict[str, Any]]) -> Iterator[str]:
    """One attempt at a time, an end is an end, and after a cancellation comes nothing."""
    state = "queued"
    for event in events:
        retried = _retried(event)
        after = BEGINS.get("retried" if retried else event["event_type"])
        if after is None:
            continue
        if state not in AFTER[after] or (retried and state == "executing"):
            yield f"{name} became {after} when it was {state}"
        state = after


def _retried(event: dict[str, Any]) -> bool:
    """Whether it gives its task another life, in which it may teach again."""
    return event["event_type"] == "routing_decision" and "retry_count" in event["metadata"]


def _ends(task: dict[str, Any], events: list[dict[str, Any]]) -> Iterator[str]:
    name = task["task_id"]
    ends = [ENDS[event["event_type"]] for event in events if event["event_type"] in ENDS]
    lives = 1 + sum(map(_retried, events))
    if len(ends) > lives:
        yield f"{name} ended {len(ends)} times"
    if task["status"] in ENDS.values() and ends[-1:] != [task["status"]] and task["submitted_status"] != "failed":
        yield f"{name} is {task['status']}, its events say {ends[-1:]}"
    if (task["status"] in ENDS.values()) != (task["completion_time"] is not None):
        yield f"{name} is {task['status']} with completion time {task['completion_time']}"
    kinds = [event["event_type"] for event in events]
    last_life = max((at for at, event in enumerate(events) if _retried(event)), default=0)
    taught = kinds[last_life:].count("learning_updated")
    if task["status"] == "completed" and taught != 1 - task["learning_pending"]:
        yield f"{name} taught {taught} lessons"


def _learning(rows: Rows, tasks: dict[Key, dict[str, Any]]) -> Iterator[str]:
    """Each lesson once: history, weights, trust and tasks agree."""
    history = rows("select * from hebbian_history order by entry_id")
    causes = Counter(row["cause"] for row in rows("select cause from trust_changes where cause is not null"))
    lessons = Counter(f"task:{row['task_id']}:{row['epoch']}" for row in history)
    for cause in causes.keys() | lessons.keys():
        if causes[cause] != 1 or lessons[cause] != 1:
            yield f"{cause} was learned {lessons[cause]} times and moved trust {causes[cause]} times"
    for row in history:
        task = tasks.get((row["tenant"], row["task_id"]))
        if task is None or row["epoch"] > task["epoch"]:
            yield f"{row['task_id']} taught in attempt {row['epoch']}, which it never had"
    yield from _eligible(history, tasks)
    yield from _weights(rows, history)
    yield from _trust(rows)


def _eligible(history: list[dict[str, Any]], tasks: dict[Key, dict[str, Any]]) -> Iterator[str]:
    """Whoever may be learned from was, in its last attempt; nobody else."""
    taught = {(row["tenant"], row["task_id"], row["epoch"]) for row in history}
    for key, task in tasks.items():
        wanted = bool(task["learning_eligible"]) and not task["learning_pending"]
        if ((*key, task["epoch"]) in taught) != wanted:
            yield f"{key[1]} {'should have' if wanted else 'should not have'} taught in attempt {task['epoch']}"


def _weights(rows: Rows, history: list[dict[str, Any]]) -> Iterator[str]:
    """Each lesson goes on from where another ended, in whatever order their ids are, and the weight is the last end."""
    lessons: dict[Key, list[dict[str, Any]]] = defaultdict(list)
    for row in history:
        lessons[row["agent_id"], row["task_type"]].append(row)
    for row in rows("select * from hebbian_weights"):
        of_it = lessons[row["agent_id"], row["task_type"]]
        before, after = (Counter(lesson[f"weight_{when}"] for lesson in of_it) for when in ("before", "after"))
        loose = list((after - before).elements())
        follows = loose == [row["weight"]] if loose else not of_it or row["weight"] in after
        if row["samples"] != len(of_it) or not follows:
            told = f"the weight {row['weight']} of {row['agent_id']}, {row['task_type']}"
            yield f"{told} does not follow from its {len(of_it)} lessons, which end in {loose}"


def _trust(rows: Rows) -> Iterator[str]:
    changes = {
        (row["tenant"], row["entity_id"], row["happened_at"], row["score"])
        for row in rows("select * from trust_changes")
    }
    for row in rows("select * from trust_scores"):
        if (row["tenant"], row["entity_id"], row["updated_at"], row["score"]) not in changes:
            yield f"the trust {row['score']} of {row['entity_id']} is no change's"


def _counts(rows: Rows, tasks: dict[Key, dict[str, Any]]) -> Iterator[str]:
    wanted = Counter(
        (t["tenant"], hour, t["status"], t["assigned_agent"] or "")
        for t in tasks.values()
        for hour in (EVER, t["created_at"] // HOUR)
    )
    kept = {(r["tenant"], r["hour"], r["status"], r["agent_id"]): r["n"] for r in rows("select * from task_counts")}
    for key in wanted.keys() | kept.keys():
        if wanted[key] != kept.get(key, 0):
            yield f"{key} counts {kept.get(key, 0)} tasks and has {wanted[key]}"


def _messages(rows: Rows) -> Iterator[str]:
    """Each message begins once, ends at most once, and its events say what its row says."""
    said: dict[str, Counter[str]] = defaultdict(Counter)
    for event in rows("select event_type, metadata from events where event_type like 'message_%'"):
        said[json.loads(event["metadata"])["message_id"]][event["event_type"]] += 1
    messages = {row["message_id"]: row for row in rows("select * from atp_messages")}
    for message_id in said.keys() - messages.keys():
        yield f"message {message_id} has events and no row"
    for message_id, row in messages.items():
        kinds = said[message_id]
        if kinds["message_received"] != 1 or kinds["message_started"] != row["epoch"]:
            yield f"message {message_id} has the events {dict(kinds)} and the epoch {row['epoch']}"
        ends = {name: kinds[f"message_{name}"] for name in ("completed", "failed")}
        if ends != {name: int(row["status"] == name) for name in ends}:
            yield f"message {message_id} is {row['status']}, its events say {ends}"
