"""Records what happens before there is a caller: sign-ins that were refused."""

from __future__ import annotations

from collections.abc import Mapping

from stentor.core.db import NO_LOCKS, Database
from stentor.core.runlog import EventDraft, RunLog


class AuditService:
    """Writes the events of the audit that no operation of a caller writes."""

    def __init__(self, db: Database, runlog: RunLog) -> None:
        self._db, self._runlog = db, runlog

    async def record_refused_sign_ins(self, tenant: str, surface: str, refusals: Mapping[str, int]) -> None:
        """Record sign-ins that were refused, by address, in one event. Callers bound how often they call."""
        count = sum(refusals.values())
        addresses = ", ".join(refusals)
        message = f"{count} sign-in{'s' * (count > 1)} to the {surface} refused, from {addresses}."
        metadata = {"surface": surface, "count": count, "addresses": dict(refusals)}
        draft = EventDraft("sign_in_refused", "audit", message, metadata)
        await self._db.write(lambda tx: self._runlog.append(tx, tenant, [draft]), NO_LOCKS)
