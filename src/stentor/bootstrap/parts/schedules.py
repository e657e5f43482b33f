"""Wires the schedules."""

from __future__ import annotations

from dataclasses import dataclass

from stentor.bootstrap.infrastructure import Infrastructure
from stentor.domains.schedules.scheduler import Scheduler
from stentor.domains.schedules.service import ScheduleService
from stentor.domains.tasks.submission import SubmissionService


@dataclass(frozen=True)
class Schedules:
    service: ScheduleService
    scheduler: Scheduler


def open_schedules(infra: Infrastructure, submission: SubmissionService) -> Schedules:
    """Return the use cases of schedules, and the job that runs them."""
    return Schedules(
        ScheduleService(infra.db, infra.runlog, submission), Scheduler(infra.db, infra.runlog, infra.roles, submission)
    )
