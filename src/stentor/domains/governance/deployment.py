"""Deploys patches (checkpoint, apply, probe, then keep or roll back), and runs deployments and rollbacks.

The checkpoint, the change of the agent and the status `deploying` are one transaction. Then comes a probe, which
changes nothing, and one more transaction. So a killed process leaves either an approved update or one that is probed
again.
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

RUNNER_BATCH = 100
EXPIRE_INTERVAL_US = HOUR
WorkKey = tuple[str, str, str]
"""Kind (deploy, rollback), tenant and id."""
log = logging.getLogger(__name__)


class Deployer:
    """Deploys the patch of an approved update."""

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
        """Deploy a patch from whatever status its update has; does nothing if it has ended."""
        started = await self._db.write(lambda tx: self.begin(tx, tenant, update_id))
        if started is not None:
            update, agent = started
            # Between two transactions: a probe takes long, and one thread runs all writes.
            result = await self.probe(agent)
            await self._db.write(lambda tx: self._finish(tx, update, result))

    def begin(self, tx: Tx, tenant: str, update_id: str) -> tuple[Update, Agent] | None:
        """Apply the patch; return the update and the patched agent, or None if there is nothing to probe."""
        update = store.find_update(tx, tenant, update_id)
        # Read again in this transaction: the runner's list is older, and another process may have been faster.
        if update is None or update.status not in ("approved", "deploying") or not update.patched:
            return None
        if update.status == "deploying":
            agent = checkpoints.require_agent(tx, tenant, update.agent_id)
            # Suspended because the deployment could not be undone: a person decides, not another probe.
            return None if agent.status == "suspended" else (update, agent)
        if (drift := self._reviewer.find_drift(tx, update)) is not None:
            self._roll_back_unapplied(tx, update, drift)
            return None
        agent = checkpoints.require_agent(tx, tenant, update.agent_id)
        try:
            target = self._reviewer.build_target(agent, update.changes.agent_patch or {})
        except (InvalidRequest, SandboxUnavailable) as error:
            self._roll_back_unapplied(tx, update, f"The registry no longer accepts the patched agent. {error.message}")
            return None
        checkpoint = self._checkpoints.take(tx, agent, "deployment", model.SYSTEM_ACTOR, update.head_id)
        meta = {"by": model.SYSTEM_ACTOR, "checkpoint_id": checkpoint.checkpoint_id, "diff": update.basis.diff}
        update = review.change_status(
            tx, self._runlog, update, "deploying", "Deploying.", meta, checkpoint_id=checkpoint.checkpoint_id
        )
        fields = {name: getattr(target, name) for name in impact.PATCHABLE_FIELDS}
        message = f"Update {update_id} applied."
        change = self._registry.prepare_reconfigure(
            tenant, agent.agent_id, fields, message, model.SYSTEM_ACTOR, update.head_id
        )
        return update, change(tx)

    def _roll_back_unapplied(self, tx: Tx, update: Update, reason: str) -> None:
        # Through `deploying`, because the contract allows `rolled_back` only after it.
        update = review.change_status(tx, self._runlog, update, "deploying", reason, {"by": model.SYSTEM_ACTOR})
        review.change_status(tx, self._runlog, update, "rolled_back", reason, {}, rolled_back_at=tx.now, notes=reason)

    def _finish(self, tx: Tx, update: Update, result: ProbeResult) -> None:
        current = store.find_update(tx, update.tenant, update.update_id)
        if current is None or current.status != "deploying":
            return  # a rollback or another process ended it during the probe
        detail = result.detail
        meta = {"by": model.SYSTEM_ACTOR, "probe": {"ok": result.is_ok, "what": detail}}
        if result.is_ok:
            review.change_status(tx, self._runlog, current, "deployed", detail, meta, deployed_at=tx.now, notes=detail)
            return
        try:
            self._restore(tx, current)
        except (CheckpointCorrupt, RestoreFailed) as error:
            self._suspend(tx, current, error.message)
            return
        review.change_status(
            tx, self._runlog, current, "rolled_back", detail, meta, rolled_back_at=tx.now, notes=detail
        )

    def _restore(self, tx: Tx, update: Update) -> None:
        """Restore only the fields that the patch changed, so that later scores of the agent are kept."""
        checkpoint = store.find_checkpoint(tx, update.tenant, update.checkpoint_id or "")
        if checkpoint is None:
            raise RestoreFailed("The checkpoint of the deployment no longer exists.")
        fields = tuple(update.changes.agent_patch or ())
        # An empty patch has nothing to restore, and without names `restore` would restore the whole agent.
        if fields:
            self._checkpoints.restore(tx, checkpoint, model.SYSTEM_ACTOR, update.head_id, fields)

    def _suspend(self, tx: Tx, update: Update, reason: str) -> None:
        """Suspend an agent that neither works nor can be restored; its update stays `deploying` until a rollback."""
        log.error("governance: failed update cannot be undone update_id=%s reason=%s", update.update_id, reason)
        agent = agents.find(tx, update.tenant, update.agent_id)
        if agent is not None and agent.status == "active":
            why = f"Update {update.update_id} failed and could not be undone."
            self._registry.prepare_suspend(update.tenant, agent.agent_id, why, model.SYSTEM_ACTOR, update.head_id)(tx)


class GovernanceRunner:
    """Runs deployments and rollbacks, including those that another process left unfinished.

    A deployment whose status has not changed for `stale_after_us` (longer than a probe takes) was left by a process
    that ended.
    """

    def __init__(self, db: Database, clock: Clock, checkpoints: CheckpointService, stale_after_us: int) -> None:
        self._db = db
        self._clock = clock
        self._checkpoints = checkpoints
        self._stale_after_us = stale_after_us
        self._handlers: dict[str, Callable[[str, str], Awaitable[None]]] = {}
        self._wake_event = asyncio.Event()
        self._running: dict[WorkKey, asyncio.Task[None]] = {}
        self._loop: asyncio.Task[None] | None = None
        self._expired_at = 0
        self._is_polling = False

    def set_handlers(self, deployer: Deployer, rollbacks: RollbackService) -> None:
        self._handlers = {"deploy": deployer.deploy, "rollback": rollbacks.execute}

    def wake(self) -> None:
        """Poll soon. For the event loop's thread."""
        self._wake_event.set()

    async def start(self, *, is_only_process: bool) -> None:
        """Start. If this is the only process on the database, everything unfinished is resumed at once."""
        await self._poll(0 if is_only_process else self._stale_after_us)
        self._loop = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Cancel running work, which the next process resumes."""
        tasks = [*self._running.values(), *([self._loop] if self._loop else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def is_busy(self) -> bool:
        """Whether work is running or was requested."""
        return self._wake_event.is_set() or self._is_polling or bool(self._running)

    async def _run(self) -> None:
        while True:
            with suppress(TimeoutError):
                # Half the time, so that abandoned work is found at most one and a half times `stale_after_us` later.
                await asyncio.wait_for(self._wake_event.wait(), self._stale_after_us / 2 / SECOND)
            try:
                await self._poll(self._stale_after_us)
                await self._expire_checkpoints()
            except StoreUnavailable:
                continue  # the database logs its outage; the next poll finds the work again
            except Exception:
                log.exception("governance: poll failed")

    async def _poll(self, stale_after_us: int) -> None:
        """Start all work that is not running yet."""
        now = self._clock.now()
        # Before the read: what is approved during it sets the event again.
        self._wake_event.clear()
        self._is_polling = True

        def read(tx: Tx) -> list[WorkKey]:
            updates: list[WorkKey] = [
                ("deploy", *key) for key in store.list_deployable(tx, now - stale_after_us, RUNNER_BATCH)
            ]
            return updates + [("rollback", *key) for key in store.list_unfinished_rollbacks(tx, RUNNER_BATCH)]

        try:
            for key in await self._db.read(read):
                if key not in self._running:
                    self._running[key] = asyncio.create_task(self._execute(key))
        finally:
            self._is_polling = False

    async def _execute(self, key: WorkKey) -> None:
        kind, tenant, record_id = key
        try:
            await self._handlers[kind](tenant, record_id)
        except (StoreUnavailable, Conflict):
            pass  # nothing was written, or another process did it; the next poll finds what is left
        except Exception:
            log.exception("governance: work failed kind=%s id=%s", kind, record_id)
        finally:
            self._running.pop(key, None)

    async def _expire_checkpoints(self) -> None:
        now = self._clock.now()
        if now - self._expired_at >= EXPIRE_INTERVAL_US:
            await self._checkpoints.expire(now)
            self._expired_at = now
