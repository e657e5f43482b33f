"""Zones that the contract has and a service may have switched off: their messages are taken, and fail."""

from __future__ import annotations

from stentor.auth.principal import Permission, Principal
from stentor.core.errors import FeatureNotImplemented
from stentor.domains.atp.bodies import SHAPES, Body
from stentor.domains.atp.model import Header
from stentor.domains.messaging.model import Action, Closing, Route, Work

LATER: dict[str, Permission] = {"memory": "admin"}
"""Zone to the permission that it needs where it is switched on."""


def table() -> dict[tuple[str, str], Action]:
    """An action for every pair of these zones; the real ones take their places."""
    return {
        (zone, name): Action(LATER[zone], _refuse, _route, missing=_missing(zone))
        for zone, name in SHAPES
        if zone in LATER
    }


async def _refuse(work: Work) -> Closing:
    raise FeatureNotImplemented(_missing(work.header.target_zone))


def _missing(zone: str) -> str:
    return f"The zone {zone} is part of the API, but this service does not have it."


def _route(principal: Principal, header: Header, body: Body) -> Route:
    return Route((), _missing(header.target_zone))
