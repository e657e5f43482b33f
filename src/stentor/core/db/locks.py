"""Names and numbers of the locks that processes on one database take against each other.

Each name says what the lock protects; a transaction holds it through `Tx.lock` or `Database.write(locks=...)`.
SQLite has one writing process, so there these locks cost nothing and exclude no one. Leadership of background jobs
is in `leader`.
"""

from __future__ import annotations


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
    """Make sure that a task with a client-chosen id is stored once, and gets no subtask once it was cancelled."""
    return f"task {tenant} {task_id}"


def waits_lock(tenant: str, task_id: str) -> str:
    """Protect what a task waits for: the suspension of the task and the end of a wait must see each other."""
    return f"waits {tenant} {task_id}"


def limit_lock(tenant: str, key: str) -> str:
    """Protect the count of the tasks that run under a limit: two claims must not take the same room."""
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

# Session locks of PostgreSQL. The number is "Stentor" in ASCII and a counter, so that no other program takes the same.
SCHEMA_LOCK_ID = 0x53_74_65_6E_74_6F_72_01
"""Held during a schema upgrade, so that only one process upgrades."""
SERVING_LOCK_ID = 0x53_74_65_6E_74_6F_72_02
"""Held shared by every connected writer; a copy of the database holds it exclusively."""
