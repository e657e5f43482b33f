"""Submit, get, cancel, watch: the same tasks as over HTTP."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from google.protobuf.timestamp_pb2 import Timestamp
from grpc import StatusCode

from stentor.core.clock import format_iso
from stentor.core.errors import NotFound, ServiceUnavailable
from stentor.domains.activity.service import NOT_VISIBLE_MESSAGE, SLOW_READER_MESSAGE
from stentor.domains.tasks.model import TaskStreamStep
from stentor.surfaces.grpc.generated import tasks_pb2 as pb
from stentor.surfaces.grpc.services import watch_responses
from tests.conftest import Service
from tests.patience import until
from tests.requirements import requirement
from tests.surfaces.grpc.conftest import SECONDS, Client, connected, keyed, refused, request

WAITS: dict[str, Any] = {"type": "wait", "required_capabilities": ["wait"]}
"""A task that nobody takes up, until a worker comes."""


@pytest.fixture
def waiting(service: Service) -> str:
    """The id of a registered agent that does not work."""
    body = {"name": "waiter", "capabilities": ["wait"]}
    with service.client() as http:
        known = http.get("/api/v1/registry/agents", params={"capability": "wait"}).json()["agents"]
        made = known[0] if known else http.post("/api/v1/registry/agents", json=body).json()
    return str(made["agent_id"])


@requirement("scale.grpc-tasks")
def test_a_task_is_submitted_watched_to_its_end_and_read(client: Client) -> None:
    task_id = client.submit(metadata=pb.TaskMetadata(priority=pb.PRIORITY_HIGH, tags=["a"]))
    kinds = [step.WhichOneof("step") for step in client.watch(task_id)]
    assert kinds[:3] == ["activity", "routing", "activity"]
    assert kinds[-1] == "completed"
    task = client.get(task_id)
    assert (task.status, task.outcome_class) == (pb.TASK_STATUS_COMPLETED, pb.OUTCOME_CLASS_SUCCESS)
    assert json.loads(task.result_json)["summary"] == "Another thing."
    assert (task.metadata.priority, list(task.metadata.tags)) == (pb.PRIORITY_HIGH, ["a"])


@requirement("scale.grpc-tasks")
def test_a_task_reads_the_same_over_both(client: Client) -> None:
    client.submit(id="p")
    with refused(StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST"):
        client.submit(metadata=pb.TaskMetadata(parent_task_id="nobody"))
    metadata = pb.TaskMetadata(retry_count=0, parent_task_id="p", prefer=pb.PREFER_CHEAP)
    task_id = client.submit(id="both ways/é", metadata=metadata, queue_timeout_seconds=90)
    list(client.watch(task_id))
    with client.service.client() as http:
        shown = http.get("/api/v1/tasks/both%20ways%2F%C3%A9").json()
    del shown["agent_name"], shown["waits_for"]  # over HTTP only
    task = client.get(task_id)
    assert as_http(task) == shown


@requirement("tasks.start-at")
def test_a_task_is_submitted_for_later(client: Client) -> None:
    now = int(time.time())
    task_id = client.submit(start_at=Timestamp(seconds=now + 3_600))
    assert client.get(task_id).status == pb.TASK_STATUS_WAITING
    for seconds in (now + 20 * 365 * 86_400, 10**15):
        with refused(StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST"):
            client.submit(start_at=Timestamp(seconds=seconds))


@requirement("scale.grpc-tasks")
def test_a_task_names_its_session(client: Client) -> None:
    with client.service.client() as http:
        assert http.post("/api/v1/sessions", json={"id": "ticket/7"}).status_code == 201
        task_id = client.submit(session="ticket/7")
        assert [row["task_id"] for row in http.get("/api/v1/tasks?session=ticket/7").json()["tasks"]] == [task_id]
    with refused(StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST"):
        client.submit(session="nowhere")


def as_http(task: pb.Task) -> dict[str, Any]:
    """What the HTTP API says of it."""
    names = (
        "task_id",
        "title",
        "type",
        "assigned_agent",
        "duration_ms",
        "total_duration_ms",
        "timeout_seconds",
        "attempts",
        "queue_timeout_seconds",
    )
    same = {name: getattr(task, name) for name in (*names, "learning_eligible", "provenance_id")}
    moments = ("created_at", "start_time", "completion_time")
    times = {name: format_iso(getattr(task, name).ToMicroseconds()) for name in moments}
    meta = task.metadata
    return {
        **same,
        **times,
        "status": pb.TaskStatus.Name(task.status).removeprefix("TASK_STATUS_").lower(),
        "outcome_class": pb.OutcomeClass.Name(task.outcome_class).removeprefix("OUTCOME_CLASS_").lower(),
        "result": json.loads(task.result_json),
        "error": None,
        "required_capabilities": list(task.required_capabilities),
        "agent_preference": None,
        "notice": task.notice if task.HasField("notice") else None,
        "notice_code": task.notice_code if task.HasField("notice_code") else None,
        "metadata": {"retry_count": meta.retry_count, "parent_task_id": meta.parent_task_id, "prefer": "cheap"},
    }


def claim(client: Client, agent_id: str, task_id: str) -> dict[str, Any]:
    """As the agent's worker: all that waits, of which one task is wanted."""
    with client.service.client() as http:
        found = http.post(f"/api/v1/agents/{agent_id}/claims", json={"max": 100, "wait_seconds": 5}).json()["tasks"]
    return dict(next(one for one in found if one["task_id"] == task_id))


def say(client: Client, claimed: dict[str, Any], verb: str, **fields: Any) -> None:
    """As the agent's worker: tokens, complete or fail."""
    with client.service.client() as http:
        answer = http.post(f"/api/v1/tasks/{claimed['task_id']}/{verb}", json={"epoch": claimed["epoch"], **fields})
    assert answer.status_code == 200, answer.text


@requirement("scale.grpc-tasks", "routing.offline-workers")
def test_a_task_that_waits_for_nobody_says_so(serve: Callable[..., Service]) -> None:
    brief = serve(SERVICE_GRPC_PORT="0", SERVICE_MEMORY="0")
    with brief.client() as http, connected(brief) as client:
        made = http.post("/api/v1/registry/agents", json={"name": "waiter", "capabilities": ["wait"]}).json()
        assert http.post(f"/api/v1/agents/{made['agent_id']}/leave").json()["online"] is False
        answer = client.tasks.SubmitTask(request(**WAITS), metadata=keyed(), timeout=SECONDS)
        assert answer.notice == "no worker online"
        task = client.get(answer.task_id)
        assert (task.notice, task.provenance_id) == ("no worker online", answer.provenance_id)
        until(lambda: http.post(f"/api/v1/agents/{made['agent_id']}/claims", json={}).json()["tasks"])
        assert not client.get(answer.task_id).HasField("notice")


@requirement("scale.grpc-tasks", "tasks.grade")
def test_a_grade_given_over_one_is_read_over_the_other(client: Client, waiting: str) -> None:
    task_id = client.submit(**WAITS)
    asked = pb.GetGradeRequest(task_id=task_id)
    early = pb.GradeTaskRequest(task_id=task_id, grade=0.25, comment="Half of it.")
    with refused(StatusCode.FAILED_PRECONDITION, "CONFLICT"):
        client.tasks.GradeTask(early, metadata=keyed(), timeout=SECONDS)
    with refused(StatusCode.NOT_FOUND, "NOT_FOUND"):
        client.tasks.GetGrade(asked, metadata=keyed(), timeout=SECONDS)
    say(client, claim(client, waiting, task_id), "complete", result=1)
    given = client.tasks.GradeTask(early, metadata=keyed(), timeout=SECONDS)
    assert client.tasks.GradeTask(early, metadata=keyed(), timeout=SECONDS) == given
    assert client.tasks.GetGrade(asked, metadata=keyed(), timeout=SECONDS) == given
    with client.service.client() as http:
        shown = http.get(f"/api/v1/tasks/{task_id}/grade").json()
    names = ("task_id", "agent_id", "grade", "comment", "graded_by", "learned")
    told = {name: getattr(given, name) for name in names}
    assert told | {"graded_at": format_iso(given.graded_at.ToMicroseconds())} == shown
    other = pb.GradeTaskRequest(task_id=task_id, grade=1.0)
    with refused(StatusCode.FAILED_PRECONDITION, "CONFLICT"):
        client.tasks.GradeTask(other, metadata=keyed(), timeout=SECONDS)


@requirement("scale.grpc-tasks")
def test_a_number_that_no_double_holds_comes_back_as_it_was(client: Client, waiting: str) -> None:
    number = 2**53 + 1
    task_id = client.submit(input_json=json.dumps(number), **WAITS)
    claimed = claim(client, waiting, task_id)
    assert claimed["input"] == number
    say(client, claimed, "complete", result=number)
    assert json.loads(client.get(task_id).result_json) == number


@requirement("scale.grpc-tasks")
def test_null_is_an_input_and_a_result(client: Client, waiting: str) -> None:
    task_id = client.submit(input_json="null", **WAITS)
    claimed = claim(client, waiting, task_id)
    assert claimed["input"] is None
    say(client, claimed, "complete", result=None)
    assert client.get(task_id).status == pb.TASK_STATUS_COMPLETED


@requirement("scale.grpc-tasks")
def test_the_same_id_is_the_same_task_whichever_way_it_comes(client: Client) -> None:
    body = {
        "id": "once",
        "type": "summarize",
        "input": {"text": "One. Two.", "sentences": 1},
        "required_capabilities": ["summarize"],
    }
    with client.service.client() as http:
        first = http.post("/api/v1/tasks", json=body).json()
        fields: dict[str, Any] = {"id": "once", "input_json": json.dumps(body["input"])}
        again = client.tasks.SubmitTask(request(**fields), metadata=keyed(), timeout=SECONDS)
        assert again.task_id == first["task_id"] == "once"
        assert format_iso(again.estimated_start.ToMicroseconds()) == first["estimated_start"]
        with refused(StatusCode.FAILED_PRECONDITION, "CONFLICT"):
            client.submit(**{**fields, "input_json": "2"})


@requirement("scale.grpc-tasks")
def test_an_idempotency_key_is_one_key_over_both(client: Client) -> None:
    body = {"type": "summarize", "input": "One. Two.", "required_capabilities": ["summarize"]}
    with client.service.client() as http:
        first = http.post("/api/v1/tasks", json=body, headers={"Idempotency-Key": "k-1"}).json()["task_id"]
    metadata = keyed(idempotency_key="k-1")
    again = client.tasks.SubmitTask(request(input_json='"One. Two."'), metadata=metadata, timeout=SECONDS)
    assert again.task_id == first
    with refused(StatusCode.FAILED_PRECONDITION, "IDEMPOTENCY_KEY_REUSED"):
        client.tasks.SubmitTask(request(input_json="3"), metadata=metadata, timeout=SECONDS)
    for wrong in ("", "k" * 256):
        with refused(StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST"):
            client.tasks.SubmitTask(request(), metadata=keyed(idempotency_key=wrong), timeout=SECONDS)


@requirement("scale.grpc-tasks")
def test_a_cancelled_task_ends_its_stream_and_is_not_cancelled_twice(client: Client, waiting: str) -> None:
    task_id = client.submit(**WAITS)
    seen = client.watch(task_id)
    assert [next(seen).WhichOneof("step") for _ in range(3)] == ["activity", "routing", "activity"]
    asked = pb.CancelTaskRequest(task_id=task_id)
    answer = client.tasks.CancelTask(asked, metadata=keyed(), timeout=SECONDS)
    assert answer.task_id == task_id
    last = list(seen)[-1]
    assert (last.id, last.ended.status) == ("", pb.TASK_STATUS_CANCELLED)
    assert client.get(task_id).completion_time == answer.cancelled_at
    with refused(StatusCode.FAILED_PRECONDITION, "CONFLICT"):
        client.tasks.CancelTask(asked, metadata=keyed(), timeout=SECONDS)


@requirement("scale.grpc-tasks")
def test_a_stream_goes_on_after_the_last_event_that_was_read(client: Client) -> None:
    def without_tokens() -> Any:
        steps = list(client.watch(task_id))
        return None if any(step.HasField("token") for step in steps) else steps

    task_id = client.submit()
    every = until(without_tokens)  # tokens are kept while the attempt runs, which is a moment longer than the task
    for at, step in enumerate(every[:-1]):
        assert list(client.watch(task_id, step.id)) == every[at + 1 :]
    assert list(client.watch(task_id, "nonsense:")) == every
    with refused(StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST"):
        list(client.watch(task_id, "x" * 201))


@requirement("scale.grpc-tasks")
def test_a_stream_goes_on_between_two_tokens(client: Client, waiting: str) -> None:
    task_id = client.submit(**WAITS)
    claimed = claim(client, waiting, task_id)
    say(client, claimed, "tokens", tokens=["Once ", "upon ", "a time"])
    first = client.watch(task_id)
    read = [step for step in (next(first) for _ in range(7)) if step.HasField("token")]
    assert [step.token.text for step in read] == ["Once ", "upon ", "a time"]
    first.cancel()
    second = client.watch(task_id, read[1].id)
    assert next(second) == read[2]
    say(client, claimed, "tokens", tokens=[", long ago"])
    assert next(second).token.text == ", long ago"
    say(client, claimed, "complete", result=None)
    rest = list(second)
    assert [step.activity.event_type for step in rest[:-1]] == ["task_completed", "learning_updated"]
    assert rest[-1].completed.result_json == "null"


@requirement("scale.grpc-tasks")
async def test_a_reader_that_was_too_slow_is_told_to_come_back() -> None:
    async def cut() -> AsyncIterator[TaskStreamStep]:
        yield TaskStreamStep("token", {"text": "Once "}, "e:a:1")
        yield TaskStreamStep("error", {"error": SLOW_READER_MESSAGE, "task_id": "t-1"})

    found = watch_responses(cut())
    assert (await anext(found)).id == "e:a:1"
    with pytest.raises(ServiceUnavailable, match="too slowly"):
        await anext(found)


@requirement("activity.stream-ends-with-key")
async def test_an_agents_stream_whose_task_went_to_another_key_is_not_to_be_opened_again() -> None:
    async def ended() -> AsyncIterator[TaskStreamStep]:
        yield TaskStreamStep("error", {"error": NOT_VISIBLE_MESSAGE, "task_id": "t-1"})

    with pytest.raises(NotFound, match="may not read"):
        await anext(watch_responses(ended()))


@requirement("activity.stream-ends-with-key")
def test_a_stream_ends_with_its_key_before_the_next_event(client: Client, waiting: str) -> None:
    task_id = client.submit(**WAITS)
    epoch = claim(client, waiting, task_id)
    with client.service.client() as http:
        made = http.post("/api/v1/keys", json={"name": "dana", "role": "viewer"}).json()
        asked = pb.WatchTaskRequest(task_id=task_id)
        steps = client.tasks.WatchTask(asked, metadata=[("x-api-key", made["key"])], timeout=SECONDS)
        next(steps)
        http.post("/api/v1/keys/dana/revoke").raise_for_status()
    say(client, epoch, "fail", error={"code": "NO_SOURCE", "message": "secret"})
    with refused(StatusCode.UNAUTHENTICATED, "UNAUTHORIZED"):
        assert "secret" not in str(list(steps))


@requirement("scale.grpc-tasks")
def test_a_task_that_fails_says_so_in_its_last_step(client: Client, waiting: str) -> None:
    task_id = client.submit(**WAITS)
    error = {"code": "NO_SOURCE", "message": "The page is gone."}
    say(client, claim(client, waiting, task_id), "fail", error=error)
    last = list(client.watch(task_id))[-1].ended
    assert (last.status, last.code) == (pb.TASK_STATUS_FAILED, "NO_SOURCE")
    task = client.get(task_id)
    assert json.loads(task.error_json) == error
    assert not task.HasField("result_json")


@requirement("scale.grpc-tasks")
def test_a_denial_of_routing_is_kept_as_a_failed_task(client: Client) -> None:
    with refused(StatusCode.FAILED_PRECONDITION, "ROUTING_CAPABILITY_UNAVAILABLE"):
        client.submit(id="nobody", required_capabilities=["fly"])
    task = client.get("nobody")
    assert (task.status, task.outcome_class) == (pb.TASK_STATUS_FAILED, pb.OUTCOME_CLASS_ROUTING_FAILED)
    last = list(client.watch("nobody"))[-1]
    assert last.ended.code == "ROUTING_CAPABILITY_UNAVAILABLE"
    with refused(StatusCode.FAILED_PRECONDITION, "ROUTING_CAPABILITY_UNAVAILABLE"):
        client.submit(id="nobody", required_capabilities=["fly"])


@requirement("scale.grpc-tasks")
@pytest.mark.parametrize("task_id", ["", "none", "x" * 256, "a\0b", "\u202e"])
def test_a_task_that_there_is_not_is_not_found(client: Client, task_id: str) -> None:
    for call, asked in (
        (client.tasks.GetTask, pb.GetTaskRequest(task_id=task_id)),
        (client.tasks.CancelTask, pb.CancelTaskRequest(task_id=task_id)),
        (client.tasks.WatchTask, pb.WatchTaskRequest(task_id=task_id)),
    ):
        with refused(StatusCode.NOT_FOUND, "NOT_FOUND"):
            answer: Any = call(asked, metadata=keyed(), timeout=SECONDS)
            list(answer)


@requirement("scale.grpc-tasks")
def test_the_task_of_another_tenant_is_not_found(client: Client) -> None:
    task_id = client.submit()
    for call, asked in (
        (client.tasks.GetTask, pb.GetTaskRequest(task_id=task_id)),
        (client.tasks.CancelTask, pb.CancelTaskRequest(task_id=task_id)),
    ):
        with refused(StatusCode.NOT_FOUND, "NOT_FOUND"):
            call(asked, metadata=keyed("OTHER"), timeout=SECONDS)
    with refused(StatusCode.NOT_FOUND, "NOT_FOUND"):
        list(client.watch(task_id, key="OTHER"))
