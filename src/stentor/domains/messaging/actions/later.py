"""Zones that the contract has and this version does not, and actions that a zone does not have."""

from __future__ import annotations

from stentor.auth.principal import Permission, Principal
from stentor.core.errors import InvalidRequest, NotBuilt
from stentor.domains.atp.bodies import SHAPES, Body
from stentor.domains.atp.model import ACTION_TYPES, ZONES, Header
from stentor.domains.messaging.model import Action, Closing, Route, Work

LATER: dict[str, Permission] = {"memory": "admin"}
"""Zone to the permission that it will need. The memory stands here for a service that has it switched off."""
PERMISSIONS: dict[str, Permission] = {**LATER, "governance": "admin", "sandbox": "write"}
"""What an action that a zone does not have needs: as much as those that it has."""


def table() -> dict[tuple[str, str], Action]:
    """An action for every pair; the real ones take their places."""
    pairs = ((zone, name) for zone in ZONES for name in ACTION_TYPES)
    return {(zone, name): Action(PERMISSIONS.get(zone, "read"), _refuse, _route) for zone, name in pairs}


async def _refuse(work: Work) -> Closing:
    zone, action = work.header.address
    raise _error(zone, action)


def _error(zone: str, action: str) -> InvalidRequest | NotBuilt:
    if zone in LATER and (zone != "memory" or (zone, action) in SHAPES):
        return NotBuilt(f"The zone {zone} is part of the API, but this service does not have it.")
    known = ", ".join(sorted(name for of, name in SHAPES if of == zone))
    return InvalidRequest(f"The zone {zone} has no action {action}; it has {known}.")


def _route(principal: Principal, header: Header, body: Body | None) -> Route:
    return Route((), _error(*header.address).message)
