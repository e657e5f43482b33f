"""The wired parts of the service, and how they start and stop."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

from stentor.auth.principal import RoleRegistry
from stentor.bootstrap.cage import Commands
from stentor.bootstrap.governance import Governance
from stentor.bootstrap.llm import Llm
from stentor.bootstrap.memory import Memory
from stentor.bootstrap.messaging import Messages
from stentor.bootstrap.processes import tell_changes
from stentor.bootstrap.provenance import ProvenanceParts
from stentor.bootstrap.tasknotes import TaskNotes
from stentor.bootstrap.webhooks import Hooks
from stentor.core.clock import SECOND, Clock
from stentor.core.db import Database
from stentor.core.db.polling import apply_polls
from stentor.core.errors import StoreUnavailable
from stentor.core.fanout import CacheInvalidated, Fanout, Reconnected
from stentor.core.http_client.outbound import OutboundHttp
from stentor.core.live import Hub
from stentor.core.runlog import RunLog
from stentor.core.settings import Settings
from stentor.core.timers import sleep_until_tick, wait_until_tick
from stentor.domains.activity.service import ActivityService
from stentor.domains.execution.dispatcher import Dispatcher, RegistryFreshness
from stentor.domains.execution.reconciler import Reconciler
from stentor.domains.execution.rerouting import TaskRerouter
from stentor.domains.execution.service import WorkerService
from stentor.domains.learning.service import LearningService
from stentor.domains.monitoring.service import HealthService
from stentor.domains.registry.model import Runtime
from stentor.domains.registry.presence import Presence
from stentor.domains.registry.service import AgentDraft, AgentRegistry
from stentor.domains.routing.service import RoutingEngine
from stentor.domains.sandbox.service import SandboxService
from stentor.domains.tasks.grades import GradeService
from stentor.domains.tasks.grants import GrantService
from stentor.domains.tasks.service import TaskService
from stentor.domains.tasks.submission import SubmissionService
from stentor.domains.trust.service import TrustService

REFRESH_OVERLAP = 5 * SECOND
"""How far a refresh looks back, for commits that ended after their time was taken."""
REMIND_SECONDS = 5.0
LEAST_SECONDS = 0.05
"""Between two refreshes, however many changes others tell of."""
log = logging.getLogger(__name__)


@dataclass
class Kernel:
    """The wired parts. `start` and `stop` run on the event loop that serves."""

    settings: Settings
    db: Database
    clock: Clock
    fanout: Fanout
    known: RegistryFreshness
    hub: Hub
    roles: RoleRegistry
    outbound: OutboundHttp
    registry: AgentRegistry
    trust: TrustService
    learning: LearningService
    routing: RoutingEngine
    presence: Presence
    sandbox: SandboxService
    dispatcher: Dispatcher
    reconciler: Reconciler
    rerouting: TaskRerouter
    submission: SubmissionService
    grants: GrantService
    tasks: TaskService
    grades: GradeService
    workers: WorkerService
    activity: ActivityService
    health: HealthService
    memory: Memory | None
    runlog: RunLog
    task_notes: TaskNotes | None
    messages: Messages
    llm: Llm
    commands: Commands
    hooks: Hooks
    provenance: ProvenanceParts
    governance: Governance

    def __post_init__(self) -> None:
        self._background: list[asyncio.Task[None]] = []
        self._stale = asyncio.Event()
        self.hurry = asyncio.Event()
        """Set when a stop is to wait for nothing that runs."""
        self.health.set_check("webhooks", self.hooks.check)
        tell_changes(self.runlog, self.fanout)
        self.known.on_stale = self._stale.set
        for kind in (CacheInvalidated, Reconnected):
            self.fanout.subscribe(kind, lambda _: self._stale.set())

    async def start(self, tenants: list[str]) -> int:
        """Load what lives in memory, take up what an earlier process left; answers how many tasks."""
        await self.provenance.start()
        await self.fanout.start()
        await self._first_look()
        if self.settings.builtin_agents:
            for tenant in tenants:
                await self._register_builtins(tenant)
        alone = not self.db.driver.shared
        found = await self.reconciler.recover(is_single_process=alone)
        if self.memory is not None:
            await self.memory.start()
        if self.task_notes is not None:
            await self.task_notes.start()
        await self.messages.carrier.start()
        await self.hooks.start()
        await self.governance.runner.start(is_only_process=alone)
        self._background += [asyncio.create_task(job) for job in (self.reconciler.run(), self.rerouting.run())]
        if alone:
            self._background.append(asyncio.create_task(self._watch_trust()))
        else:
            self._background += [asyncio.create_task(job) for job in (self._keep_fresh(), self._remind())]
        return found

    async def stop(self) -> None:
        """Take no more work, stop what runs, close the store. Nothing that was answered is lost."""
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self.messages.carrier.stop()
        await self.governance.runner.stop()
        await self._drain()
        await self.hooks.stop()
        await self.llm.stop()
        if self.task_notes is not None:
            await self.task_notes.stop()
        if self.memory is not None:
            await self.memory.stop()
        await self.outbound.close()
        await self.provenance.stop()
        await self.fanout.stop()
        await asyncio.to_thread(self.db.close)

    async def _drain(self) -> None:
        """What does not end in time is handed to others, where there are others."""
        if (running := self.dispatcher.count_running()) and self.settings.drain:
            text = "%d tasks run here and have %g s to end; one more signal stops them at once"
            log.warning(text, running, self.settings.drain)
        left = await self.dispatcher.close(self.settings.drain, self.hurry)
        try:
            await self.reconciler.release_claims(left)
        except StoreUnavailable:
            log.warning("%d tasks are taken up by others when their leases end", len(left))

    async def _remind(self) -> None:
        while True:
            await sleep_until_tick(REMIND_SECONDS)
            self.hub.renew_interest()

    async def refresh(self, since: int) -> None:
        """Take in what changed since, of all that is kept in memory."""
        news = [
            part.poll_query(since) for part in (self.registry, self.learning.view, self.llm.models, self.trust.view)
        ]
        await apply_polls(self.db.poll, [*news, self.hooks.deliverer.poll_query()])

    async def _first_look(self) -> None:
        """Load what is kept in memory. Trust alone may be missing: routing goes on without it, and says so."""
        news = [part.poll_query(0) for part in (self.registry, self.learning.view, self.llm.models)]
        await apply_polls(self.db.poll, [*news, self.hooks.deliverer.poll_query()])
        try:
            await apply_polls(self.db.poll, [self.trust.view.poll_query(0)])
        except Exception:
            log.exception("trust cannot be read; tasks are routed without it")

    async def _watch_trust(self) -> None:
        """Find out that trust cannot be read, or can be again, where nothing else looks for what others wrote.

        After an outage all scores are read, because this process may have missed the first look.
        """
        while True:
            await sleep_until_tick(self.settings.snapshot_refresh)
            since = self.clock.now() if self.trust.view.is_available else 0
            try:
                await apply_polls(self.db.poll, [self.trust.view.poll_query(since)])
            except Exception as error:  # noqa: BLE001 - the view says that it is not available, and routing tells
                log.debug("trust cannot be read: %s", error)

    async def _keep_fresh(self) -> None:
        since = self.clock.now()
        while True:
            await wait_until_tick(self._stale, self.settings.snapshot_refresh)
            if self._stale.is_set():
                await asyncio.sleep(LEAST_SECONDS)
            self._stale.clear()
            started = self.clock.now()
            try:
                await self.refresh(since - REFRESH_OVERLAP)
                since = started
                self.dispatcher.registry_refreshed()
            except StoreUnavailable:
                continue  # the database says in the log that it is out; routing goes on with what is known
            except Exception:
                # Fails open: routing goes on with what is known, and the health route tells.
                log.exception("the view of the registry could not be refreshed")

    async def _register_builtins(self, tenant: str) -> None:
        known = {agent.runtime.name for agent in self.registry.agents.list_of_tenant(tenant) if agent.runtime.name}
        wanted: dict[str, tuple[str, ...]] = {"summarizer": ("summarize",)}
        if self.memory is not None and tenant == self.settings.vault_tenant:
            wanted["librarian"] = ("search", "answer")
        for name, capabilities in wanted.items():
            if name not in known:
                draft = AgentDraft(name, capabilities, runtime=Runtime("builtin", name))
                await self.registry.register(tenant, draft, "system")
