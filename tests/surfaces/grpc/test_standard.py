"""Health and reflection, as their official clients see them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Any

import grpc
import httpx
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from grpc import StatusCode
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from tests.conftest import Service
from tests.requirements import requirement
from tests.surfaces.grpc.conftest import SECONDS, Client, connected, keyed, refused

OURS = ["stentor.v1.AtpService", "stentor.v1.LlmService", "stentor.v1.TaskService"]
STANDARD = [
    "grpc.health.v1.Health",
    "grpc.reflection.v1.ServerReflection",
    "grpc.reflection.v1alpha.ServerReflection",
]
Health = health_pb2.HealthCheckResponse


def health(client: Client) -> Any:
    return health_pb2_grpc.HealthStub(client.channel)


def check(client: Client, name: str) -> int:
    return int(health(client).Check(health_pb2.HealthCheckRequest(service=name), timeout=SECONDS).status)


@requirement("scale.grpc-other-services")
def test_health_needs_no_key_and_knows_every_service(client: Client) -> None:
    assert [check(client, name) for name in ["", *OURS, *STANDARD]] == [Health.SERVING] * 7


@requirement("scale.grpc-other-services")
def test_health_of_a_service_that_there_is_not(client: Client) -> None:
    with refused(StatusCode.NOT_FOUND, "NOT_FOUND"):
        check(client, "no.Service")
    watched = health(client).Watch(health_pb2.HealthCheckRequest(service="no.Service"), timeout=SECONDS)
    assert next(watched).status == Health.SERVICE_UNKNOWN
    watched.cancel()


@requirement("scale.grpc-other-services")
@pytest.mark.only("sqlite", reason="its writer is taken away through the file")
def test_health_follows_the_readiness_check(serve: Callable[..., Service]) -> None:
    service = serve(SERVICE_GRPC_PORT="0", SERVICE_MEMORY="0")
    with connected(service) as client, service.client() as http:
        watched = health(client).Watch(health_pb2.HealthCheckRequest(), timeout=SECONDS)
        assert next(watched).status == Health.SERVING
        with sqlite3.connect(service.data_dir / "stentor.db", isolation_level=None) as thief:
            thief.execute("begin immediate")  # the writer waits in vain, so the database counts as out
            assert next(watched).status == Health.NOT_SERVING
            assert not ready(http)
            thief.execute("rollback")
        assert next(watched).status == Health.SERVING
        assert ready(http)


def ready(http: httpx.Client) -> bool:
    return bool(http.get("/api/v1/health/ready").json()["ready"])


@requirement("scale.grpc-other-services")
@pytest.mark.parametrize("version", ["v1alpha", "v1"])
def test_both_versions_of_reflection_list_the_services_without_a_key(client: Client, version: str) -> None:
    call = client.channel.stream_stream(
        f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    asked = [reflection_pb2.ServerReflectionRequest(list_services=""), reflection_pb2.ServerReflectionRequest()]
    listed, flawed = call(iter(asked), timeout=SECONDS)
    assert sorted(one.name for one in listed.list_services_response.service) == sorted(OURS + STANDARD)
    assert flawed.error_response.error_code == StatusCode.INVALID_ARGUMENT.value[0]


@requirement("scale.grpc-other-services")
@pytest.mark.parametrize("name", [*OURS, *STANDARD])
def test_every_service_that_is_listed_is_described(client: Client, name: str) -> None:
    found = DescriptorPool(ProtoReflectionDescriptorDatabase(client.channel)).FindServiceByName(name)
    assert found.full_name == name
    for method in found.methods:
        assert method.input_type.full_name.rpartition(".")[0] == name.rpartition(".")[0]


@requirement("scale.grpc-other-services")
def test_a_client_that_knows_nothing_submits_a_task_by_reflection(client: Client) -> None:
    database = ProtoReflectionDescriptorDatabase(client.channel)
    assert sorted(database.get_services()) == sorted(OURS + STANDARD)
    pool = DescriptorPool(database)
    method = pool.FindServiceByName("stentor.v1.TaskService").FindMethodByName("SubmitTask")
    kind = GetMessageClass(method.input_type)
    call = client.channel.unary_unary(
        f"/{method.containing_service.full_name}/{method.name}",
        request_serializer=kind.SerializeToString,
        response_deserializer=GetMessageClass(method.output_type).FromString,
    )
    asked = GetMessageClass(method.input_type)(
        type="summarize", input_json='"One."', required_capabilities=["summarize"]
    )
    answer: Any = call(asked, metadata=keyed(), timeout=SECONDS)
    assert client.get(answer.task_id).type == "summarize"


@requirement("scale.grpc-other-services")
def test_streams_that_need_no_key_are_few(client: Client) -> None:
    asked = health_pb2.HealthCheckRequest()
    opened = [health(client).Watch(asked, timeout=SECONDS) for _ in range(100)]
    for one in opened:
        assert next(one).status == Health.SERVING
    with refused(StatusCode.RESOURCE_EXHAUSTED, "RATE_LIMITED"):
        next(health(client).Watch(asked, timeout=SECONDS))
    assert check(client, "") == Health.SERVING
    assert client.submit()
    for one in opened:
        one.cancel()
    for one in opened:
        with pytest.raises(grpc.RpcError):
            list(one)


@requirement("scale.grpc-other-services")
@pytest.mark.parametrize("method", ["grpc.health.v1.Health/Check", "grpc.health.v1.Health/Watch"])
def test_bytes_that_are_no_message_are_the_callers_mistake(client: Client, method: str) -> None:
    with refused(StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST"):
        list(client.channel.unary_stream(f"/{method}")(b"\xff", timeout=SECONDS))


@requirement("scale.grpc-other-services")
def test_bytes_that_are_no_question_end_the_reflection(client: Client) -> None:
    call = client.channel.stream_stream(f"/{STANDARD[1]}/ServerReflectionInfo")
    with refused(StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST"):
        list(call(iter([b"\xff\xff"]), timeout=SECONDS))
