"""Names of what a transaction may have to hold against other processes: see `Tx.lock`."""

from __future__ import annotations


def of_agent(agent_id: str) -> str:
    """What is learned about an agent: its weights, its trust, the alerts about it."""
    return f"agent {agent_id}"


def of_model(tenant: str, model: str) -> str:
    """What is learned about a model of a provider."""
    return f"model {tenant} {model}"


def of_pair(tenant: str, low: str, high: str) -> str:
    """The connection between two agents."""
    return f"pair {tenant} {low} {high}"


def of_task(tenant: str, task_id: str) -> str:
    """That a task with an id of its sender's choice is stored once."""
    return f"task {tenant} {task_id}"


def of_key(*scope: str) -> str:
    """That a request with an Idempotency-Key is done once."""
    return " ".join(("key", *scope))


def of_webhook(subscription_id: str) -> str:
    """The order of a webhook's deliveries."""
    return f"webhook {subscription_id}"


MESSAGES = "messages"
"""Which message is the next."""
NUMBERS = "numbers"
"""The numbers of the run log's events."""
