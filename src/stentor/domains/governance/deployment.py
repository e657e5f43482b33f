"""Deploys patches: checkpoint, apply, probe, then deployed or back. Taken up again after a kill at any point.

The checkpoint, the change of the agent and the state `deploying` are one transaction. What follows is a probe, which
changes nothing, and one transaction that ends it: so a killed process leaves either an approved update or one that is
probed again.
"""

from __future__ import annotations

import logging

from stentor.core.db import Database, Tx
from stentor.core.errors import InvalidRequest, SandboxUnavailable
from stentor.core.runlog import RunLog
from stentor.domains.governance import archive, checkpoints, model, moves, patch, store
from stentor.domains.governance.checkpoints import Checkpoints, RestoreFailed
from stentor.domains.governance.judging import Judging
from stentor.domains.governance.model import CheckpointCorrupt, Update
from stentor.domains.governance.probes import Found, Probe
from stentor.domains.registry import store as agents
from stentor.domains.registry.model import Agent
from stentor.domains.registry.service import AgentRegistry

log = logging.getLogger(__name__)


class Deployer:
    def __init__(
        self, db: Database, runlog: RunLog, registry: AgentRegistry, kept: Checkpoints, judging: Judging, probe: Probe
    ) -> None:
        self._db = db
        self._runlog = runlog
        self._registry = registry
        self._checkpoints = kept
        self._judging = judging
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
        update = store.find(tx, tenant, update_id)
        if update is None or update.status not in ("approved", "deploying") or not update.patched:
            return None
        if update.status == "deploying":
            agent = checkpoints.require_agent(tx, tenant, update.agent_id)
            # Taken out of routing, it waits for a person: no probe is to end what could not be undone as deployed.
            return None if agent.status == "suspended" else (update, agent)
        if (drift := self._judging.drift(tx, update)) is not None:
            self._give_up(tx, update, drift)
            return None
        agent = checkpoints.require_agent(tx, tenant, update.agent_id)
        try:
            target = self._judging.target(agent, update.changes.agent_patch or {})
        except (InvalidRequest, SandboxUnavailable) as error:
            self._give_up(tx, update, f"The registry would not take the agent any more. {error.message}")
            return None
        taken = self._checkpoints.take(tx, agent, "deployment", model.SYSTEM, update.head_id)
        meta = {"by": model.SYSTEM, "checkpoint_id": taken.checkpoint_id, "diff": update.basis.diff}
        update = moves.move(
            tx, self._runlog, update, "deploying", "Deploying.", meta, checkpoint_id=taken.checkpoint_id
        )
        fields = {name: getattr(target, name) for name in patch.FIELDS}
        message = f"Update {update_id} applied."
        change = self._registry.prepare_reconfigure(
            tenant, agent.agent_id, fields, message, model.SYSTEM, update.head_id
        )
        return update, change(tx)

    def _give_up(self, tx: Tx, update: Update, reason: str) -> None:
        """Nothing was applied: it goes through `deploying`, because only so an approved update comes back."""
        update = moves.move(tx, self._runlog, update, "deploying", reason, {"by": model.SYSTEM})
        moves.move(tx, self._runlog, update, "rolled_back", reason, {}, rolled_back_at=tx.now, notes=reason)

    def _end(self, tx: Tx, update: Update, found: Found) -> None:
        now = store.find(tx, update.tenant, update.update_id)
        if now is None or now.status != "deploying":
            return  # a rollback or another process was faster
        meta = {"by": model.SYSTEM, "probe": {"ok": found.ok, "what": found.what}}
        if found.ok:
            moves.move(tx, self._runlog, now, "deployed", found.what, meta, deployed_at=tx.now, notes=found.what)
            return
        try:
            self._set_back(tx, now)
        except (CheckpointCorrupt, RestoreFailed) as error:
            self._take_out(tx, now, error.message)
            return
        moves.move(tx, self._runlog, now, "rolled_back", found.what, meta, rolled_back_at=tx.now, notes=found.what)

    def _set_back(self, tx: Tx, update: Update) -> None:
        """Only what the patch changed: what the agent learned or lost meanwhile stays."""
        checkpoint = archive.find(tx, update.tenant, update.checkpoint_id or "")
        if checkpoint is None:
            raise RestoreFailed("The checkpoint of the deployment is gone.")
        fields = tuple(update.changes.agent_patch or ())
        if fields:
            self._checkpoints.restore(tx, checkpoint, model.SYSTEM, update.head_id, fields)

    def _take_out(self, tx: Tx, update: Update, reason: str) -> None:
        """An agent that neither works nor can be set back gets no more work. A rollback ends its update."""
        log.error("update %s failed and cannot be undone: %s", update.update_id, reason)
        agent = agents.find(tx, update.tenant, update.agent_id)
        if agent is not None and agent.status == "active":
            why = f"Update {update.update_id} failed and could not be undone."
            self._registry.prepare_suspend(update.tenant, agent.agent_id, why, model.SYSTEM, update.head_id)(tx)
