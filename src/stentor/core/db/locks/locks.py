"""Names and numbers of the locks that processes on one database take against each other.

Each name says what the lock protects; a transaction holds it through `Tx.lock` or `Database.write(locks=...)`.
SQLite has one writing process, so there these locks cost nothing and exclude no one. Leadership of background jobs
is in `leader`.
"""

from __future__ import annotations

import zlib


def agent_lock(agent_id: str) -> str:
    """Protect the learned state of an agent: routing weights, trust and alerts."""
    return f"agent {agent_id}"


def model_lock(tenant: str, model: str) -> str:
    """Protect the learned state of a provider's model."""
    return f"model {tenant} {model}"


def pair_lock(tenant: str, low: str, high: str) -> str:
    """Protect the connection between two agents."""
    return f"pair {tenant} {low} {high}"


def task_lock(tenant: str, task_id: str) -> str:
    """Make sure that a task with a client-chosen id is stored once, and gets no subtask after it was cancelled."""
    return f"task {tenant} {task_id}"


def waits_lock(tenant: str, task_id: str) -> str:
    """Protect what a task waits for: the suspension of the task and the end of a wait must see each other."""
    return f"waits {tenant} {task_id}"


def limit_lock(tenant: str, key: str) -> str:
    """Protect the count of the tasks that run under a limit: two claims must not take the same slot."""
    return f"limit {tenant} {key}"


def idempotency_lock(*scope: str) -> str:
    """Make sure that a request with an Idempotency-Key is executed once."""
    return " ".join(("key", *scope))


def webhook_lock(subscription_id: str) -> str:
    """Protect the order of a webhook's deliveries."""
    return f"webhook {subscription_id}"


def schedule_lock(tenant: str, name: str) -> str:
    """Protect a schedule: its next run and a change of it must see each other."""
    return f"schedule {tenant} {name}"


def session_lock(tenant: str, session_id: str) -> str:
    """Protect a session: the places of its items, its counts, and which task holds it."""
    return f"session {tenant} {session_id}"


MESSAGES_LOCK = "messages"
"""Protects the choice of the next message."""
RUN_LOG_NUMBERS_LOCK = "numbers"
"""Protects the numbers of the run log's events."""

# PostgreSQL keeps locks with one key and with two keys apart, so that no name can be the lock for everything.
EVERYTHING_LOCK, NAMED_LOCKS = 7_305_000, 7_305_002
"""Locks of a transaction: the key of the lock for everything, and the first of the two keys of a named lock."""


def to_number(name: str) -> int:
    """Return the second key of a named lock."""
    # Two names with the same number only exclude each other without need.
    # PostgreSQL's form with two keys takes signed integers of 32 bits.
    return zlib.crc32(name.encode()) - 2**31


def lock_calls(lock_space: int, numbers: set[int] | None) -> list[tuple[str, int]]:
    """Return the calls that take the named locks with these numbers at the begin of a transaction; None is all.

    Each as its text, with `{}` for its one argument, and that argument. A transaction with named locks shares the lock
    for everything, whose key is `lock_space`; one that locks everything holds it exclusively.
    """
    if numbers is None:
        return [("pg_advisory_xact_lock({})", lock_space)]
    # Sorted, so that all processes take the locks in the same order and cannot deadlock.
    named = f"pg_advisory_xact_lock({NAMED_LOCKS}, {{}})"
    return [("pg_advisory_xact_lock_shared({})", lock_space), *((named, number) for number in sorted(numbers))]


# Session locks of PostgreSQL. The number is "Stentor" in ASCII and a counter, so that no other program uses the same
# one.
SCHEMA_LOCK_ID = 0x53_74_65_6E_74_6F_72_01
"""Held during a schema upgrade, so that only one process upgrades."""
SERVING_LOCK_ID = 0x53_74_65_6E_74_6F_72_02
"""Held shared by every connected writer; a copy of the database holds it exclusively."""
