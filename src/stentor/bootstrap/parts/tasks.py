"""Wires all that happens to a task: schedules, submission, dispatch, execution, its outcome, and its pages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stentor.auth.principal import IsActive
from stentor.bootstrap.infrastructure import Infrastructure
from stentor.bootstrap.parts.agents import AgentServices
from stentor.core.clock import SECOND, ClockMark
from stentor.core.trace_context import SpanRecorder
from stentor.domains.activity.service import ActivityService, ReportLookup
from stentor.domains.execution.dispatch.dispatcher import Dispatcher, RegistryFreshness, create_load_lookup
from stentor.domains.execution.dispatch.in_memory_dispatcher import InMemoryDispatcher
from stentor.domains.execution.dispatch.postgres_dispatcher import PostgresDispatcher
from stentor.domains.execution.executor import LeaseRenewer, TaskExecutor
from stentor.domains.execution.limits import LimitGate, ParkedTaskScheduler
from stentor.domains.execution.outcomes import LearningEligibility, OutcomeRecorder
from stentor.domains.execution.reconciler import Reconciler
from stentor.domains.execution.rerouting import TaskRerouter
from stentor.domains.execution.runtimes import RuntimeDriver
from stentor.domains.execution.service import WorkerService
from stentor.domains.execution.spans import TaskSpans, caller_trace
from stentor.domains.execution.task_moves import TaskMover
from stentor.domains.schedules import store as schedule_store
from stentor.domains.schedules.scheduler import Scheduler
from stentor.domains.schedules.service import ScheduleService
from stentor.domains.steps import store as step_store
from stentor.domains.steps.service import StepService
from stentor.domains.steps.starts import StartWaits
from stentor.domains.steps.wait_endings import WaitEndings
from stentor.domains.steps.waits import WaitService, read_waits
from stentor.domains.steps.wakeups import WaitScheduler
from stentor.domains.tasks import rows
from stentor.domains.tasks.grades import GradeService
from stentor.domains.tasks.grants.service import GrantService
from stentor.domains.tasks.queues.damaged import DamagedTasks
from stentor.domains.tasks.reading.reader import TaskReader
from stentor.domains.tasks.search.model import TaskIndex
from stentor.domains.tasks.search.postgres_index import PostgresTaskIndex
from stentor.domains.tasks.search.service import TaskSearch
from stentor.domains.tasks.search.sqlite_index import SqliteTaskIndex
from stentor.domains.tasks.service import TaskService, refuse_to_archive
from stentor.domains.tasks.submission.placement import TaskRouter
from stentor.domains.tasks.submission.service import SubmissionService


@dataclass(frozen=True)
class TaskServices:
    """`freshness` tells the dispatcher whether the registry in memory is recent enough to dispatch by."""

    submission: SubmissionService
    service: TaskService
    reader: TaskReader
    search: TaskSearch
    grants: GrantService
    grades: GradeService
    activity: ActivityService
    workers: WorkerService
    steps: StepService
    waits: WaitService
    wakeups: WaitScheduler
    dispatcher: Dispatcher
    reconciler: Reconciler
    lease_renewer: LeaseRenewer
    rerouting: TaskRerouter
    freshness: RegistryFreshness
    parked_tasks: ParkedTaskScheduler


def open_tasks(
    infra: Infrastructure,
    agents: AgentServices,
    drivers: Mapping[str, RuntimeDriver],
    steps: StepService,
    find_reports: ReportLookup,
    recorder: SpanRecorder | None,
) -> TaskServices:
    """`drivers` execute the tasks of agents, by the kind of the agent's runtime. `recorder` exports their spans, None
    without a collector.
    """
    settings, db, clock, runlog, hub = infra.settings, infra.db, infra.clock, infra.runlog, infra.hub
    agents.registry.before_archive_hooks.append(refuse_to_archive)
    registry, routing, presence = agents.registry.agents, agents.routing, agents.presence
    eligibility = LearningEligibility(registry, infra.roles, settings.routing.daily_lessons)
    outcomes = OutcomeRecorder(runlog, agents.learning, agents.trust, eligibility, presence.record_outcome)
    grants = GrantService(db, runlog, registry, routing)
    limits = LimitGate()
    lease_us = settings.tasks.lease_seconds * SECOND
    spans = None if recorder is None else TaskSpans(recorder, registry)
    if spans is not None:
        runlog.append_hooks.append(spans.record_events)
    trace = caller_trace if spans is None else spans.attempt_trace
    mark = ClockMark(settings.storage.data_dir / "clock.json")
    executor = TaskExecutor(
        db, runlog, routing, registry, outcomes, hub, dict(drivers), grants, limits, lease_us, trace
    )
    freshness = RegistryFreshness(registry)
    dispatcher = _open_dispatcher(infra, executor, freshness)
    damaged = DamagedTasks(db, runlog, dispatcher)
    # The dispatcher and the routing engine need each other: routing asks how busy an agent is.
    routing.agent_load = create_load_lookup(dispatcher, presence)
    routing.is_unseen = presence.is_unseen
    dispatcher.offline_endpoints = presence.offline_endpoints
    mover = TaskMover(db, runlog, routing, registry, presence, dispatcher, grants, infra.roles)
    search = TaskSearch(db, _open_index(infra) if settings.tasks.search else None)
    router = TaskRouter(routing, registry, agents.learning.view)
    starts = StartWaits(runlog)
    service = TaskService(db, runlog, router, dispatcher, grants, starts, routing.is_active)
    endings = WaitEndings(runlog, service, router, dispatcher)
    wakeups = WaitScheduler(db, endings, hub, damaged)
    starts.expect = wakeups.expect
    db.set_aside |= {rows.TABLE: damaged.set_aside, step_store.TABLE: wakeups.set_aside}
    waits = WaitService(db, runlog, registry, endings, presence, routing.is_active, wakeups.expect)
    return TaskServices(
        submission=SubmissionService(db, runlog, router, dispatcher, grants, starts),
        service=service,
        reader=TaskReader(db, registry, routing, search, read_waits),
        search=search,
        grants=grants,
        grades=GradeService(db, runlog, agents.learning, eligibility, routing.is_active),
        activity=ActivityService(db, hub, registry, find_reports),
        workers=WorkerService(db, registry, dispatcher, outcomes, hub, presence, spans),
        steps=steps,
        waits=waits,
        wakeups=wakeups,
        dispatcher=dispatcher,
        reconciler=Reconciler(db, clock, runlog, dispatcher, outcomes, registry, settings.tasks.max_attempts, mark),
        lease_renewer=LeaseRenewer(db, dispatcher, executor),
        rerouting=TaskRerouter(mover, clock, routing, registry, presence, dispatcher),
        freshness=freshness,
        parked_tasks=ParkedTaskScheduler(db, limits, dispatcher, hub),
    )


def _open_dispatcher(infra: Infrastructure, executor: TaskExecutor, freshness: RegistryFreshness) -> Dispatcher:
    settings = infra.settings
    if infra.is_single_process:
        return InMemoryDispatcher(infra.db, executor, settings.tasks.concurrency)
    # The process role runs the agents inside the service. Tasks of agents with the runtime `worker` are claimed over
    # HTTP, from any process.
    runs_agents = "worker" in settings.process.roles
    return PostgresDispatcher(
        infra.db, executor, freshness, infra.fanout, settings.tasks.concurrency, runs_agents=runs_agents
    )


def _open_index(infra: Infrastructure) -> TaskIndex:
    if infra.is_single_process:
        return SqliteTaskIndex(infra.settings.storage.data_dir / "index")
    return PostgresTaskIndex(infra.db)


@dataclass(frozen=True)
class Schedules:
    service: ScheduleService
    scheduler: Scheduler


def open_schedules(infra: Infrastructure, submission: SubmissionService, is_active: IsActive) -> Schedules:
    """Return the use cases of schedules, and the job that runs them."""
    scheduler = Scheduler(infra.db, infra.runlog, infra.roles, submission)
    infra.db.set_aside[schedule_store.TABLE] = scheduler.set_aside
    return Schedules(ScheduleService(infra.db, infra.runlog, submission, is_active), scheduler)
