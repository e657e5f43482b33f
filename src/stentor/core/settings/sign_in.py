"""Settings of the sign-in of people with an OpenID Connect provider. Source: docs/decisions, 0045."""

from __future__ import annotations

from dataclasses import dataclass

from stentor.core.settings import parsers
from stentor.core.settings.parsers import setting

ROLES_OF_PEOPLE = ("viewer", "operator", "approver", "admin")


def issuer_url(value: str) -> str:
    """Check the URL of a provider: https, or http on this machine. Raises ValueError."""
    if not value:
        return ""
    parts = parsers.split_web_url(value)
    is_safe = parts is not None and (parts.scheme == "https" or parts.hostname in parsers.LOOPBACK_HOSTS)
    is_plain = parts is not None and parts.username is None and not parts.query and not parts.fragment
    if not is_safe or not is_plain or not value.isprintable() or " " in value:
        raise ValueError("must be an https URL such as https://login.example.com/realms/staff")
    return value


def group_roles(value: str) -> tuple[str, ...]:
    """Check `group=role` entries, comma separated; the group `*` is everybody. Raises ValueError."""
    entries = []
    for part in parsers.text_list(value):
        # At the last `=`, because the name of a group may contain others.
        group, _, role = part.rpartition("=")
        if not group.strip() or role.strip() not in ROLES_OF_PEOPLE:
            raise ValueError(f"must be entries such as staff=viewer, with a role of {', '.join(ROLES_OF_PEOPLE)}")
        entries.append(f"{group.strip()}={role.strip()}")
    return tuple(entries)


def scope_list(value: str) -> str:
    """Check the scopes, which are separated by spaces. Raises ValueError without `openid`."""
    if "openid" not in value.split():
        raise ValueError("must contain openid")
    return " ".join(value.split())


@dataclass(frozen=True)
class SignInSettings:
    """The provider with which people sign in to the dashboard; without an issuer they sign in with keys only."""

    issuer: str = setting(
        "SERVICE_OIDC_ISSUER",
        "",
        "URL of the OpenID Connect provider with which people sign in, such as https://login.example.com/realms/staff; "
        "empty means that they sign in with keys.",
        issuer_url,
    )
    client_id: str = setting(
        "SERVICE_OIDC_CLIENT_ID", "", "Client id under which the provider knows this service.", parsers.text
    )
    client_secret: str = setting(
        "SERVICE_OIDC_CLIENT_SECRET",
        "",
        "Secret of this client; empty for a public client, which uses only PKCE.",
        parsers.text,
        secret=True,
    )
    roles: tuple[str, ...] = setting(
        "SERVICE_OIDC_ROLES",
        (),
        "The role of each group as group=role, comma separated; the group * is everybody. Roles: viewer, operator, "
        "approver, admin. Somebody in several groups may do what any of their roles may; without a role nobody signs "
        "in.",
        group_roles,
    )
    groups_claim: str = setting(
        "SERVICE_OIDC_GROUPS_CLAIM",
        "groups",
        "Claim with the groups of a person; a dot leads into an object, as in realm_access.roles.",
        parsers.non_blank,
    )
    name_claim: str = setting(
        "SERVICE_OIDC_NAME_CLAIM",
        "email",
        "Claim with the name under which a person's work is recorded. It must not change.",
        parsers.non_blank,
    )
    scopes: str = setting(
        "SERVICE_OIDC_SCOPES",
        "openid email profile",
        "Scopes that are requested, separated by spaces; some providers need `groups` for the groups.",
        scope_list,
    )
    label: str = setting(
        "SERVICE_OIDC_LABEL", "single sign-on", "Name of the provider on the button of the sign-in page.", parsers.text
    )
    tenant: str = setting(
        "SERVICE_OIDC_TENANT", "default", "Tenant of the people who sign in with the provider.", parsers.non_blank
    )
