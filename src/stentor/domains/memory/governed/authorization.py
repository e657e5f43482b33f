"""Authorization of governed memory calls: verified authority, capability and namespace.

Fails closed, and records each decision in the run log: `tool_called` or `tool_denied`. The calls are in `service`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from stentor.auth.authority.context import TASKS_NAMESPACE, AuthorityContext, realm
from stentor.auth.principal import Principal
from stentor.core.db import Database, Tx
from stentor.core.errors import AuthorityDenied
from stentor.core.jsontext import JsonObject
from stentor.core.runlog import EventDraft, RunLog
from stentor.core.settings.listeners import MEMORY_CAPABILITIES
from stentor.domains.memory.model import MemoryCaller

CAPABILITIES = READ_CAPABILITY, WRITE_CAPABILITY = MEMORY_CAPABILITIES
BLANK_CAPABILITY = "nothing"
"""The only capability of a receipt for a caller whose own evidence was blank; no call accepts it."""
MAX_NAMESPACE_CHARS = 255
"""Characters of the requested namespace that are recorded; a denied request may carry any text."""
T = TypeVar("T")


class AccessRequest(msgspec.Struct, frozen=True):
    """A call to be authorized."""

    tool: str
    capability: str
    namespace: str


class MemoryAuthorizer:
    """Authorizes calls to the memory of one tenant."""

    def __init__(self, db: Database, runlog: RunLog, tenant: str) -> None:
        self._db = db
        self._runlog = runlog
        self._tenant = tenant

    async def authorize(
        self, context: AuthorityContext | None, request: AccessRequest, run_in_tx: Callable[[Tx], T]
    ) -> tuple[MemoryCaller, T]:
        """Return the caller for the memory service, and the result of `run_in_tx`.

        `run_in_tx` runs in the transaction that records the authorization. The caller's events are recorded below that
        event. Raises AuthorityDenied after recording the denial.
        """
        denial = self._find_denial(context, request)
        if context is None or denial is not None:
            # Commit the denial first: raising inside the transaction would roll its event back.
            await self._db.write(lambda tx: self._record(tx, context, request, denial))
            raise denial or AuthorityDenied("The call has no verified authority.")
        # One transaction: what cannot be recorded must not be executed.
        event_id, result = await self._db.write(lambda tx: (self._record(tx, context, request, None), run_in_tx(tx)))
        # Without permissions: what this call may do was decided here, and nothing more may follow from its caller.
        principal = Principal(context.principal, "agent", frozenset(), self._tenant)
        return MemoryCaller(principal, parent_event_id=event_id, is_governed=True), result

    def _find_denial(self, context: AuthorityContext | None, request: AccessRequest) -> AuthorityDenied | None:
        if context is None or context.capabilities == {BLANK_CAPABILITY}:
            return AuthorityDenied("The call has no verified authority: its principal or its capabilities are blank.")
        if context.tenant != self._tenant:
            return AuthorityDenied("The authority is for another tenant than this memory's.")
        if not context.has_capability(request.capability):
            return AuthorityDenied(f"The authority does not have the capability {request.capability}.")
        if not context.can_reach(request.namespace):
            reached = context.describe_namespaces()
            return AuthorityDenied(f"The authority has no access to this namespace. It has access to: {reached}.")
        if request.capability == WRITE_CAPABILITY:
            return _find_write_denial(context, request.namespace)
        return None

    def _record(
        self, tx: Tx, context: AuthorityContext | None, request: AccessRequest, denial: AuthorityDenied | None
    ) -> str:
        """Record the decision and return the event's id. A denial belongs to the tenant of the requested memory."""
        meta: JsonObject = {
            "tool": request.tool,
            "capability": request.capability,
            "namespace": request.namespace[:MAX_NAMESPACE_CHARS],
        }
        if context is not None:
            meta |= {
                "by": context.principal,
                "tenant": context.tenant,
                "issuer": context.issuer,
                "receipt_id": context.receipt_id,
            }
            if context.delegated_by:
                meta["delegated_by"] = list(context.delegated_by)
        if denial is None:
            event = EventDraft("tool_called", "memory", f"{request.tool} was called.", meta)
        else:
            meta |= {"code": denial.code, "reason": denial.message}
            event = EventDraft("tool_denied", "memory", f"{request.tool} was denied.", meta)
        return self._runlog.append(tx, self._tenant, [event])


def _find_write_denial(context: AuthorityContext, namespace: str) -> AuthorityDenied | None:
    if realm(namespace) == TASKS_NAMESPACE:
        return AuthorityDenied("Notes below Tasks are reserved for the service: a note there could become a task.")
    if not context.can_write(namespace):
        return AuthorityDenied("The authority may read this namespace, but not write to it.")
    return None
