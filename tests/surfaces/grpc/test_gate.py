"""Who gets in, how often, and what is read of what they send."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import StatusCode

from stentor.surfaces.grpc.generated import atp_pb2, llm_pb2
from stentor.surfaces.grpc.generated import tasks_pb2 as pb
from tests.conftest import KEYS, Service
from tests.patience import until
from tests.requirements import requirement
from tests.surfaces.gateway.operations import DOCUMENT
from tests.surfaces.grpc.conftest import SECONDS, Client, code_of, connected, keyed, refused, request, trailing

READER = KEYS["READER"].split(":")[0]
METHODS: dict[str, tuple[str, str]] = {
    "/stentor.v1.TaskService/SubmitTask": ("post", "/api/v1/tasks"),
    "/stentor.v1.TaskService/GetTask": ("get", "/api/v1/tasks/{task_id}"),
    "/stentor.v1.TaskService/CancelTask": ("post", "/api/v1/tasks/{task_id}/cancel"),
    "/stentor.v1.TaskService/WatchTask": ("get", "/api/v1/tasks/{task_id}/stream"),
    "/stentor.v1.TaskService/GradeTask": ("post", "/api/v1/tasks/{task_id}/grade"),
    "/stentor.v1.TaskService/GetGrade": ("get", "/api/v1/tasks/{task_id}/grade"),
    "/stentor.v1.AtpService/SendMessage": ("post", "/api/v1/atp/send"),
    "/stentor.v1.LlmService/StreamChat": ("post", "/api/v1/llm/stream"),
}
"""Each method and its route."""


def needed(method: str) -> str:
    """The permission of its route."""
    verb, path = METHODS[method]
    return str(DOCUMENT["paths"][path][verb]["x-permission"])


def ask(client: Client, method: str, content: bytes, metadata: Any = ()) -> Any:
    """Whatever bytes; the first answer is waited for."""
    return next(client.channel.unary_stream(method)(content, metadata=metadata, timeout=SECONDS), None)


@requirement("scale.grpc-tasks")
def test_the_table_names_every_method_that_there_is() -> None:
    services = [one for file in (pb, atp_pb2, llm_pb2) for one in file.DESCRIPTOR.services_by_name.values()]
    assert {f"/{one.full_name}/{method.name}" for one in services for method in one.methods} == set(METHODS)


@requirement("scale.grpc-tasks")
@pytest.mark.parametrize("method", [*METHODS, "/stentor.v1.TaskService/Nothing", "/no.Service/Nothing", "/x"])
def test_without_a_key_nothing_is_answered_whether_or_not_there_is_something(client: Client, method: str) -> None:
    for metadata in ([], [("authorization", "Basic dTpw")], [("authorization", f"{READER}")], [("x-api-key", " ")]):
        with refused(StatusCode.UNAUTHENTICATED, "UNAUTHORIZED") as found:
            ask(client, method, b"\xff", metadata)
        assert str(found.value.details()).startswith("Authentication required.")
    for metadata in (
        [("x-api-key", "nobodys-key")],
        [("authorization", f"Bearer {READER}x"), ("x-api-key", READER)],
        [*keyed(), *keyed("READER")],
    ):
        with refused(StatusCode.UNAUTHENTICATED, "UNAUTHORIZED") as found:
            ask(client, method, b"\xff", metadata)
        assert str(found.value.details()).startswith("Invalid API key.")
        assert "nobodys-key" not in str(found.value)


@requirement("scale.grpc-tasks")
def test_a_key_is_taken_as_either_metadata(client: Client) -> None:
    task_id = client.submit()
    for metadata in (
        [("authorization", f"Bearer {READER}")],
        [("authorization", f"bearer  {READER}")],
        keyed("READER"),
    ):
        asked = pb.GetTaskRequest(task_id=task_id)
        assert client.tasks.GetTask(asked, metadata=metadata, timeout=SECONDS).task_id == task_id


@requirement("scale.grpc-tasks")
@pytest.mark.parametrize("method", METHODS)
def test_a_method_needs_what_its_route_needs(client: Client, method: str) -> None:
    assert needed(method) in ("read", "write")
    with pytest.raises(grpc.RpcError) as found:
        ask(client, method, b"", keyed("READER"))
    assert (code_of(found.value) == "FORBIDDEN") == (needed(method) == "write")
    if needed(method) == "write":
        assert found.value.code() == StatusCode.PERMISSION_DENIED


@requirement("scale.grpc-tasks")
def test_a_method_that_there_is_not_is_unimplemented_for_those_with_a_key(client: Client) -> None:
    for method in ("/stentor.v1.TaskService/Nothing", "/no.Service/Nothing", "/stentor.v1.TaskService", "/"):
        with refused(StatusCode.UNIMPLEMENTED, None):
            ask(client, method, b"", keyed())


GARBAGE = {
    "no message": b"\xff\xff\xff",
    "cut off": request().SerializeToString()[:-1],
    "an unknown field": b"\x9a\x06\x01x",
    "an unknown field inside": pb.SubmitTaskRequest().SerializeToString() + b"\x3a\x04\x9a\x06\x01x",
    "no UTF-8": b"\x0a\x02\xff\xfe",
    "another type of field": b"\x08\x01",
    "a group without end": b"\x0b",
}


@requirement("scale.grpc-tasks")
@pytest.mark.parametrize("content", GARBAGE.values(), ids=GARBAGE)
def test_bytes_that_are_no_message_are_the_callers_mistake(client: Client, content: bytes) -> None:
    for method in METHODS:
        if content == GARBAGE["an unknown field inside"] and "Submit" not in method:
            continue
        with pytest.raises(grpc.RpcError) as found:
            ask(client, method, content, keyed())
        assert found.value.code() == StatusCode.INVALID_ARGUMENT, (method, found.value)
        assert code_of(found.value) == "INVALID_REQUEST"


@requirement("scale.grpc-tasks")
@pytest.mark.parametrize("content", [bytes([at, *b"\x05abcde"]) for at in range(1, 256, 7)] + [bytes(range(200))])
def test_no_bytes_make_the_service_fail(client: Client, content: bytes) -> None:
    for method in METHODS:
        try:
            ask(client, method, content, keyed())
        except grpc.RpcError as error:
            assert error.code() in (StatusCode.INVALID_ARGUMENT, StatusCode.NOT_FOUND)  # noqa: PT017


@requirement("scale.grpc-tasks")
def test_a_message_above_the_limit_of_bodies_is_refused_unread(client: Client) -> None:
    big = json.dumps("x" * 1_000_001)
    with refused(StatusCode.RESOURCE_EXHAUSTED, None):
        client.submit(input_json=big)
    task_id = client.submit(input_json=json.dumps("x" * 900_000), required_capabilities=["summarize"])
    until(lambda: client.get(task_id).status == pb.TASK_STATUS_COMPLETED)


@requirement("scale.grpc-tasks")
def test_a_compressed_message_counts_as_what_it_unpacks_to(client: Client) -> None:
    def send(content: str) -> None:
        asked = request(input_json=json.dumps(content))
        client.tasks.SubmitTask(asked, metadata=keyed(), timeout=SECONDS, compression=grpc.Compression.Gzip)

    send("One thing. " * 10)
    before = most_memory(client.service)
    with refused(StatusCode.RESOURCE_EXHAUSTED, None):
        send("x" * 100_000_000)  # a tenth of a megabyte on the wire
    assert most_memory(client.service) - before < 50_000_000


def most_memory(service: Service) -> int:
    """Bytes that the process ever had."""
    status = Path(f"/proc/{service.process.pid}/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) * 1024


@requirement("scale.grpc-tasks")
def test_a_request_id_is_kept_when_it_is_harmless_and_made_otherwise(client: Client) -> None:
    def answered(given: str, asked: pb.GetTaskRequest) -> str:
        try:
            _, call = client.tasks.GetTask.with_call(asked, metadata=keyed(x_request_id=given), timeout=SECONDS)
        except grpc.RpcError as error:
            call = error
        return str(trailing(call)["x-request-id"])

    for asked in (pb.GetTaskRequest(task_id="none"), pb.GetTaskRequest(task_id=client.submit())):
        assert answered("mine-1", asked) == "mine-1"
        assert len(answered("not harmless", asked)) == 36


@requirement("scale.grpc-tasks")
def test_a_trace_goes_on_into_the_task(client: Client) -> None:
    place = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    asked = client.tasks.SubmitTask(request(), metadata=keyed(traceparent=place), timeout=SECONDS)
    with client.service.client() as http:
        assert http.get(f"/api/v1/tasks/{asked.task_id}").json()["metadata"]["traceparent"] == place


@requirement("scale.grpc-tasks")
def test_a_key_has_one_count_of_requests_over_both(serve: Callable[..., Service]) -> None:
    service = serve(SERVICE_GRPC_PORT="0", SERVICE_MEMORY="0", SERVICE_RATE_LIMIT_PER_MINUTE="5")
    with connected(service) as client, service.client() as http:
        task_id = client.submit()
        _, call = client.tasks.GetTask.with_call(pb.GetTaskRequest(task_id=task_id), metadata=keyed(), timeout=SECONDS)
        told = trailing(call)
        assert (told["x-ratelimit-limit"], told["x-ratelimit-remaining"]) == ("5", "3")
        assert http.get("/api/v1/tasks").headers["x-ratelimit-remaining"] == "2"
        with refused(StatusCode.NOT_FOUND, "NOT_FOUND"):
            client.get("none")
        with refused(StatusCode.UNIMPLEMENTED, None):
            ask(client, "/stentor.v1.TaskService/Nothing", b"", keyed())
        for _ in range(2):
            with refused(StatusCode.RESOURCE_EXHAUSTED, "RATE_LIMITED") as found:
                client.get(task_id)
        assert 0 < int(trailing(found.value)["retry-after"]) <= 60
        assert http.get("/api/v1/tasks").status_code == 429
        assert client.submit("WRITER")


@requirement("scale.grpc-tasks")
def test_a_key_has_one_count_of_open_streams_over_both(serve: Callable[..., Service]) -> None:
    service = serve(SERVICE_GRPC_PORT="0", SERVICE_MEMORY="0", SERVICE_MAX_STREAMS_PER_KEY="2")
    with connected(service) as client, service.client() as http:
        http.post("/api/v1/registry/agents", json={"name": "waiter", "capabilities": ["wait"]}).raise_for_status()
        task_id = client.submit(type="wait", required_capabilities=["wait"])
        first = client.watch(task_id)
        next(first)
        with http.stream("GET", f"/api/v1/tasks/{task_id}/stream"):
            with refused(StatusCode.RESOURCE_EXHAUSTED, "RATE_LIMITED"):
                next(client.watch(task_id))
            next(client.watch(task_id, key="READER"))
        first.cancel()
        client.tasks.CancelTask(pb.CancelTaskRequest(task_id=task_id), metadata=keyed(), timeout=SECONDS)
        assert list(client.watch(task_id))[-1].ended.status == pb.TASK_STATUS_CANCELLED


@requirement("scale.grpc-tasks")
def test_the_metrics_tell_of_calls_by_method_and_status(serve: Callable[..., Service]) -> None:
    service = serve(SERVICE_GRPC_PORT="0", SERVICE_MEMORY="0")
    with connected(service) as client, service.client() as http:
        list(client.watch(client.submit()))
        with refused(StatusCode.NOT_FOUND, "NOT_FOUND"):
            client.get("none")
        with refused(StatusCode.UNAUTHENTICATED, "UNAUTHORIZED"):
            ask(client, "/made.up/Name", b"")
        ask(client, "/grpc.health.v1.Health/Check", b"")
        text = http.get("/metrics").text
    found = {
        line.rsplit(" ", 1)[0]
        for line in text.splitlines()
        if line.startswith("stentor_grpc_call_duration_seconds_count")
    }
    assert found == {
        f'stentor_grpc_call_duration_seconds_count{{code="{code}",method="{method}"}}'
        for method, code in (
            ("stentor.v1.TaskService/SubmitTask", "OK"),
            ("stentor.v1.TaskService/WatchTask", "OK"),
            ("stentor.v1.TaskService/GetTask", "NOT_FOUND"),
            ("unknown", "UNAUTHENTICATED"),
            ("grpc.health.v1.Health/Check", "OK"),
        )
    }
    assert "made.up" not in text
