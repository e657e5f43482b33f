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
from stentor.domains.activity.service import Activity
from stentor.domains.execution.attempt import Attempts
from stentor.domains.execution.dispatch.known import Known
from stentor.domains.execution.independence import Independence
from stentor.domains.execution.outcomes import Ending
from stentor.domains.execution.reconciler import Reconciler
from stentor.domains.execution.rerouting import Rerouting
from stentor.domains.execution.runtimes import Driver as RuntimeDriver
from stentor.domains.execution.runtimes.builtin import Builtin
from stentor.domains.execution.runtimes.http import Http
from stentor.domains.execution.runtimes.librarian import Librarian
from stentor.domains.execution.runtimes.llm import Llm as LlmRuntime
from stentor.domains.execution.service import Workers
from stentor.domains.learning.service import Learning
from stentor.domains.monitoring.service import Health, agents_check, database_check, fixed, vault_check
from stentor.domains.registry.service import Registry
from stentor.domains.routing.model import Policy
from stentor.domains.routing.service import Routing
from stentor.domains.sandbox.service import Sandbox
from stentor.domains.tasks.grades.service import Grades
from stentor.domains.tasks.grants.service import Grants
from stentor.domains.tasks.placement import Placing
from stentor.domains.tasks.service import Tasks
from stentor.domains.tasks.submission import Submission
from stentor.domains.trust.service import Trust


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
    registry = Registry(db, clock, runlog)
    trust = Trust(db, clock, runlog)
    learning = Learning(db, clock, runlog, settings.sentinel_threshold)
    rules = open_rules(settings)
    policy = Policy(settings.alpha, settings.beta, settings.trust_floor, settings.own_authority, admission(rules))
    routing = Routing(registry.snapshot, learning.view, trust.view, clock, policy)
    presence = open_presence(settings, clock, fanout)
    roles = RoleRegistry()
    independence = Independence(registry.snapshot, roles, settings.daily_lessons)
    ending = Ending(runlog, learning, trust, hub, independence)
    memory = open_memory(settings, db, clock, runlog) if settings.memory else None
    librarian = {"librarian": Librarian(memory.search, settings.vault_tenant).run} if memory else None
    sandbox = Sandbox(db, registry, runlog, rules)
    llm = open_llm(settings, db, clock, runlog, outbound, redactor, roles)
    builtin = Builtin(librarian)
    drivers: dict[str, RuntimeDriver] = {
        "builtin": builtin,
        "http": Http(outbound, presence),
        "llm": LlmRuntime(llm.gateway),
    }
    commands = open_cage(settings, db, runlog, sandbox, registry.snapshot, outbound, memory, llm, redactor)
    check = commands.check_runtime
    drivers["command"] = commands.driver
    governance = open_governance(
        settings, db, clock, runlog, registry, trust, roles, outbound, rules, builtin.names, check
    )
    grants = Grants(db, runlog, registry.snapshot, routing)
    attempts = Attempts(db, runlog, routing, registry.snapshot, ending, hub, drivers, grants, settings.lease * SECOND)
    known = Known(registry.snapshot)
    dispatcher = open_engine(settings, db, attempts, known, fanout)
    routing.load, dispatcher.resting = load_of(dispatcher, presence), presence.resting
    placing = Placing(routing, registry.snapshot, learning.view)
    submission = Submission(db, runlog, placing, dispatcher, grants)
    tasks = Tasks(db, runlog, placing, dispatcher, grants)
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
        rerouting=Rerouting(db, clock, runlog, routing, registry.snapshot, presence, dispatcher, grants),
        submission=submission,
        grants=grants,
        tasks=tasks,
        grades=Grades(db, runlog, learning, independence),
        workers=Workers(db, registry.snapshot, dispatcher, ending, hub, presence),
        activity=Activity(db, hub, registry.snapshot, reports_of(memory, settings.vault_tenant)),
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
