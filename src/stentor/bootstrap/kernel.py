"""Wires the kernel: database, registry, routing, execution, learning, and the gateway over them."""

from __future__ import annotations

import asyncio
import importlib
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp

from stentor.auth import keys as key_files
from stentor.auth.keys import KeyRing, LoadedKeys
from stentor.bootstrap.cage import Commands, open_cage
from stentor.bootstrap.governance import Governance, admission, open_governance, open_rules
from stentor.bootstrap.llm import Llm, llm_routers, open_llm
from stentor.bootstrap.memory import Memory, open_memory
from stentor.bootstrap.messaging import Messages, open_messages
from stentor.bootstrap.provenance import ProvenanceParts
from stentor.bootstrap.tasknotes import TaskNotes, open_task_notes
from stentor.bootstrap.webhooks import Hooks, open_webhooks
from stentor.core import migrations
from stentor.core.clock import SECOND, Clock, SystemClock, iso
from stentor.core.db import Database
from stentor.core.db.driver import Driver
from stentor.core.db.sqlite import SqliteDriver
from stentor.core.errors import StartRefused, StoreUnavailable
from stentor.core.live import Hub
from stentor.core.outbound import Outbound
from stentor.core.owner import DataFolderLock
from stentor.core.redaction import Redactor
from stentor.core.runlog import RunLog
from stentor.core.settings import Settings, metas
from stentor.domains.activity import api as activity_api
from stentor.domains.activity.service import Activity
from stentor.domains.conversation.service import Conversations
from stentor.domains.execution import api as execution_api
from stentor.domains.execution.attempt import Attempts
from stentor.domains.execution.dispatcher import Dispatcher
from stentor.domains.execution.outcomes import Ending
from stentor.domains.execution.reconciler import Reconciler
from stentor.domains.execution.runtimes import Driver as RuntimeDriver
from stentor.domains.execution.runtimes.builtin import Builtin
from stentor.domains.execution.runtimes.http import Http
from stentor.domains.execution.runtimes.librarian import Librarian
from stentor.domains.execution.runtimes.llm import Llm as LlmRuntime
from stentor.domains.execution.service import Workers
from stentor.domains.learning import api as learning_api
from stentor.domains.learning.service import Learning
from stentor.domains.memory import api as memory_api
from stentor.domains.monitoring import api as monitoring_api
from stentor.domains.monitoring.metrics import scrape
from stentor.domains.monitoring.service import Health, agents_check, database_check, fixed, vault_check
from stentor.domains.registry import api as registry_api
from stentor.domains.registry.model import Runtime
from stentor.domains.registry.service import AgentDraft, Registry
from stentor.domains.routing.model import Policy
from stentor.domains.routing.service import Routing
from stentor.domains.sandbox import api as sandbox_api
from stentor.domains.sandbox.service import Sandbox
from stentor.domains.tasks import api as tasks_api
from stentor.domains.tasks.grants import api as grants_api
from stentor.domains.tasks.grants.service import Grants
from stentor.domains.tasks.placement import Placing
from stentor.domains.tasks.service import Tasks
from stentor.domains.tasks.submission import Submission
from stentor.domains.trust import api as trust_api
from stentor.domains.trust.service import Trust
from stentor.surfaces.gateway import app as gateway
from stentor.surfaces.gateway import later
from stentor.web.gate import RateLimit
from stentor.web.sse import StreamLimit

REFRESH_OVERLAP = 5 * SECOND
"""How far a refresh looks back, for commits that ended after their time was taken."""
log = logging.getLogger(__name__)


@dataclass
class Kernel:
    """The wired parts. `start` and `stop` run on the event loop that serves."""

    settings: Settings
    db: Database
    clock: Clock
    hub: Hub
    outbound: Outbound
    registry: Registry
    trust: Trust
    learning: Learning
    routing: Routing
    sandbox: Sandbox
    dispatcher: Dispatcher
    reconciler: Reconciler
    submission: Submission
    grants: Grants
    tasks: Tasks
    workers: Workers
    activity: Activity
    health: Health
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
        self.health.check("webhooks", self.hooks.check)

    async def start(self, tenants: list[str]) -> int:
        """Load what lives in memory, take up what an earlier process left; answers how many tasks."""
        self.provenance.start()
        await self._refresh(0)
        if self.settings.builtin_agents:
            for tenant in tenants:
                await self._register_builtins(tenant)
        alone = not self.db.driver.shared
        found = await self.reconciler.recover(alone=alone)
        if self.memory is not None:
            await self.memory.start()
        if self.task_notes is not None:
            await self.task_notes.start()
        await self.messages.carrier.start()
        await self.hooks.start()
        await self.governance.runner.start(alone=alone)
        self._background.append(asyncio.create_task(self.reconciler.run()))
        if not alone:
            self._background.append(asyncio.create_task(self._keep_fresh()))
        return found

    async def stop(self) -> None:
        """Take no more work, stop what runs, close the store. Nothing that was answered is lost."""
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        await self.messages.carrier.stop()
        await self.governance.runner.stop()
        await self.dispatcher.close()
        await self.hooks.stop()
        await self.llm.stop()
        if self.task_notes is not None:
            await self.task_notes.stop()
        if self.memory is not None:
            await self.memory.stop()
        await self.outbound.close()
        await self.provenance.stop()
        await asyncio.to_thread(self.db.close)

    async def _refresh(self, since: int) -> None:
        await self.registry.refresh(since)
        await self.learning.refresh(since)
        await self.trust.refresh(since)
        await self.hooks.deliverer.refresh()

    async def _keep_fresh(self) -> None:
        since = self.clock.now()
        while True:
            await asyncio.sleep(self.settings.snapshot_refresh)
            started = self.clock.now()
            try:
                await self._refresh(since - REFRESH_OVERLAP)
                since = started
            except StoreUnavailable:
                continue  # the database says in the log that it is out; routing goes on with what is known
            except Exception:
                # Fails open: routing goes on with what is known, and the health route tells.
                log.exception("the view of the registry could not be refreshed")

    async def _register_builtins(self, tenant: str) -> None:
        known = {agent.runtime.name for agent in self.registry.snapshot.of_tenant(tenant) if agent.runtime.name}
        wanted: dict[str, tuple[str, ...]] = {"summarizer": ("summarize",)}
        if self.memory is not None and tenant == self.settings.vault_tenant:
            wanted["librarian"] = ("search", "answer")
        for name, capabilities in wanted.items():
            if name not in known:
                draft = AgentDraft(name, capabilities, runtime=Runtime("builtin", name))
                await self.registry.register(tenant, draft, "system")


@dataclass
class Service:
    """A kernel with its keys, its lock on the data folder and its ASGI application."""

    kernel: Kernel
    keys: LoadedKeys
    app: ASGIApp
    lock: DataFolderLock | None

    async def start(self) -> int:
        return await self.kernel.start(self.keys.ring.tenants)

    def leave(self) -> None:
        """Have long polls and streams end, so that the server need not cut them off."""
        self.kernel.hub.closing.set()

    async def stop(self) -> None:
        await self.kernel.stop()
        self._release()

    def abandon(self) -> None:
        """Instead of a start: nothing runs yet."""
        self.kernel.db.close()
        self._release()

    def _release(self) -> None:
        if self.lock is not None:
            self.lock.release()


def open_service(settings: Settings, environ: Mapping[str, str], redactor: Redactor) -> Service:
    """Lock the folder, bring the schema up to date, wire everything. Raises StartRefused."""
    try:
        settings.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StartRefused(f"The data folder {settings.data_dir} cannot be made: {error.strerror}.") from None
    clock = SystemClock()
    lock = None if settings.database_url else DataFolderLock(settings.data_dir, iso(clock.now()))
    try:
        for name, meta in metas().items():
            if meta.secret and (value := getattr(settings, name)):
                redactor.add(value)
        driver = open_driver(settings)
        migrations.upgrade(driver)
        loaded = key_files.load(settings, environ, redactor)
        kernel = build(settings, Database(driver), clock, redactor=redactor)
        return Service(kernel, loaded, application(kernel, loaded.ring), lock)
    except BaseException:
        if lock is not None:
            lock.release()
        raise


def open_driver(settings: Settings) -> Driver:
    if not settings.database_url:
        return SqliteDriver(settings.data_dir / "stentor.db")
    try:
        module = importlib.import_module("stentor.core.db.postgres")
    except ImportError:
        raise StartRefused("PostgreSQL needs the extra: pip install 'stentor[postgres]'.") from None
    driver: Driver = module.PostgresDriver(settings.database_url)
    return driver


def build(
    settings: Settings,
    db: Database,
    clock: Clock,
    make_runlog: Callable[[Hub], RunLog] = RunLog,
    redactor: Redactor | None = None,
) -> Kernel:
    """Wire the parts over a database whose schema is up to date."""
    hub = Hub()
    runlog = make_runlog(hub)
    outbound = Outbound(settings.outbound_allow)
    registry = Registry(db, clock, runlog)
    trust = Trust(db, clock, runlog)
    learning = Learning(db, clock, runlog)
    rules = open_rules(settings)
    policy = Policy(settings.alpha, settings.beta, settings.trust_floor, settings.own_authority, admission(rules))
    routing = Routing(registry.snapshot, learning.view, trust.view, clock, policy)
    ending = Ending(runlog, learning, trust, hub)
    memory = open_memory(settings, db, clock, runlog) if settings.memory else None
    librarian = {"librarian": Librarian(memory.search, settings.vault_tenant).run} if memory else None
    sandbox, llm = Sandbox(db, registry, runlog, rules), open_llm(settings, db, clock, runlog, outbound, redactor)
    builtin = Builtin(librarian)
    drivers: dict[str, RuntimeDriver] = {"builtin": builtin, "http": Http(outbound), "llm": LlmRuntime(llm.gateway)}
    commands = open_cage(settings, db, runlog, sandbox, registry.snapshot, outbound, memory, llm, redactor)
    check = commands.check_runtime
    drivers["command"] = commands.driver
    governance = open_governance(settings, db, clock, runlog, registry, trust, outbound, rules, builtin.names, check)
    grants = Grants(db, runlog, registry.snapshot, routing)
    attempts = Attempts(db, runlog, routing, registry.snapshot, ending, hub, drivers, grants)
    dispatcher = Dispatcher(attempts, settings.concurrency)
    placing = Placing(routing, registry.snapshot, learning.view, dispatcher)
    submission = Submission(db, runlog, placing, dispatcher, grants)
    tasks = Tasks(db, runlog, placing, dispatcher, grants)
    provenance = ProvenanceParts(settings, db, clock)
    return Kernel(
        settings=settings,
        db=db,
        clock=clock,
        hub=hub,
        outbound=outbound,
        registry=registry,
        trust=trust,
        learning=learning,
        routing=routing,
        sandbox=sandbox,
        dispatcher=dispatcher,
        reconciler=Reconciler(db, runlog, dispatcher, attempts, ending, settings.max_attempts),
        submission=submission,
        grants=grants,
        tasks=tasks,
        workers=Workers(db, registry.snapshot, dispatcher, attempts, ending, hub),
        activity=Activity(db, hub, registry.snapshot),
        health=Health(
            {
                "api": fixed("available", "answers"),
                "database": database_check(db),
                "agents": agents_check(registry.snapshot),
                **commands.health(),
                "mcp_server": fixed("disabled", "not started in this process"),
                "provenance": provenance.check,
                "vault": vault_check(memory.vault) if memory else fixed("disabled", "switched off"),
            },
            apart=["provenance"],
        ),
        memory=memory,
        runlog=runlog,
        task_notes=open_task_notes(settings, db, hub, memory, submission, registry.snapshot) if memory else None,
        messages=open_messages(
            settings, db, clock, hub, runlog, registry, trust, routing, submission, tasks, check, memory, governance
        ),
        llm=llm,
        commands=commands,
        hooks=open_webhooks(settings, db, clock, runlog),
        provenance=provenance,
        governance=governance,
    )


def application(kernel: Kernel, ring: KeyRing) -> ASGIApp:
    """The gateway over a kernel."""
    snapshot, settings = kernel.registry.snapshot, kernel.settings

    def trust_of(tenant: str, agent_id: str) -> float | None:
        return kernel.trust.view.score(tenant, agent_id, kernel.clock.now())

    def agent_known(tenant: str, agent_id: str) -> bool:
        return snapshot.get(tenant, agent_id) is not None

    streams = StreamLimit(settings.max_streams, kernel.hub.closing)
    api: list[Any] = [
        tasks_api.router(kernel.submission, kernel.tasks),
        grants_api.router(kernel.grants, snapshot),
        activity_api.router(kernel.activity, streams),
        execution_api.router(kernel.workers),
        registry_api.router(kernel.registry, trust_of, kernel.commands.check_runtime),
        sandbox_api.router(kernel.sandbox, snapshot),
        learning_api.router(kernel.learning, agent_known),
        learning_api.trust_router(kernel.learning),
        trust_api.router(kernel.trust),
        kernel.messages.router(kernel.activity, streams),
        kernel.hooks.router(),
        kernel.provenance.router(),
        kernel.governance.router(),
    ]
    if (memory := kernel.memory) is not None:
        steps = kernel.task_notes.steps if kernel.task_notes else memory.indexer
        parts = (memory.bus, memory.search, memory.history, steps, memory.health)
        api.append(memory_api.router(*parts, settings.vault_tenant))
    agents = Conversations(kernel.submission, kernel.tasks, snapshot, kernel.hub, kernel.activity.stream)
    llm_api, openai_api = llm_routers(kernel.llm, agents, kernel.messages.messaging.speaker, streams)
    api.append(llm_api)
    api.append(later.router(later.PREFIXES if memory is not None else later.PREFIXES | later.MEMORY))
    figures = scrape(kernel.db, kernel.dispatcher, snapshot, [kernel.hooks.metrics, kernel.provenance.figures])
    root = [monitoring_api.router(kernel.health, figures), openai_api]
    return gateway.build(api, root, ring, RateLimit(settings.rate_limit), settings.max_body_mb * 1_000_000)
