"""Wires the people who sign in with a provider."""

from __future__ import annotations

from stentor.auth.oidc.provider import OidcProvider
from stentor.bootstrap.infrastructure import Infrastructure
from stentor.domains.people.service import PeopleService


def open_people(infra: Infrastructure) -> PeopleService:
    """Their sessions are found once a ring of keys is attached to the service."""
    settings = infra.settings
    provider = OidcProvider(settings.oidc, infra.clock) if settings.oidc.issuer else None
    return PeopleService(
        infra.db, infra.runlog, infra.clock, infra.roles, settings.oidc, provider, settings.dashboard.session_hours
    )
