"""Operations on the record of model calls: the list, one call with what was kept of it, and deleting what was kept."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Literal

from fastapi import Path, Query
from pydantic import AfterValidator, Field, StringConstraints

from stentor.auth.principal import Principal
from stentor.core.clock import micros_from_datetime
from stentor.core.db import Database, Tx
from stentor.core.errors import InvalidRequest, NotFound
from stentor.core.jsontext import JsonObject
from stentor.domains.llm import queries
from stentor.domains.llm.contents.service import ContentService
from stentor.domains.llm.contents.store import NO_CONTENT, StoredContent, find_content
from stentor.domains.llm.queries import CallFilter, RecordedCall
from stentor.web.operations import operation
from stentor.web.request_context import decode_path_segment
from stentor.web.wire import Caller, Name, ResponseModel, Time, Timestamp, decode_cursor, encode_cursor

CallId = Annotated[str, Path(description="The call's id."), AfterValidator(decode_path_segment)]
FilterText = Annotated[Name | None, Query()]


class CallOut(ResponseModel):
    """A model call. `outcome` is `ok` or an error code; `cost_usd` is null if the price is unknown.

    `cached_tokens` are the part of `input_tokens` that the provider read from its cache. `team` is the one that the key
    had, empty for none.
    """

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
    cached_tokens: int
    team: str


class CallPage(ResponseModel):
    """With a filter a page may have fewer calls than the limit, or none, and still a next one."""

    calls: list[CallOut]
    limit: int
    next_cursor: str | None


class CallDetail(CallOut):
    """Also the evidence of the call, and its content.

    `request` and `response` are null unless they were kept and the caller may read them: `content` is then `kept`, or
    `in_run_log` for what an earlier version stored there. What was neither redacted, nor truncated, nor streamed has
    the SHA-256 of the evidence. `content_kept` is whether the content of new calls is kept, `content_days` for how
    long; 0 is for good. A failed call without an answer has its error message as `response`, but the SHA-256 is not
    that of the message.
    """

    endpoint: str | None
    upstream_status: int | None
    attempts: int | None
    request_sha256: str | None
    response_sha256: str | None
    content: Literal["kept", "in_run_log", "none", "hidden"]
    request: str | None
    response: str | None
    redacted: bool
    truncated: bool
    content_expires_at: Timestamp | None
    content_kept: bool
    content_days: int


class DeletedContent(ResponseModel):
    """The number of calls whose content was deleted."""

    deleted: int


EVIDENCE_FIELDS = ("endpoint", "upstream_status", "attempts", "request_sha256", "response_sha256")


class CallOperations:
    """Operations on recorded calls of models.

    `acts_for` is whether a caller's key is the one of an agent.
    """

    def __init__(self, db: Database, contents: ContentService, acts_for: Callable[[Principal, str], bool]) -> None:
        self._db, self._contents, self._acts_for = db, contents, acts_for

    @operation("llm.calls", "read", "GET /llm/calls", errors=(404,))
    async def list_calls(
        self,
        caller: Caller,
        provider: FilterText = None,
        model: FilterText = None,
        key: FilterText = None,
        agent_id: FilterText = None,
        task_id: FilterText = None,
        outcome: Annotated[Literal["ok", "failed"] | None, Query()] = None,
        since: Annotated[Time | None, Query(description="Calls from this time on.")] = None,
        until: Annotated[Time | None, Query(description="Calls before this time.")] = None,
        limit: Annotated[int, Query(ge=1, le=500)] = 100,
        cursor: Annotated[Annotated[str, StringConstraints(max_length=512)] | None, Query()] = None,
        team: FilterText = None,
        order: Annotated[
            queries.CallOrder,
            Query(description="`cost`: one page of the most expensive of the newest 20,000 calls."),
        ] = "newest",
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
            _micros(since),
            _micros(until),
            team,
        )
        calls, after = await self._db.read(lambda tx: queries.list_calls(tx, caller.tenant, call_filter, limit, order))
        following = None if after is None else encode_cursor(*after)
        return CallPage(calls=[_output(call) for call in calls], limit=limit, next_cursor=following)

    @operation("llm.call", "read", "GET /llm/calls/{call_id}", errors=(404,))
    async def read(self, caller: Caller, call_id: CallId) -> CallDetail:
        """Return a call with its evidence, and with its content if that was kept and the caller may read it.

        Admins read the content of all calls; other keys that of the calls that they made for themselves or their
        agents. The prompt of a model agent that works on somebody's task is not theirs.
        """

        def work(tx: Tx) -> tuple[RecordedCall, JsonObject, StoredContent | None]:
            call = queries.require_call(tx, caller.tenant, call_id)
            return call, queries.read_event(tx, caller.tenant, call_id), find_content(tx, caller.tenant, call_id)

        call, event, content = await self._db.read(work)
        if not caller.may("admin") and call.key_name != caller.name:
            # Not Forbidden: it would tell a key which calls of others exist.
            raise NotFound("No call of a model has this id.")
        state: Literal["kept", "in_run_log", "none", "hidden"] = "kept"
        if content is None:
            content, state = _content_of_event(event), "in_run_log"
        if content is None:
            content, state = NO_CONTENT, "none"
        # Content of another key's task is `hidden`, not `none`: the caller should know that an admin can read it.
        elif not self._may_read_content(caller, call):
            content, state = NO_CONTENT, "hidden"
        return CallDetail.of(
            call,
            estimated=bool(call.estimated),
            **{name: event.get(name) for name in EVIDENCE_FIELDS},
            content=state,
            request=content.request,
            response=content.response,
            redacted=content.redacted,
            truncated=content.truncated,
            content_expires_at=None if content.kept_at is None else self._contents.expires_at(content.kept_at),
            content_kept=self._contents.keeps,
            content_days=self._contents.days,
        )

    def _may_read_content(self, caller: Principal, call: RecordedCall) -> bool:
        if caller.may("admin"):
            return True
        return call.key_name == caller.name and (call.agent_id is None or self._acts_for(caller, call.agent_id))

    @operation("llm.delete_content", "admin", "DELETE /llm/calls/{call_id}/content", errors=(404,))
    async def delete_content(self, caller: Caller, call_id: CallId) -> DeletedContent:
        """Delete the prompt and the answer of a call; its record and hashes stay."""
        return DeletedContent(deleted=await self._contents.delete_one(caller, call_id))

    @operation("llm.delete_contents", "admin", "DELETE /llm/contents")
    async def delete_contents(
        self,
        caller: Caller,
        key: Annotated[Name | None, Query(description="Only calls of this key.")] = None,
        before: Annotated[Time | None, Query(description="Only calls before this time.")] = None,
    ) -> DeletedContent:
        """Delete the prompts and answers of a key's calls, of calls before a time, or both. At least one is needed."""
        if key is None and before is None:
            raise InvalidRequest("Name a key, a time, or both: key=... and before=...")
        return DeletedContent(deleted=await self._contents.delete_many(caller, key, _micros(before)))


def _own_key(caller: Principal, key: str | None) -> str:
    """Return the caller's key. Raises NotFound if the calls of another one are wanted."""
    if key not in (None, caller.name):
        raise NotFound("Only keys with the permission admin list the calls of others.")
    return caller.name


def _micros(time: datetime | None) -> int | None:
    return None if time is None else micros_from_datetime(time)


def _output(call: RecordedCall) -> CallOut:
    return CallOut.of(call, estimated=bool(call.estimated))


def _content_of_event(event: JsonObject) -> StoredContent | None:
    """Return the content in the run log, where earlier versions kept it and from where it cannot be deleted."""
    request, response = event.get("request"), event.get("response")
    if not isinstance(request, str) or not isinstance(response, str):
        return None
    return StoredContent(request, response, redacted=False, truncated=False, kept_at=None)
