"""Wires who may call: keys that are made at runtime, and people who sign in with a provider.

The budgets of keys go to the LLM gateway, the roles of both to the role registry.
"""

from __future__ import annotations

from stentor.auth.oidc.provider import OidcProvider
from stentor.bootstrap.infrastructure import Infrastructure
from stentor.bootstrap.parts.llm import LlmParts
from stentor.domains.keys.service import KeyService
from stentor.domains.llm import costs
from stentor.domains.people.service import PeopleService


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


def open_people(infra: Infrastructure) -> PeopleService:
    """Their sessions are found once a ring of keys is attached to the service."""
    settings = infra.settings
    provider = OidcProvider(settings.oidc, infra.clock) if settings.oidc.issuer else None
    return PeopleService(
        infra.db, infra.runlog, infra.clock, infra.roles, settings.oidc, provider, settings.dashboard.session_hours
    )
