"""All domains wired together, and how they start and stop. Read `build` for what needs what."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Protocol

from stentor.auth.oidc.provider import OidcProvider
from stentor.bootstrap.infrastructure import Infrastructure, open_infrastructure
from stentor.bootstrap.parts.agents import (
    AgentServices,
    ClusterAgents,
    open_agents,
    open_cluster_agents,
    open_model_checks,
)
from stentor.bootstrap.parts.command_agents import CommandAgents, memory_tools, open_command_agents
from stentor.bootstrap.parts.governance import GovernanceParts, open_governance
from stentor.bootstrap.parts.llm import LlmParts, open_llm
from stentor.bootstrap.parts.memory import Memory, open_memory, report_lookup
from stentor.bootstrap.parts.messaging import MessagingParts, open_messaging
from stentor.bootstrap.parts.notifications import WebhookParts, open_alerts, open_webhooks
from stentor.bootstrap.parts.provenance import ProvenanceParts, archive_check, open_archiver
from stentor.bootstrap.parts.task_notes import TaskNotes, open_task_notes
from stentor.bootstrap.parts.tasks import Schedules, TaskServices, open_schedules, open_tasks
from stentor.bootstrap.view_refresh import ViewRefresher
from stentor.core.clock import Clock
from stentor.core.db import Database
from stentor.core.db.locks.leader import JOBS_LOCK_ID, LeaderElection
from stentor.core.errors import StoreUnavailable
from stentor.core.fanout.live import Hub
from stentor.core.runlog import RunLog
from stentor.core.security.redaction import Redactor
from stentor.core.settings import Settings
from stentor.core.timers import AsyncJob, sleep_until_tick
from stentor.domains.alerts.service import AlertService
from stentor.domains.execution.runtimes import RuntimeDriver
from stentor.domains.execution.runtimes.builtin import BuiltinDriver, LibrarianAgent
from stentor.domains.execution.runtimes.http import HttpDriver
from stentor.domains.execution.runtimes.llm import LlmDriver
from stentor.domains.keys.service import KeyService
from stentor.domains.llm import costs
from stentor.domains.memory.governed.key_access import SearchRights
from stentor.domains.monitoring.service import HealthService, database_check, fixed_check, vault_check
from stentor.domains.people.service import PeopleService
from stentor.domains.registry.model import Runtime
from stentor.domains.registry.model_checks import ModelChecks
from stentor.domains.registry.operations import CheckRuntime
from stentor.domains.registry.service import AgentDraft
from stentor.domains.retention.service import TaskArchiver
from stentor.domains.sessions.service import SessionService
from stentor.domains.steps.service import StepService
from stentor.domains.tasknotes.model import is_in_inbox

REMIND_SECONDS = 5.0
log = logging.getLogger(__name__)


class StartStop(Protocol):
    async def start(self) -> Any: ...

    async def stop(self) -> None: ...


@dataclass
class Kernel:
    """The services of all domains. `start` and `stop` run on the event loop that serves."""

    infra: Infrastructure
    agents: AgentServices
    tasks: TaskServices
    llm: LlmParts
    model_checks: ModelChecks
    keys: KeyService
    people: PeopleService
    command_agents: CommandAgents
    cluster_agents: ClusterAgents
    check_runtime: CheckRuntime
    governance: GovernanceParts
    messaging: MessagingParts
    schedules: Schedules
    sessions: SessionService
    webhooks: WebhookParts
    provenance: ProvenanceParts
    views: ViewRefresher
    health: HealthService
    alerts: AlertService
    archiver: TaskArchiver
    jobs_leader: LeaderElection
    """Elects the process that runs the jobs of which one is enough: alerts, the index of tasks, the deletion of old
    prompts and answers, the archive."""
    memory: Memory | None
    task_notes: TaskNotes | None
    skip_drain: asyncio.Event = field(default_factory=asyncio.Event)
    """Set to have a stop wait for no running task."""
    _exit_stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    def __post_init__(self) -> None:
        # Pushed before anything that starts, so the database is closed last, even if the kernel was never started or
        # only partly.
        self._exit_stack.push_async_callback(asyncio.to_thread, self.infra.db.close)
        self._exit_stack.push_async_callback(self.tasks.search.close)

    async def start(self, tenants: list[str]) -> int:
        """Load what is held in memory and start the background work; return how many tasks were recovered.

        What is started is stopped in reverse order, also if a later start fails.
        """
        async with AsyncExitStack() as stack:
            await _start(stack, self.infra.fanout)
            # Second, so that it stops late: it numbers and signs the events that the other stops still write.
            await _start(stack, self.provenance)
            stack.push_async_callback(self.infra.outbound.close)
            stack.push_async_callback(self.cluster_agents.close)
            # Before the recovery of tasks, which routes and dispatches them by the agents in memory.
            await self.views.load()
            await self.keys.reserve_names()
            for tenant in tenants if self.infra.settings.tasks.builtin_agents else ():
                await self._register_builtins(tenant)
            recovered = await self.tasks.reconciler.recover(is_single_process=self.infra.is_single_process)
            for part in (self.memory, self.task_notes):
                if part is not None:
                    await _start(stack, part)
            stack.push_async_callback(self.llm.stop)
            stack.push_async_callback(self.keys.store_use)
            stack.push_async_callback(self.people.close)
            await _start(stack, self.webhooks)
            # Everything above is needed by a task that runs, everything below may start new work.
            # Tasks that end while they are drained still call models, write notes and queue deliveries.
            self._start_lease_renewal(stack)
            stack.push_async_callback(self._drain)
            await self.governance.runner.start(is_only_process=self.infra.is_single_process)
            stack.push_async_callback(self.governance.runner.stop)
            await _start(stack, self.messaging.processor)
            self._start_background(stack)
            # Nothing failed: what was started here is now stopped by `stop`, in the same reverse order.
            self._exit_stack.push_async_exit(stack.pop_all())
        return recovered

    async def stop(self) -> None:
        """Take no more work, end what runs, close the database. Nothing that was acknowledged is lost."""
        self.infra.db.driver.shorten_timeouts()
        await self._exit_stack.aclose()

    def _start_lease_renewal(self, stack: AsyncExitStack) -> None:
        renewal = asyncio.create_task(self.tasks.lease_renewer.run())

        async def cancel() -> None:
            renewal.cancel()
            await asyncio.gather(renewal, return_exceptions=True)

        # Stopped after the drain: an attempt that may still end must keep its lease.
        stack.push_async_callback(cancel)

    def _start_background(self, stack: AsyncExitStack) -> None:
        jobs: list[AsyncJob] = [
            self.tasks.reconciler.run,
            self.tasks.rerouting.run,
            self.model_checks.run,
            self.tasks.wakeups.run,
            self.tasks.parked_tasks.run,
            self.tasks.workers.run,
            self.keys.run,
            lambda: self.alerts.run(self.jobs_leader),
            lambda: self.tasks.search.run(self.jobs_leader),
            lambda: self.llm.contents.run(self.jobs_leader),
            lambda: self.llm.usage_totals.run(self.jobs_leader),
            lambda: self.archiver.run(self.jobs_leader),
        ]
        # Only gateways load the keys, and a schedule runs with the rights of a key.
        if "gateway" in self.infra.settings.process.roles:
            jobs.append(self.schedules.scheduler.run)
        if self.infra.is_single_process:
            jobs.append(self.views.watch_trust)
        else:
            jobs += [self.views.keep_fresh, self._remind]
        running = [asyncio.create_task(job()) for job in jobs]

        async def cancel() -> None:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            # After the jobs: the next leader begins as soon as the lock is free.
            await self.jobs_leader.close()

        stack.push_async_callback(cancel)

    async def _drain(self) -> None:
        """Let running tasks end; those that take too long are handed to other processes, if there are any."""
        dispatcher, drain_seconds = self.tasks.dispatcher, self.infra.settings.process.drain_seconds
        if (running := dispatcher.count_running()) and drain_seconds:
            text = "shutdown: draining tasks=%d timeout_s=%g; a second signal stops them at once"
            log.warning(text, running, drain_seconds)
        unfinished = await dispatcher.close(drain_seconds, self.skip_drain)
        try:
            await self.tasks.reconciler.release_claims(unfinished)
        except StoreUnavailable:
            log.warning("shutdown: claims not released, their leases expire tasks=%d", len(unfinished))

    async def _remind(self) -> None:
        while True:
            await sleep_until_tick(REMIND_SECONDS)
            self.infra.hub.renew_interest()

    async def _register_builtins(self, tenant: str) -> None:
        registry = self.agents.registry
        known = {agent.runtime.name for agent in registry.agents.list_by_tenant(tenant) if agent.runtime.name}
        builtins: dict[str, tuple[str, ...]] = {"summarizer": ("summarize",)}
        if self.memory is not None and tenant == self.infra.settings.memory.tenant:
            builtins["librarian"] = ("search", "answer")
        for name, capabilities in builtins.items():
            if name not in known:
                draft = AgentDraft(name, capabilities, runtime=Runtime("builtin", name))
                await registry.register(tenant, draft, "system")


async def _start(stack: AsyncExitStack, part: StartStop) -> None:
    await part.start()
    stack.push_async_callback(part.stop)


def build(
    settings: Settings,
    db: Database,
    clock: Clock,
    create_runlog: Callable[[Hub], RunLog] = RunLog,
    redactor: Redactor | None = None,
) -> Kernel:
    """Wire all domains over a database whose schema is up to date. Raises StartRefused."""
    infra = open_infrastructure(settings, db, clock, create_runlog, redactor)
    agents = open_agents(infra)
    memory = open_memory(infra) if settings.memory.enabled else None
    llm = open_llm(infra, agents.registry.agents.get, agents.routing.is_active)
    model_checks = open_model_checks(agents, llm.gateway)
    keys, people = _open_keys(infra, llm), _open_people(infra)
    rights, tenant = SearchRights(infra.roles, keys.memory_access), settings.memory.tenant
    command_agents = open_command_agents(
        infra, agents, memory_tools(memory, agents, rights, tenant) if memory else (), llm
    )
    cluster_agents = open_cluster_agents(infra)
    librarian = LibrarianAgent(memory.default.search, tenant, rights.of_submitter, is_in_inbox) if memory else None
    builtin = BuiltinDriver({"librarian": librarian.run} if librarian else None)
    sessions = SessionService(infra.db, infra.runlog, agents.routing.is_active)
    steps = StepService(infra.db, infra.runlog, agents.registry.agents)
    drivers: dict[str, RuntimeDriver] = {
        "builtin": builtin,
        "http": HttpDriver(infra.outbound, agents.presence, steps),
        "llm": LlmDriver(llm.gateway, command_agents.tools, steps, sessions),
        "command": command_agents.driver,
        **cluster_agents.drivers,
    }

    def check_runtime(runtime: Runtime) -> None:
        command_agents.check_runtime(runtime)
        cluster_agents.check_runtime(runtime)

    find_reports = report_lookup(memory, settings.memory.tenant)
    tasks = open_tasks(infra, agents, drivers, steps, find_reports, llm.tracer.recorder if llm.tracer else None)
    governance = open_governance(infra, agents, builtin.names, check_runtime, cluster_agents.probe)
    provenance = ProvenanceParts(infra)
    webhooks = open_webhooks(infra)
    archiver = open_archiver(infra)
    health = HealthService(
        {
            "api": fixed_check("available", "responds"),
            "database": database_check(db),
            "agents": fixed_check("available", "loaded"),
            **command_agents.health(),
            "mcp_server": fixed_check("disabled", "not started in this process"),
            "provenance": provenance.check,
            "vault": vault_check(memory.default.vault) if memory else fixed_check("disabled", "switched off"),
            "webhooks": webhooks.check,
            **({"archive": archive_check(archiver)} if archiver.days else {}),
        },
        optional_components=["provenance", "archive"],
    )
    kernel = Kernel(
        infra=infra,
        agents=agents,
        tasks=tasks,
        llm=llm,
        model_checks=model_checks,
        keys=keys,
        people=people,
        command_agents=command_agents,
        cluster_agents=cluster_agents,
        check_runtime=check_runtime,
        governance=governance,
        messaging=open_messaging(infra, agents, tasks, memory, governance, check_runtime),
        schedules=open_schedules(infra, tasks.submission, agents.routing.is_active),
        sessions=sessions,
        webhooks=webhooks,
        provenance=provenance,
        views=ViewRefresher(infra, agents, tasks, llm, keys, people, webhooks),
        health=health,
        alerts=open_alerts(infra, agents, llm, health),
        archiver=archiver,
        jobs_leader=LeaderElection(db.driver, JOBS_LOCK_ID, "alerts, the index of tasks and retention"),
        memory=memory,
        task_notes=open_task_notes(infra, memory, tasks, agents.registry.agents) if memory else None,
    )
    kernel.views.follow_changes()
    return kernel


def _open_keys(infra: Infrastructure, llm: LlmParts) -> KeyService:
    """Open the service of API keys. It finds keys only once a ring of keys is attached to it."""
    return KeyService(
        infra.db,
        infra.runlog,
        infra.clock,
        infra.roles,
        costs.parse_budgets,
        lambda entries: llm.ledger.set_key_budgets(
            budget for tenant, of_keys in entries.items() for budget in costs.parse_budgets(of_keys, "key", tenant)
        ),
        infra.settings.memory.vault_names,
    )


def _open_people(infra: Infrastructure) -> PeopleService:
    """Their sessions are found once a ring of keys is attached to the service."""
    settings = infra.settings
    provider = OidcProvider(settings.oidc, infra.clock) if settings.oidc.issuer else None
    return PeopleService(
        infra.db, infra.runlog, infra.clock, infra.roles, settings.oidc, provider, settings.dashboard.session_hours
    )
