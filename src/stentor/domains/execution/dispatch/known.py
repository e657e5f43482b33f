"""Whether what this process knows of an agent is what the registry says, at the moment of a claim.

Another process may have registered the agent, changed it or put it into quarantine a moment ago. Then its tasks are
passed over until the registry was read again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from stentor.core.db import Tx
from stentor.domains.registry import store
from stentor.domains.registry.snapshot import Snapshot

PATIENCE = 3
"""Times that an agent is passed over; then its tasks are denied or taken by what is known, and do not wait for ever."""


class Known:
    """`stale` has the registry read again; called on the event loop."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._times: Counter[str] = Counter()
        self.stale: Callable[[], None] = lambda: None
        self.passed_over: set[str] = set()

    def all(self, tx: Tx, agent_ids: list[str]) -> bool:
        return len(self.of(tx, agent_ids)) == len(agent_ids)

    def of(self, tx: Tx, agent_ids: list[str]) -> set[str]:
        """Those whose tasks may be taken now."""
        versions = store.versions(tx, agent_ids) if agent_ids else {}
        known = {agent_id for agent_id in agent_ids if self._snapshot.version(agent_id) == versions.get(agent_id)}
        old = [agent_id for agent_id in agent_ids if agent_id not in known]
        if old:
            tx.after_commit(lambda: self._passed(old))
        patient = {agent_id for agent_id in old if self._times[agent_id] < PATIENCE}
        for agent_id in known & self._times.keys():
            del self._times[agent_id]
        return set(agent_ids) - patient

    def _passed(self, agent_ids: list[str]) -> None:
        self._times.update(agent_ids)
        self.passed_over.update(one for one in agent_ids if self._times[one] <= PATIENCE)
        self.stale()
