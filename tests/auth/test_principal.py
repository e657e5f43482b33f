"""What a principal may do."""

from __future__ import annotations

import pytest

from stentor.auth.principal import PERMISSIONS, Permission, Principal, Role, RoleRegistry
from stentor.core.clock import DAY, MINUTE
from stentor.core.errors import Forbidden


@pytest.mark.parametrize("held", PERMISSIONS)
@pytest.mark.parametrize("wanted", PERMISSIONS)
def test_a_permission_covers_itself_and_admin_covers_all(held: str, wanted: str) -> None:
    principal = Principal("ann", "agent", frozenset((held,)))
    allowed = held in (wanted, "admin")
    assert principal.may(wanted) is allowed
    if not allowed:
        with pytest.raises(Forbidden, match=wanted):
            principal.require(wanted)


def test_without_permissions_nothing_is_allowed() -> None:
    nobody = Principal("ann", "admin", frozenset())
    assert not any(nobody.may(permission) for permission in PERMISSIONS)


@pytest.mark.parametrize(
    ("role", "permissions", "bound"),
    [("agent", {"read", "write"}, True), ("agent", {"admin"}, False), ("admin", {"read"}, False)],
)
def test_only_an_agent_without_admin_is_bound_to_its_own_agents(
    role: Role, permissions: set[Permission], bound: bool
) -> None:
    principal = Principal("ann", role, frozenset(permissions))
    assert principal.is_bound_agent is bound


def test_an_approver_counts_for_a_day_from_the_moment_that_it_could_approve_no_more() -> None:
    now = 100 * DAY
    roles = RoleRegistry(lambda: now)
    ann, bob = (Principal(name, "admin", frozenset(("admin",))) for name in ("ann", "bob"))
    roles.register([ann])
    roles.set_role(bob, is_active=True, expires_at=now + MINUTE)
    lost_at = now + MINUTE
    # Neither a revocation after the expiry nor a later change prolongs it.
    roles.set_role(bob, is_active=False, expires_at=lost_at, changed_at=lost_at + MINUTE)
    roles.set_role(Principal("bob", "viewer", frozenset()), is_active=False, expires_at=None, changed_at=now + DAY)
    now = lost_at + DAY - 1
    assert not roles.is_only_approver(ann)
    now = lost_at + DAY
    assert roles.is_only_approver(ann)
