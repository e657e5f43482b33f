"""The report of an attempt: what a worker sends for a result, or for the error that ended it."""

from __future__ import annotations

import logging
import threading
from typing import Any

from stentor_worker.errors import (
    MAX_MESSAGE,
    AttemptEnded,
    Failed,
    ServiceGone,
    Suspended,
    TaskCancelled,
    to_code,
    to_message,
)
from stentor_worker.task import Result, Task

log = logging.getLogger(__name__)


def build_error_report(task: Task, error: BaseException) -> tuple[str, dict[str, Any]]:
    """Return the action and the body of the report for an attempt that an error ended. Raises TaskCancelled."""
    if isinstance(error, ServiceGone):
        raise TaskCancelled(str(error))
    if isinstance(error, Suspended):
        return "suspend", {"keys": task.waits}
    if isinstance(error, Failed | AttemptEnded):
        code, message = to_code(error.code), to_message(error) or "no reason given"
        log.warning("worker: handler failed task_id=%s error=%s: %s", task.id, code, message)
        body: dict[str, Any] = {"error": {"code": code, "message": message}, "outcome_class": error.outcome_class}
        cost = error.cost if isinstance(error, Failed) else None
        return "fail", body if cost is None else body | {"cost": cost}
    # Ctrl-C goes to the main thread, which runs a handler only in a replay.
    is_ctrl_c = isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()
    if isinstance(error, TaskCancelled) or is_ctrl_c:
        raise error
    # An error of a handler ends its task, never the worker.
    log.error("worker: handler failed task_id=%s", task.id, exc_info=error)
    message = ": ".join(filter(None, (type(error).__name__, to_message(error))))
    return "fail", {"error": {"code": "HANDLER_FAILED", "message": message[:MAX_MESSAGE]}}


def build_result_report(result: Any) -> dict[str, Any]:
    """Return the body of the report for what a handler returned."""
    if not isinstance(result, Result):
        return {"result": result}
    body = {"result": result.value, "degraded": result.degraded}
    optional = {"performance": result.performance, "cost": result.cost}
    return body | {name: value for name, value in optional.items() if value is not None}
