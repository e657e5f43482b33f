"""Names of what a transaction may have to hold against other processes: see `Tx.lock`.

The advisory locks that processes on one PostgreSQL database take.
"""

from __future__ import annotations


def agent_lock(agent_id: str) -> str:
    """What is learned about an agent: its weights, its trust, the alerts about it."""
    return f"agent {agent_id}"


def model_lock(tenant: str, model: str) -> str:
    """What is learned about a model of a provider."""
    return f"model {tenant} {model}"


def pair_lock(tenant: str, low: str, high: str) -> str:
    """The connection between two agents."""
    return f"pair {tenant} {low} {high}"


def task_lock(tenant: str, task_id: str) -> str:
    """That a task with an id of its sender's choice is stored once."""
    return f"task {tenant} {task_id}"


def idempotency_lock(*scope: str) -> str:
    """That a request with an Idempotency-Key is done once."""
    return " ".join(("key", *scope))


def webhook_lock(subscription_id: str) -> str:
    """The order of a webhook's deliveries."""
    return f"webhook {subscription_id}"


MESSAGES_LOCK = "messages"
"""Which message is the next."""
RUN_LOG_NUMBERS_LOCK = "numbers"
"""The numbers of the run log's events."""


SCHEMA_LOCK_ID = 0x53_74_65_6E_74_6F_72_01
"""Held while the schema is upgraded, so that it is done once."""
SERVING_LOCK_ID = 0x53_74_65_6E_74_6F_72_02
"""Shared by all who write as long as they are connected; whoever copies the database has it alone."""
