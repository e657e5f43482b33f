"""A run log whose sequencer the tests run by hand."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from stentor.core.db import Database
from stentor.core.db.locks.leader import SEQUENCER_LOCK_ID, LeaderElection
from stentor.core.fanout.live import Hub
from stentor.core.runlog import EventDraft, RunLog
from stentor.domains.provenance import store
from stentor.domains.provenance.sequencer import Sequencer
from stentor.domains.provenance.signing.checkpoints import CheckpointPublisher
from stentor.domains.provenance.signing.signed_note import NoteSigner, generate_signer
from stentor.testing import FixedClock


@dataclass
class Log:
    """A run log with its sequencer; `signer` signs the checkpoints."""

    db: Database
    clock: FixedClock
    signer: NoteSigner = field(default_factory=lambda: generate_signer("example.com/log"))

    def __post_init__(self) -> None:
        self.checkpoints = CheckpointPublisher(self.db, self.clock, lambda: self.signer)
        self.leader = LeaderElection(self.db.driver, SEQUENCER_LOCK_ID, "numbers")
        self.sequencer = self.new_sequencer()
        self._runlog = RunLog(Hub())

    def new_sequencer(self) -> Sequencer:
        """Return another sequencer of the same process."""
        return Sequencer(self.db, self.clock, self.leader, self.checkpoints, 0.01, 60.0)

    async def is_numbered(self) -> bool:
        """Whether no event waits for its number."""
        return not (await self.db.read(store.numbering_lag)).events

    async def write(self, count: int, task_id: str | None = None, parent: str | None = None) -> list[str]:
        """Append a chain of events; return their ids."""
        drafts = [EventDraft("tool_called", "test", f"number {n} — “é”\n", {"n": n}) for n in range(count)]
        await self.db.write(lambda tx: self._runlog.append(tx, "default", drafts, task_id=task_id, parent=parent))
        return [draft.event_id for draft in drafts]


@pytest.fixture
async def log(db: Database, clock: FixedClock) -> AsyncIterator[Log]:
    log_under_test = Log(db, clock)
    yield log_under_test
    await log_under_test.leader.close()
