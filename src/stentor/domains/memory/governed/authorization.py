"""The gate: an authority, a capability, a namespace. Fails closed, and tells the run log either way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from stentor.auth.authority.context import TASKS_NAMESPACE, AuthorityContext, realm
from stentor.auth.principal import Principal
from stentor.core.db import Database, Tx
from stentor.core.errors import AuthorityDenied
from stentor.core.runlog import EventDraft, RunLog
from stentor.core.settings.listeners import MEMORY_CAPABILITIES
from stentor.domains.memory.service import MemoryCaller

CAPABILITIES = READ_CAPABILITY, WRITE_CAPABILITY = MEMORY_CAPABILITIES
BLANK_CAPABILITY = "nothing"
"""The capability of a receipt that stands for a caller whose own evidence was blank; nothing needs it."""
T = TypeVar("T")


class AccessRequest(msgspec.Struct, frozen=True):
    """A use of the memory that asks for admission."""

    tool: str
    capability: str
    namespace: str


class MemoryAuthorizer:
    """`tenant` is the one whose memory it is."""

    def __init__(self, db: Database, runlog: RunLog, tenant: str) -> None:
        self._db = db
        self._runlog = runlog
        self._tenant = tenant

    async def authorize(
        self, who: AuthorityContext | None, use: AccessRequest, beside: Callable[[Tx], T]
    ) -> tuple[MemoryCaller, T]:
        """The caller as the bus knows it, whose events hang under the admission's; and what `beside` answered,
        which runs in the admission's transaction.

        Raises AuthorityDenied, after the denial was recorded.
        """
        denied = self._refusal(who, use)
        if who is None or denied is not None:
            await self._db.write(lambda tx: self._record(tx, who, use, denied))
            raise denied or AuthorityDenied("The call has no verified authority.")
        event, answer = await self._db.write(lambda tx: (self._record(tx, who, use, None), beside(tx)))
        principal = Principal(who.principal, "agent", frozenset(), self._tenant)
        return MemoryCaller(principal, parent_event_id=event, is_governed=True), answer

    def _refusal(self, who: AuthorityContext | None, use: AccessRequest) -> AuthorityDenied | None:
        if who is None or who.capabilities == {BLANK_CAPABILITY}:
            return AuthorityDenied("The call has no verified authority: its principal or its capabilities are blank.")
        if who.tenant != self._tenant:
            return AuthorityDenied("The authority is for another tenant than this memory's.")
        if not who.has_capability(use.capability):
            return AuthorityDenied(f"The authority does not have the capability {use.capability}.")
        if not who.can_reach(use.namespace):
            return AuthorityDenied("The authority does not reach this namespace.")
        if use.capability == WRITE_CAPABILITY:
            return _refused_write(who, use.namespace)
        return None

    def _record(self, tx: Tx, who: AuthorityContext | None, use: AccessRequest, denied: AuthorityDenied | None) -> str:
        """Answers the event's id. A denial belongs to the tenant whose memory was asked for."""
        meta: dict[str, Any] = {"tool": use.tool, "capability": use.capability, "namespace": use.namespace[:255]}
        if who is not None:
            meta |= {"by": who.principal, "tenant": who.tenant, "issuer": who.issuer, "receipt_id": who.receipt_id}
            if who.delegated_by:
                meta["delegated_by"] = list(who.delegated_by)
        if denied is None:
            event = EventDraft("tool_called", "memory", f"{use.tool} was called.", meta)
        else:
            meta |= {"code": denied.code, "reason": denied.message}
            event = EventDraft("tool_denied", "memory", f"{use.tool} was denied.", meta)
        return self._runlog.append(tx, self._tenant, [event])


def _refused_write(who: AuthorityContext, namespace: str) -> AuthorityDenied | None:
    if realm(namespace) == TASKS_NAMESPACE:
        return AuthorityDenied("The notes below Tasks are the service's own; a note there could become a task.")
    if not who.can_write(namespace):
        return AuthorityDenied("The authority reaches this namespace to read, not to write.")
    return None
