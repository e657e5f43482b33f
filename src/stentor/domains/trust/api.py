"""Routes of trust; camelCase on the wire. Source: core contract, "Trust"."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated, Any

from fastapi import APIRouter
from pydantic import Field, StringConstraints

from stentor.auth.principal import Principal
from stentor.core.clock import format_iso
from stentor.core.errors import InvalidRequest, NotFound
from stentor.domains.trust import model
from stentor.domains.trust.model import ChangeKind, TrustChange, TrustEntity
from stentor.domains.trust.service import TrustService
from stentor.web.routes import RequestModel, example_config, requires_permission
from stentor.web.wire import (
    Caller,
    EntityId,
    Enveloped,
    JsonResponse,
    Name,
    ResponseModel,
    Score,
    Timestamp,
    api_router,
    enveloped_response,
    error_responses,
)

MAX_ENTITY_ID = 255
RESERVED_IDS = frozenset(("levels", "report"))
"""Reading such an entity would answer another route's data."""


class SetScore(RequestModel):
    model_config = example_config(score=0.8, entityType="agent")

    score: Score
    entityType: Name | None = None  # noqa: N815


class Amount(RequestModel):
    model_config = example_config(amount=0.02)

    amount: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None


class Operation(RequestModel):
    model_config = example_config(operation="search")

    operation: Annotated[str, StringConstraints(min_length=1, max_length=64)]


class TrustOut(ResponseModel):
    entityId: str  # noqa: N815
    entityType: str  # noqa: N815
    score: float
    level: str
    lastUpdated: Timestamp  # noqa: N815


class Moved(TrustOut):
    newScore: float  # noqa: N815
    delta: float


class Permissions(ResponseModel):
    entityId: str  # noqa: N815
    level: str
    operations: list[str]


class CanPerform(ResponseModel):
    entityId: str  # noqa: N815
    operation: str
    allowed: bool


class LevelOut(ResponseModel):
    name: str
    range: str
    operations: list[str]


class Levels(ResponseModel):
    levels: list[LevelOut]
    decayRate: str  # noqa: N815
    reinforcement: str
    penalty: str


class ChangeOut(ResponseModel):
    entityId: str  # noqa: N815
    kind: str
    delta: float
    score: float
    cause: str | None
    timestamp: Timestamp


class Report(ResponseModel):
    totalEntities: int  # noqa: N815
    byLevel: dict[str, int]  # noqa: N815
    byType: dict[str, int]  # noqa: N815
    averageScore: float | None  # noqa: N815
    entities: list[TrustOut]
    recentChanges: list[ChangeOut]  # noqa: N815


AuthorizeTrustChange = Callable[[Principal, str], Awaitable[None]]
"""Raises Forbidden when the caller may not move the trust of this entity; trust itself knows no agents."""


def router(trust: TrustService, allow: AuthorizeTrustChange) -> APIRouter:
    api = api_router("/trust", tags=["trust"])

    @api.get("/report", response_model=Enveloped[Report])
    async def report(caller: Caller) -> JsonResponse:
        """Every tracked entity with its score and level, and the latest changes."""
        found = await trust.build_report(caller.tenant)
        return enveloped_response(
            {
                "totalEntities": len(found["entities"]),
                "byLevel": found["by_level"],
                "byType": found["by_type"],
                "averageScore": found["average"],
                "entities": [_entity(entity, score) for entity, score in found["entities"]],
                "recentChanges": [_change(change) for change in found["changes"]],
            }
        )

    @api.get("/levels", response_model=Enveloped[Levels])
    async def levels() -> JsonResponse:
        """The levels, what each permits, and how scores move."""
        return enveloped_response(
            {
                "levels": [
                    {"name": v.name, "range": f"{v.low} - {v.high}", "operations": v.operations} for v in model.LEVELS
                ],
                "decayRate": f"{model.DAILY_DECAY:.0%} per day",
                "reinforcement": f"+{model.SUCCESS_REWARD} per success",
                "penalty": f"-{model.FAILURE_PENALTY} per failure",
            }
        )

    @api.get("/{entityId}", response_model=Enveloped[TrustOut], responses=error_responses(404))
    async def read(caller: Caller, entityId: EntityId) -> JsonResponse:  # noqa: N803
        """An entity's score now, after decay."""
        return enveloped_response(_entity(*await find(caller, entityId)))

    @api.put("/{entityId}", response_model=Enveloped[Moved], openapi_extra=requires_permission("admin"))
    async def put(caller: Caller, entityId: EntityId, body: SetScore) -> JsonResponse:  # noqa: N803
        """Set a score explicitly."""
        _check_id(entityId)
        await allow(caller, entityId)
        entity, delta = await trust.set_score(caller.tenant, entityId, body.score, body.entityType, caller.name)
        return enveloped_response(_moved(entity, delta))

    async def find(caller: Principal, entity_id: str) -> tuple[TrustEntity, float]:
        if not _possible(entity_id):
            # PostgreSQL takes no NUL, not even to compare.
            raise NotFound("No trust is recorded under this id.")
        return await trust.get(caller.tenant, entity_id)

    async def reinforce(caller: Principal, entity_id: str, kind: ChangeKind, amount: float) -> JsonResponse:
        _check_id(entity_id)
        await allow(caller, entity_id)
        return enveloped_response(_moved(*await trust.reinforce(caller.tenant, entity_id, kind, amount, caller.name)))

    @api.post("/{entityId}/success", response_model=Enveloped[Moved])
    async def success(caller: Caller, entityId: EntityId, body: Amount | None = None) -> JsonResponse:  # noqa: N803
        """One success: +0.02, or the amount."""
        return await reinforce(caller, entityId, "success", (body and body.amount) or model.SUCCESS_REWARD)

    @api.post("/{entityId}/failure", response_model=Enveloped[Moved])
    async def failure(caller: Caller, entityId: EntityId, body: Amount | None = None) -> JsonResponse:  # noqa: N803
        """One failure: -0.05, or the amount as a decrement."""
        return await reinforce(caller, entityId, "failure", (body and body.amount) or model.FAILURE_PENALTY)

    @api.get("/{entityId}/permissions", response_model=Enveloped[Permissions], responses=error_responses(404))
    async def permissions(caller: Caller, entityId: EntityId) -> JsonResponse:  # noqa: N803
        """What the entity's level permits."""
        entity, score = await find(caller, entityId)
        level = model.find_level(score)
        return enveloped_response({"entityId": entity.entity_id, "level": level.name, "operations": level.operations})

    @api.post(
        "/{entityId}/can-perform",
        response_model=Enveloped[CanPerform],
        responses=error_responses(404),
        openapi_extra=requires_permission("read"),
    )
    async def can_perform(caller: Caller, entityId: EntityId, body: Operation) -> JsonResponse:  # noqa: N803
        """Whether the entity's level permits an operation."""
        entity, score = await find(caller, entityId)
        allowed = body.operation in model.find_level(score).operations
        return enveloped_response({"entityId": entity.entity_id, "operation": body.operation, "allowed": allowed})

    return api


def _possible(entity_id: str) -> bool:
    return 0 < len(entity_id) <= MAX_ENTITY_ID and entity_id.isprintable()


def _check_id(entity_id: str) -> None:
    if not _possible(entity_id):
        raise InvalidRequest("An entity id has 1 to 255 printable characters.")
    if entity_id in RESERVED_IDS:
        raise InvalidRequest(f"{entity_id!r} is the name of a route, so that no entity can have it as its id.")


def _entity(entity: TrustEntity, score: float) -> dict[str, Any]:
    return {
        "entityId": entity.entity_id,
        "entityType": entity.entity_type,
        "score": score,
        "level": model.find_level(score).name,
        "lastUpdated": format_iso(entity.updated_at),
    }


def _moved(entity: TrustEntity, delta: float) -> dict[str, Any]:
    return _entity(entity, entity.score) | {"newScore": entity.score, "delta": delta}


def _change(change: TrustChange) -> dict[str, Any]:
    return {
        "entityId": change.entity_id,
        "kind": change.kind,
        "delta": change.delta,
        "score": change.score,
        "cause": change.cause,
        "timestamp": format_iso(change.happened_at),
    }
