"""What the models of each tenant showed, in memory, as the decisions read it."""

from __future__ import annotations

from stentor.core.db.polling import ConcurrentWrites, PollQuery
from stentor.domains.learning.model import Weight
from stentor.domains.learning.service import LearningView
from stentor.domains.modelrouting import store


class Records:
    """One view a tenant, because two tenants may have a model of the same name."""

    def __init__(self) -> None:
        self._of: dict[str, LearningView] = {}
        self._meanwhile = ConcurrentWrites[tuple[str, str, str]]()

    def of(self, tenant: str) -> LearningView:
        return self._of.get(tenant) or NOTHING

    def put(self, tenant: str, weight: Weight) -> None:
        """What this process wrote."""
        self._meanwhile.record_write((tenant, weight.task_type, weight.agent_id))
        self._keep(tenant, weight)

    def poll_query(self, since: int) -> PollQuery:
        """What changed since, for the view."""
        return self._meanwhile.start_poll(lambda tx: store.changed_since(tx, since), self._hear)

    def _hear(self, changed: list[tuple[str, Weight]], written: set[tuple[str, str, str]]) -> None:
        for tenant, weight in changed:
            if (tenant, weight.task_type, weight.agent_id) not in written:
                self._keep(tenant, weight)

    def _keep(self, tenant: str, weight: Weight) -> None:
        self._of.setdefault(tenant, LearningView()).put(tenant, weight)


NOTHING = LearningView()
