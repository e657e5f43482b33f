"""Operations on trust; camelCase on the wire. Source: core contract, "Trust"."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Annotated

from pydantic import Field, StringConstraints

from stentor.auth.principal import Principal
from stentor.core.errors import InvalidRequest, NotFound
from stentor.domains.trust import model
from stentor.domains.trust.model import ChangeKind, TrustEntity
from stentor.domains.trust.service import TrustService
from stentor.web.operations import operation
from stentor.web.routes import RequestModel, example_config
from stentor.web.wire import Caller, CamelCaseModel, EntityId, Name, Score, Timestamp

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


class OperationIn(RequestModel):
    model_config = example_config(operation="search")

    operation: Annotated[str, StringConstraints(min_length=1, max_length=64)]


class TrustOut(CamelCaseModel):
    entity_id: str
    entity_type: str
    score: float
    level: str
    last_updated: Annotated[Timestamp, Field(validation_alias="updated_at")]


class Moved(TrustOut):
    new_score: float
    delta: float


class Permissions(CamelCaseModel):
    entity_id: str
    level: str
    operations: list[str]


class CanPerform(CamelCaseModel):
    entity_id: str
    operation: str
    allowed: bool


class LevelOut(CamelCaseModel):
    name: str
    range: str
    operations: list[str]


class Levels(CamelCaseModel):
    levels: list[LevelOut]
    decay_rate: str
    reinforcement: str
    penalty: str


class ChangeOut(CamelCaseModel):
    entity_id: str
    kind: ChangeKind
    delta: float
    score: float
    cause: str | None
    timestamp: Annotated[Timestamp, Field(validation_alias="happened_at")]


class Report(CamelCaseModel):
    total_entities: int
    by_level: dict[str, int]
    by_type: dict[str, int]
    average_score: float | None
    entities: list[TrustOut]
    recent_changes: list[ChangeOut]


AuthorizeTrustChange = Callable[[Principal, str], Awaitable[None]]
"""Raises Forbidden when the caller may not move the trust of this entity; trust itself knows no agents."""


_NOT_FOUND = (404,)


class TrustOperations:
    """What callers can do with trust."""

    def __init__(self, trust: TrustService, authorize_change: AuthorizeTrustChange) -> None:
        self._trust, self._authorize_change = trust, authorize_change

    @operation("trust.report", "read", "GET /trust/report", envelope=True)
    async def report(self, caller: Caller) -> Report:
        """List every tracked entity with its score and level, and the latest changes."""
        report = await self._trust.build_report(caller.tenant)
        return Report(
            total_entities=len(report["entities"]),
            by_level=report["by_level"],
            by_type=report["by_type"],
            average_score=report["average"],
            entities=[_entity(entity, score) for entity, score in report["entities"]],
            recent_changes=[ChangeOut.of(change) for change in report["changes"]],
        )

    @operation("trust.levels", "read", "GET /trust/levels", envelope=True)
    async def levels(self) -> Levels:
        """List the levels, what each permits, and how scores move."""
        return Levels(
            levels=[LevelOut.of(level, range=f"{level.low} - {level.high}") for level in model.LEVELS],
            decay_rate=f"{model.DAILY_DECAY:.0%} per day",
            reinforcement=f"+{model.SUCCESS_REWARD} per success",
            penalty=f"-{model.FAILURE_PENALTY} per failure",
        )

    @operation("trust.get", "read", "GET /trust/{entityId}", errors=_NOT_FOUND, envelope=True)
    async def read(self, caller: Caller, entity_id: EntityId) -> TrustOut:
        """Return an entity's current score, after decay."""
        return _entity(*await self._find(caller, entity_id))

    @operation("trust.set", "admin", "PUT /trust/{entityId}", envelope=True)
    async def put(self, caller: Caller, entity_id: EntityId, body: SetScore) -> Moved:
        """Set a score explicitly."""
        _check_id(entity_id)
        await self._authorize_change(caller, entity_id)
        entity, delta = await self._trust.set_score(caller.tenant, entity_id, body.score, body.entityType, caller.name)
        return _moved(entity, delta)

    @operation("trust.success", "write", "POST /trust/{entityId}/success", envelope=True)
    async def success(self, caller: Caller, entity_id: EntityId, body: Amount | None = None) -> Moved:
        """Record a success: +0.02, or the amount."""
        return await self._reinforce(
            caller, entity_id, "success", (body.amount if body else None) or model.SUCCESS_REWARD
        )

    @operation("trust.failure", "write", "POST /trust/{entityId}/failure", envelope=True)
    async def failure(self, caller: Caller, entity_id: EntityId, body: Amount | None = None) -> Moved:
        """Record a failure: -0.05, or the amount as a decrement."""
        return await self._reinforce(
            caller, entity_id, "failure", (body.amount if body else None) or model.FAILURE_PENALTY
        )

    @operation("trust.permissions", "read", "GET /trust/{entityId}/permissions", errors=_NOT_FOUND, envelope=True)
    async def permissions(self, caller: Caller, entity_id: EntityId) -> Permissions:
        """Return what the entity's level permits."""
        entity, score = await self._find(caller, entity_id)
        level = model.find_level(score)
        return Permissions.of(entity, level=level.name, operations=level.operations)

    @operation("trust.can_perform", "read", "POST /trust/{entityId}/can-perform", errors=_NOT_FOUND, envelope=True)
    async def can_perform(self, caller: Caller, entity_id: EntityId, body: OperationIn) -> CanPerform:
        """Check whether the entity's level permits an operation."""
        entity, score = await self._find(caller, entity_id)
        allowed = body.operation in model.find_level(score).operations
        return CanPerform.of(entity, operation=body.operation, allowed=allowed)

    async def _find(self, caller: Principal, entity_id: str) -> tuple[TrustEntity, float]:
        if not _is_valid_id(entity_id):
            # PostgreSQL takes no NUL, not even to compare.
            raise NotFound("No trust is recorded under this id.")
        return await self._trust.get(caller.tenant, entity_id)

    async def _reinforce(self, caller: Principal, entity_id: str, kind: ChangeKind, amount: float) -> Moved:
        _check_id(entity_id)
        await self._authorize_change(caller, entity_id)
        return _moved(*await self._trust.reinforce(caller.tenant, entity_id, kind, amount, caller.name))


def _is_valid_id(entity_id: str) -> bool:
    return 0 < len(entity_id) <= MAX_ENTITY_ID and entity_id.isprintable()


def _check_id(entity_id: str) -> None:
    if not _is_valid_id(entity_id):
        raise InvalidRequest("An entity id has 1 to 255 printable characters.")
    if entity_id in RESERVED_IDS:
        # Nobody could read such an entity back.
        raise InvalidRequest(f"{entity_id!r} is the name of a route, so that no entity can have it as its id.")


def _entity(entity: TrustEntity, score: float) -> TrustOut:
    return TrustOut.of(entity, score=score, level=model.find_level(score).name)


def _moved(entity: TrustEntity, delta: float) -> Moved:
    return Moved.of(entity, level=model.find_level(entity.score).name, new_score=entity.score, delta=delta)
