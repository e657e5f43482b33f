"""The steps of a task's stream as messages."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from datetime import datetime
from typing import Any

from stentor.core import jsontext
from stentor.core.clock import micros_from_datetime
from stentor.core.errors import ServiceUnavailable
from stentor.domains.activity.service import StreamStep
from stentor.surfaces.grpc.generated import tasks_pb2 as pb
from stentor.surfaces.grpc.wire import Words, timestamp

STATUS = Words(pb.TaskStatus, "TASK_STATUS_")
OUTCOME = Words(pb.OutcomeClass, "OUTCOME_CLASS_")


async def of(steps: AsyncIterator[StreamStep]) -> AsyncGenerator[pb.WatchTaskResponse, None]:
    """Raises ServiceUnavailable where the reader was cut: it may come back with the last id."""
    async for step in steps:
        if step.kind == "error" and "status" not in step.data:
            raise ServiceUnavailable(step.data["error"])
        yield pb.WatchTaskResponse(id=step.id or "", **_KINDS[step.kind](step.data))


def _routing(data: dict[str, Any]) -> dict[str, Any]:
    decision = jsontext.dump(data["decision"])
    return {
        "routing": pb.RoutingDecided(
            agent_name=data["agent_name"], decision_json=decision, provenance_id=data["provenance_id"]
        )
    }


def _activity(data: dict[str, Any]) -> dict[str, Any]:
    moment = micros_from_datetime(datetime.fromisoformat(data["timestamp"]))
    return {
        "activity": pb.Activity(
            event_id=data["event_id"],
            timestamp=timestamp(moment),
            event_type=data["event_type"],
            component=data["component"],
            message=data["message"],
            metadata_json=jsontext.dump(data["metadata"]),
            duration_ms=data["duration_ms"],
            parent_provenance_id=data["parent_provenance_id"],
        )
    }


def _token(data: dict[str, Any]) -> dict[str, Any]:
    return {"token": pb.Token(text=data["text"])}


def _completed(data: dict[str, Any]) -> dict[str, Any]:
    return {
        "completed": pb.TaskCompleted(
            result_json=jsontext.dump(data["result"]),
            agent_name=data["agent_name"],
            provenance_id=data["provenance_id"],
            outcome_class=OUTCOME.name(data["outcome_class"]),
            learning_eligible=data["learning_eligible"],
            duration_ms=data["duration_ms"],
            learning_error=data["error"],
        )
    }


def _ended(data: dict[str, Any]) -> dict[str, Any]:
    status = STATUS.name(data["status"])
    return {"ended": pb.TaskEnded(status=status, code=data["code"], message=data["error"])}


_KINDS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "routing": _routing,
    "activity": _activity,
    "token": _token,
    "complete": _completed,
    "error": _ended,
}
