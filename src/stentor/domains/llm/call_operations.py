"""Operations on the record of model calls: the list, and one call with what was kept of it."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import Path, Query
from pydantic import AfterValidator, Field, StringConstraints

from stentor.auth.principal import Principal
from stentor.core.db import Database
from stentor.core.errors import NotFound
from stentor.domains.llm import queries
from stentor.domains.llm.queries import CallFilter, RecordedCall
from stentor.web.operations import Operation
from stentor.web.request_context import decode_path_segment
from stentor.web.wire import Caller, Name, ResponseModel, Timestamp, decode_cursor, encode_cursor

CallId = Annotated[str, Path(description="The call's id."), AfterValidator(decode_path_segment)]
FilterText = Annotated[Name | None, Query()]


class CallOut(ResponseModel):
    """A model call. `outcome` is `ok` or an error code; `cost_usd` is null if the price is unknown."""

    call_id: str
    happened_at: Timestamp
    key: Annotated[str, Field(validation_alias="key_name")]
    agent_id: str | None
    task_id: str | None
    operation: str
    provider: str
    model: str
    outcome: str
    input_tokens: int
    output_tokens: int
    estimated: bool
    cost_usd: float | None
    latency_ms: int


class CallPage(ResponseModel):
    """With a filter a page may have fewer calls than the limit, or none, and still a next one."""

    calls: list[CallOut]
    limit: int
    next_cursor: str | None


class CallDetail(CallOut):
    """Also the evidence of the call. `request` and `response` are null unless their content was kept."""

    endpoint: str | None
    upstream_status: int | None
    attempts: int | None
    request_sha256: str | None
    response_sha256: str | None
    request: str | None
    response: str | None
    content_kept: bool


class CallOperations:
    """Each method is an operation, see the table below. `keeps_content`: whether calls are recorded with content."""

    def __init__(self, db: Database, *, keeps_content: bool) -> None:
        self._db, self._keeps_content = db, keeps_content

    async def list_calls(
        self,
        caller: Caller,
        provider: FilterText = None,
        model: FilterText = None,
        key: FilterText = None,
        agent_id: FilterText = None,
        task_id: FilterText = None,
        outcome: Annotated[Literal["ok", "failed"] | None, Query()] = None,
        limit: Annotated[int, Query(ge=1, le=500)] = 100,
        cursor: Annotated[Annotated[str, StringConstraints(max_length=512)] | None, Query()] = None,
    ) -> CallPage:
        """List the calls of models, newest first; keys without admin rights get their own."""
        call_filter = CallFilter(
            provider,
            model,
            key if caller.may("admin") else _own_key(caller, key),
            agent_id,
            None if outcome is None else int(outcome == "failed"),
            task_id,
            None if cursor is None else decode_cursor(cursor, int, str),
        )
        calls, after = await self._db.read(lambda tx: queries.list_calls(tx, caller.tenant, call_filter, limit))
        following = None if after is None else encode_cursor(*after)
        return CallPage(calls=[_output(call) for call in calls], limit=limit, next_cursor=following)

    async def read(self, caller: Caller, call_id: CallId) -> CallDetail:
        """Return a call with its evidence, and with its content if that was kept."""
        call, event = await self._db.read(lambda tx: queries.read_call(tx, caller.tenant, call_id))
        if not caller.may("admin") and call.key_name != caller.name:
            raise NotFound("No call of a model has this id.")
        names = CallDetail.model_fields.keys() - CallOut.model_fields.keys() - {"content_kept"}
        evidence = {name: event.get(name) for name in names}
        return CallDetail.of(call, estimated=bool(call.estimated), content_kept=self._keeps_content, **evidence)


def _own_key(caller: Principal, key: str | None) -> str:
    """Return the caller's key. Raises NotFound if the calls of another one are wanted."""
    if key not in (None, caller.name):
        raise NotFound("Only keys with the permission admin list the calls of others.")
    return caller.name


def _output(call: RecordedCall) -> CallOut:
    return CallOut.of(call, estimated=bool(call.estimated))


OPERATIONS = [
    Operation("llm.calls", "read", CallOperations.list_calls, "GET /llm/calls", errors=(404,)),
    Operation("llm.call", "read", CallOperations.read, "GET /llm/calls/{call_id}", errors=(404,)),
]
