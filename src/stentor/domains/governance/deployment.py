"""Deploys patches: checkpoint, apply, probe, then deployed or back. Taken up again after a kill at any point.

The checkpoint, the change of the agent and the state `deploying` are one transaction. What follows is a probe, which
changes nothing, and one transaction that ends it: so a killed process leaves either an approved update or one that is
probed again.

Carries deployments and rollbacks out in the background, and takes up at the start what an earlier process left.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from stentor.core.clock import HOUR, SECOND, Clock
from stentor.core.db import Database, Tx
from stentor.core.errors import Conflict, InvalidRequest, SandboxUnavailable, StoreUnavailable
from stentor.core.runlog import RunLog
from stentor.domains.governance import checkpoints, impact, model, review, store
from stentor.domains.governance.checkpoints import CheckpointService, RestoreFailed
from stentor.domains.governance.model import CheckpointCorrupt, Update
from stentor.domains.governance.probes import Probe, ProbeResult
from stentor.domains.governance.review import ProposalReviewer
from stentor.domains.governance.rollbacks import RollbackService
from stentor.domains.registry import store as agents
from stentor.domains.registry.model import Agent
from stentor.domains.registry.service import AgentRegistry

log = logging.getLogger(__name__)


class Deployer:
    def __init__(
        self,
        db: Database,
        runlog: RunLog,
        registry: AgentRegistry,
        checkpoints: CheckpointService,
        reviewer: ProposalReviewer,
        probe: Probe,
    ) -> None:
        self._db = db
        self._runlog = runlog
        self._registry = registry
        self._checkpoints = checkpoints
        self._reviewer = reviewer
        self.probe = probe

    async def deploy(self, tenant: str, update_id: str) -> None:
        """Carry a patch to its end, from wherever it is."""
        started = await self._db.write(lambda tx: self.begin(tx, tenant, update_id))
        if started is not None:
            update, agent = started
            found = await self.probe(agent)
            await self._db.write(lambda tx: self._end(tx, update, found))

    def begin(self, tx: Tx, tenant: str, update_id: str) -> tuple[Update, Agent] | None:
        """The update, now deploying, and the agent as it is with the patch; None when there is nothing to probe."""
        update = store.find_update(tx, tenant, update_id)
        if update is None or update.status not in ("approved", "deploying") or not update.patched:
            return None
        if update.status == "deploying":
            agent = checkpoints.require_agent(tx, tenant, update.agent_id)
            # Taken out of routing, it waits for a person: no probe is to end what could not be undone as deployed.
            return None if agent.status == "suspended" else (update, agent)
        if (drift := self._reviewer.find_drift(tx, update)) is not None:
            self._give_up(tx, update, drift)
            return None
        agent = checkpoints.require_agent(tx, tenant, update.agent_id)
        try:
            target = self._reviewer.build_target(agent, update.changes.agent_patch or {})
        except (InvalidRequest, SandboxUnavailable) as error:
            self._give_up(tx, update, f"The registry would not take the agent any more. {error.message}")
            return None
        taken = self._checkpoints.take(tx, agent, "deployment", model.SYSTEM_ACTOR, update.head_id)
        meta = {"by": model.SYSTEM_ACTOR, "checkpoint_id": taken.checkpoint_id, "diff": update.basis.diff}
        update = review.change_status(
            tx, self._runlog, update, "deploying", "Deploying.", meta, checkpoint_id=taken.checkpoint_id
        )
        fields = {name: getattr(target, name) for name in impact.PATCHABLE_FIELDS}
        message = f"Update {update_id} applied."
        change = self._registry.prepare_reconfigure(
            tenant, agent.agent_id, fields, message, model.SYSTEM_ACTOR, update.head_id
        )
        return update, change(tx)

    def _give_up(self, tx: Tx, update: Update, reason: str) -> None:
        """Nothing was applied: it goes through `deploying`, because only so an approved update comes back."""
        update = review.change_status(tx, self._runlog, update, "deploying", reason, {"by": model.SYSTEM_ACTOR})
        review.change_status(tx, self._runlog, update, "rolled_back", reason, {}, rolled_back_at=tx.now, notes=reason)

    def _end(self, tx: Tx, update: Update, found: ProbeResult) -> None:
        now = store.find_update(tx, update.tenant, update.update_id)
        if now is None or now.status != "deploying":
            return  # a rollback or another process was faster
        meta = {"by": model.SYSTEM_ACTOR, "probe": {"ok": found.is_ok, "what": found.detail}}
        if found.is_ok:
            review.change_status(
                tx, self._runlog, now, "deployed", found.detail, meta, deployed_at=tx.now, notes=found.detail
            )
            return
        try:
            self._set_back(tx, now)
        except (CheckpointCorrupt, RestoreFailed) as error:
            self._take_out(tx, now, error.message)
            return
        review.change_status(
            tx, self._runlog, now, "rolled_back", found.detail, meta, rolled_back_at=tx.now, notes=found.detail
        )

    def _set_back(self, tx: Tx, update: Update) -> None:
        """Only what the patch changed: what the agent learned or lost meanwhile stays."""
        checkpoint = store.find_checkpoint(tx, update.tenant, update.checkpoint_id or "")
        if checkpoint is None:
            raise RestoreFailed("The checkpoint of the deployment is gone.")
        fields = tuple(update.changes.agent_patch or ())
        if fields:
            self._checkpoints.restore(tx, checkpoint, model.SYSTEM_ACTOR, update.head_id, fields)

    def _take_out(self, tx: Tx, update: Update, reason: str) -> None:
        """An agent that neither works nor can be set back gets no more work. A rollback ends its update."""
        log.error("update %s failed and cannot be undone: %s", update.update_id, reason)
        agent = agents.find(tx, update.tenant, update.agent_id)
        if agent is not None and agent.status == "active":
            why = f"Update {update.update_id} failed and could not be undone."
            self._registry.prepare_suspend(update.tenant, agent.agent_id, why, model.SYSTEM_ACTOR, update.head_id)(tx)


RUNNER_BATCH = 100
EXPIRE_INTERVAL_US = HOUR
WorkKey = tuple[str, str, str]
log = logging.getLogger(__name__)


class GovernanceRunner:
    """`wake` may be called from the event loop at any time. A deployment that has not moved for `left_alone`
    microseconds, longer than a probe can take, belongs to nobody.
    """

    def __init__(self, db: Database, clock: Clock, checkpoints: CheckpointService, stale_after_us: int) -> None:
        self._db = db
        self._clock = clock
        self._checkpoints = checkpoints
        self._left_alone = stale_after_us
        self._carry: dict[str, Callable[[str, str], Awaitable[None]]] = {}
        self._work = asyncio.Event()
        self._in_hand: dict[WorkKey, asyncio.Task[None]] = {}
        self._loop: asyncio.Task[None] | None = None
        self._expired_at = 0
        self._looking = False

    def set_handlers(self, deployer: Deployer, rollbacks: RollbackService) -> None:
        self._carry = {"deploy": deployer.deploy, "rollback": rollbacks.execute}

    def wake(self) -> None:
        self._work.set()

    async def start(self, *, is_only_process: bool) -> None:
        """`alone`: no other process has this database, so whatever is under way was left by an earlier one."""
        await self._look(0 if is_only_process else self._left_alone)
        self._loop = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """What is in hand is taken up by the next process."""
        tasks = [*self._in_hand.values(), *([self._loop] if self._loop else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def is_busy(self) -> bool:
        """Whether anything is in hand or was asked for."""
        return self._work.is_set() or self._looking or bool(self._in_hand)

    async def _run(self) -> None:
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._work.wait(), self._left_alone / 2 / SECOND)
            try:
                await self._look(self._left_alone)
                await self._expire()
            except StoreUnavailable:
                continue  # the database says in the log that it is out; the next look finds what is left
            except Exception:
                log.exception("the look for deployments and rollbacks failed")

    async def _look(self, left_alone: int) -> None:
        """Take in hand what is there and not in hand yet."""
        now = self._clock.now()
        self._work.clear()
        self._looking = True

        def read(tx: Tx) -> list[WorkKey]:
            updates: list[WorkKey] = [
                ("deploy", *key) for key in store.list_deployable(tx, now - left_alone, RUNNER_BATCH)
            ]
            return updates + [("rollback", *key) for key in store.list_unfinished_rollbacks(tx, RUNNER_BATCH)]

        try:
            for key in await self._db.read(read):
                if key not in self._in_hand:
                    self._in_hand[key] = asyncio.create_task(self._do(key))
        finally:
            self._looking = False

    async def _do(self, key: WorkKey) -> None:
        kind, tenant, record_id = key
        try:
            await self._carry[kind](tenant, record_id)
        except (StoreUnavailable, Conflict):
            pass  # nothing was done, or another process did it; the next look finds what is left
        except Exception:
            log.exception("%s of %s failed", kind, record_id)
        finally:
            self._in_hand.pop(key, None)

    async def _expire(self) -> None:
        now = self._clock.now()
        if now - self._expired_at >= EXPIRE_INTERVAL_US:
            await self._checkpoints.expire(now)
            self._expired_at = now
