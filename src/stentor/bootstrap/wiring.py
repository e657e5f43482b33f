"""Wires the kernel over a database: registry, routing, execution, learning, and what stands around them."""

from __future__ import annotations

from collections.abc import Callable

from stentor.auth.principal import RoleRegistry
from stentor.bootstrap.cage import open_cage
from stentor.bootstrap.governance import admission, open_governance, open_rules
from stentor.bootstrap.kernel import Kernel
from stentor.bootstrap.llm import open_llm
from stentor.bootstrap.memory import open_memory, reports_of
from stentor.bootstrap.messaging import open_messages
from stentor.bootstrap.processes import load_of, open_engine, open_fanout, open_presence
from stentor.bootstrap.provenance import ProvenanceParts
from stentor.bootstrap.tasknotes import open_task_notes
from stentor.bootstrap.webhooks import open_webhooks
from stentor.core.clock import SECOND, Clock
from stentor.core.db import Database
from stentor.core.http_client.outbound import OutboundHttp
from stentor.core.live import Hub
from stentor.core.runlog import RunLog
from stentor.core.security.redaction import Redactor
from stentor.core.settings import Settings
from stentor.domains.activity.service import ActivityService
from stentor.domains.execution.dispatcher import RegistryFreshness
from stentor.domains.execution.executor import TaskExecutor
from stentor.domains.execution.outcomes import LearningEligibility, OutcomeRecorder
from stentor.domains.execution.reconciler import Reconciler
from stentor.domains.execution.rerouting import TaskRerouter
from stentor.domains.execution.runtimes import RuntimeDriver as RuntimeDriver
from stentor.domains.execution.runtimes.builtin import BuiltinDriver, LibrarianAgent
from stentor.domains.execution.runtimes.http import HttpDriver
from stentor.domains.execution.runtimes.llm import LlmDriver as LlmRuntime
from stentor.domains.execution.service import WorkerService
from stentor.domains.learning.service import LearningService
from stentor.domains.monitoring.service import HealthService, agents_check, database_check, fixed_check, vault_check
from stentor.domains.registry.service import AgentRegistry
from stentor.domains.routing.model import RoutingPolicy
from stentor.domains.routing.service import RoutingEngine
from stentor.domains.sandbox.service import SandboxService
from stentor.domains.tasks.grades import GradeService
from stentor.domains.tasks.grants import GrantService
from stentor.domains.tasks.placement import TaskRouter
from stentor.domains.tasks.service import TaskService
from stentor.domains.tasks.submission import SubmissionService
from stentor.domains.trust.service import TrustService


def build(
    settings: Settings,
    db: Database,
    clock: Clock,
    make_runlog: Callable[[Hub], RunLog] = RunLog,
    redactor: Redactor | None = None,
) -> Kernel:
    """Wire the parts over a database whose schema is up to date."""
    fanout = open_fanout(settings, db)
    hub = Hub(fanout)
    runlog = make_runlog(hub)
    outbound = OutboundHttp(settings.outbound_allow)
    registry = AgentRegistry(db, clock, runlog)
    trust = TrustService(db, clock, runlog)
    learning = LearningService(db, clock, runlog, settings.sentinel_threshold)
    rules = open_rules(settings)
    policy = RoutingPolicy(
        settings.alpha, settings.beta, settings.trust_floor, settings.own_authority, admission(rules)
    )
    routing = RoutingEngine(registry.agents, learning.view, trust.view, clock, policy)
    presence = open_presence(settings, clock, fanout)
    roles = RoleRegistry()
    independence = LearningEligibility(registry.agents, roles, settings.daily_lessons)
    ending = OutcomeRecorder(runlog, learning, trust, hub, independence)
    memory = open_memory(settings, db, clock, runlog) if settings.memory else None
    librarian = {"librarian": LibrarianAgent(memory.search, settings.vault_tenant).run} if memory else None
    sandbox = SandboxService(db, registry, runlog, rules)
    llm = open_llm(settings, db, clock, runlog, outbound, redactor, roles)
    builtin = BuiltinDriver(librarian)
    drivers: dict[str, RuntimeDriver] = {
        "builtin": builtin,
        "http": HttpDriver(outbound, presence),
        "llm": LlmRuntime(llm.gateway),
    }
    commands = open_cage(settings, db, runlog, sandbox, registry.agents, outbound, memory, llm, redactor)
    check = commands.check_runtime
    drivers["command"] = commands.driver
    governance = open_governance(
        settings, db, clock, runlog, registry, trust, roles, outbound, rules, builtin.names, check
    )
    grants = GrantService(db, runlog, registry.agents, routing)
    attempts = TaskExecutor(db, runlog, routing, registry.agents, ending, hub, drivers, grants, settings.lease * SECOND)
    known = RegistryFreshness(registry.agents)
    dispatcher = open_engine(settings, db, attempts, known, fanout)
    routing.agent_load, dispatcher.offline_endpoints = load_of(dispatcher, presence), presence.offline_endpoints
    placing = TaskRouter(routing, registry.agents, learning.view)
    submission = SubmissionService(db, runlog, placing, dispatcher, grants)
    tasks = TaskService(db, runlog, placing, dispatcher, grants)
    provenance = ProvenanceParts(settings, db, clock, runlog)
    return Kernel(
        settings=settings,
        db=db,
        clock=clock,
        fanout=fanout,
        known=known,
        hub=hub,
        roles=roles,
        outbound=outbound,
        registry=registry,
        trust=trust,
        learning=learning,
        routing=routing,
        presence=presence,
        sandbox=sandbox,
        dispatcher=dispatcher,
        reconciler=Reconciler(db, runlog, dispatcher, attempts, ending, settings.max_attempts),
        rerouting=TaskRerouter(db, clock, runlog, routing, registry.agents, presence, dispatcher, grants),
        submission=submission,
        grants=grants,
        tasks=tasks,
        grades=GradeService(db, runlog, learning, independence),
        workers=WorkerService(db, registry.agents, dispatcher, ending, hub, presence),
        activity=ActivityService(db, hub, registry.agents, reports_of(memory, settings.vault_tenant)),
        health=HealthService(
            {
                "api": fixed_check("available", "answers"),
                "database": database_check(db),
                "agents": agents_check(registry.agents),
                **commands.health(),
                "mcp_server": fixed_check("disabled", "not started in this process"),
                "provenance": provenance.check,
                "vault": vault_check(memory.vault) if memory else fixed_check("disabled", "switched off"),
            },
            optional_components=["provenance"],
        ),
        memory=memory,
        runlog=runlog,
        task_notes=open_task_notes(settings, db, hub, memory, submission, registry.agents) if memory else None,
        messages=open_messages(
            settings, db, clock, hub, runlog, registry, trust, routing, submission, tasks, check, memory, governance
        ),
        llm=llm,
        commands=commands,
        hooks=open_webhooks(settings, db, clock, runlog),
        provenance=provenance,
        governance=governance,
    )
