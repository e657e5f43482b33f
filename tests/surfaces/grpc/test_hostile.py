"""Odd values in each field of a submission over gRPC: refused by name, or stored and read again."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import grpc
import pytest
from google.protobuf.timestamp_pb2 import Timestamp

from stentor.surfaces.grpc.generated import tasks_pb2 as pb
from tests.requirements import requirement
from tests.surfaces.grpc.conftest import SECONDS, Client, keyed

TEXTS = ["", "\0", "a\0b", "x" * 300, "x" * 5_000, "\u202e", "\ufeff", "..", "a/b", "%2F", "é", "😀" * 256, "NaN"]
NUMBERS = [0, -1, 2**31 - 1, -(2**31)]
TIMES = [
    Timestamp(seconds=seconds, nanos=nanos)
    for seconds in (0, -1, -62_135_596_801, 253_402_300_800, 2**62, -(2**62))
    for nanos in (0, 999_999_999, 2**31 - 1, -1)
]
JSONS = ["", "NaN", "1e999", "9" * 400, r'"\ud800"', "[" * 600 + "]" * 600, '{"a": 1, "a": 2}', "{", "null", "\0"]
FIELDS: dict[str, list[Any]] = {
    "id": TEXTS,
    "type": TEXTS,
    "title": TEXTS,
    "session": TEXTS,
    "agent_preference": TEXTS,
    "input_json": JSONS,
    "required_capabilities": [[text] for text in TEXTS] + [["a"] * 1_100],
    "after": [[text] for text in TEXTS] + [["a"] * 101],
    "timeout_seconds": NUMBERS,
    "queue_timeout_seconds": NUMBERS,
    "start_at": TIMES,
    "limit": [
        *(pb.TaskLimit(key=text, max=1) for text in TEXTS),
        *(pb.TaskLimit(key="k", max=number, per_seconds=5) for number in NUMBERS),
        *(pb.TaskLimit(key="k", max=1, per_seconds=number) for number in NUMBERS),
        pb.TaskLimit(),
    ],
    "metadata": [
        *(pb.TaskMetadata(parent_task_id=text) for text in TEXTS),
        *(pb.TaskMetadata(grant_id=text) for text in TEXTS),
        *(pb.TaskMetadata(user_id=text) for text in TEXTS),
        *(pb.TaskMetadata(tags=[text]) for text in TEXTS),
        *(pb.TaskMetadata(retry_count=number) for number in NUMBERS),
        pb.TaskMetadata(tags=["a"] * 1_100),
    ],
}
REFUSALS = {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.FAILED_PRECONDITION}


def refusal(call: Callable[[], object]) -> grpc.RpcError | None:
    try:
        call()
    except grpc.RpcError as error:
        return error
    return None


@pytest.mark.slow
@requirement("steps.hostile")
@pytest.mark.parametrize("field", FIELDS)
def test_no_value_in_a_submission_breaks_the_service(client: Client, field: str) -> None:
    for number, value in enumerate(FIELDS[field]):
        usual = {"id": f"{field} {number}", "type": "x", "start_at": Timestamp(seconds=2_000_000_000)}
        fields = {**usual, field: value}
        error = refusal(partial(client.submit, **fields))
        if error is None and fields["id"]:
            assert client.get(str(fields["id"])).type == fields["type"]
        if error is not None:
            assert error.code() in REFUSALS, (value, error)
            assert error.details(), value


@pytest.mark.slow
@requirement("steps.hostile")
@pytest.mark.parametrize("verb", ["GetTask", "CancelTask", "WatchTask", "GradeTask"])
def test_no_id_breaks_the_service(client: Client, verb: str) -> None:
    call, kind = getattr(client.tasks, verb), getattr(pb, f"{verb}Request")
    for text in TEXTS:
        task_id = f"none {text}" if text else text
        answer = partial(call, kind(task_id=task_id), metadata=keyed(), timeout=SECONDS)
        error = refusal((lambda answer=answer: list(answer())) if verb == "WatchTask" else answer)
        assert error is not None, task_id
        assert error.code() in REFUSALS, (task_id, error)
