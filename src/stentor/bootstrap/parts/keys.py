"""Wires the keys that are made at runtime: their budgets go to the LLM gateway, their roles to the role registry."""

from __future__ import annotations

from stentor.bootstrap.infrastructure import Infrastructure
from stentor.bootstrap.parts.llm import LlmParts
from stentor.domains.keys.service import KeyService
from stentor.domains.llm import costs


def open_keys(infra: Infrastructure, llm: LlmParts) -> KeyService:
    """The keys are found once a ring of keys is attached to the service."""
    return KeyService(
        infra.db,
        infra.runlog,
        infra.clock,
        infra.roles,
        costs.parse_budgets,
        lambda entries: llm.ledger.set_key_budgets(
            budget for tenant, of_keys in entries.items() for budget in costs.parse_budgets(of_keys, "key", tenant)
        ),
        infra.settings.memory.vault_names,
    )
