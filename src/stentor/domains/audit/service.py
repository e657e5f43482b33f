"""Records sign-ins, accepted and refused."""

from __future__ import annotations

from collections.abc import Mapping

from stentor.auth.principal import Principal
from stentor.core.db import NO_LOCKS, Database
from stentor.core.errors import Forbidden
from stentor.core.runlog import EventDraft, RunLog


class AuditService:
    """Writes the events of the audit that are not recorded with a change."""

    def __init__(self, db: Database, runlog: RunLog) -> None:
        self._db, self._runlog = db, runlog

    async def record_sign_in(self, caller: Principal, surface: str, address: str) -> str:
        """Record a sign-in, and return the id of its event. Raises Forbidden for an agent's key without `admin`."""
        if caller.is_bound_agent:
            raise Forbidden("Agents do not sign in.")
        metadata = {"by": caller.name, "role": caller.role, "surface": surface, "address": address}
        draft = EventDraft("signed_in", "audit", f"{caller.name} signed in to the {surface}.", metadata)
        return await self._db.write(lambda tx: self._runlog.append(tx, caller.tenant, [draft]), NO_LOCKS)

    async def record_refused_sign_ins(self, tenant: str, surface: str, refusals: Mapping[str, int]) -> None:
        """Record sign-ins that were refused, by address, in one event. Callers bound how often they call."""
        count = sum(refusals.values())
        addresses = ", ".join(refusals)
        message = f"{count} sign-in{'s' * (count > 1)} to the {surface} refused, from {addresses}."
        metadata = {"surface": surface, "count": count, "addresses": dict(refusals)}
        draft = EventDraft("sign_in_refused", "audit", message, metadata)
        await self._db.write(lambda tx: self._runlog.append(tx, tenant, [draft]), NO_LOCKS)
