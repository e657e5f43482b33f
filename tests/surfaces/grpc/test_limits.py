"""What a client may hold of the server: connections, calls, time, and metadata."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import grpc
import pytest
from grpc import StatusCode
from grpc_health.v1 import health_pb2, health_pb2_grpc

from stentor.surfaces.grpc.generated import tasks_pb2 as pb
from tests.conftest import Service
from tests.patience import PATIENCE_SECONDS, until
from tests.requirements import requirement
from tests.surfaces.grpc.conftest import SECONDS, Client, connected, keyed, refused
from tests.surfaces.grpc.test_raw import PREFACE, SETTINGS, frame

Serve = Callable[..., Service]
ACKNOWLEDGED = 1
GREETING = PREFACE + frame(SETTINGS, 0, 0, b"") + frame(SETTINGS, ACKNOWLEDGED, 0, b"")
pytestmark = pytest.mark.only("sqlite", reason="what is limited here never reaches the database")


def start(serve: Serve, **more: str) -> Service:
    return serve(SERVICE_GRPC_PORT="0", SERVICE_MEMORY="0", **more)


@contextmanager
def holding(service: Service, sent: bytes = GREETING) -> Iterator[socket.socket]:
    """A connection that says this and no more."""
    host, port = service.ready["grpc"].split(":")
    with socket.create_connection((host, int(port)), timeout=PATIENCE_SECONDS) as connection:
        connection.sendall(sent)
        yield connection


def is_closed(connection: socket.socket) -> bool:
    """Waits until the other side closes it; fails when it does not."""
    try:
        while connection.recv(65_536):
            pass
    except ConnectionResetError:
        pass
    return True


@requirement("scale.grpc-limits")
@pytest.mark.parametrize("sent", [b"", PREFACE[:10], PREFACE], ids=["nothing", "half a greeting", "no settings"])
def test_a_connection_that_does_not_begin_is_closed(serve: Serve, sent: bytes) -> None:
    service = start(serve, SERVICE_HEAD_TIMEOUT_SECONDS="1", SERVICE_KEEP_ALIVE_SECONDS="3600")
    with holding(service, sent) as connection:
        assert is_closed(connection)
    with connected(service) as client:
        assert client.submit()


@requirement("scale.grpc-limits")
def test_a_connection_without_a_call_is_closed_and_its_client_makes_another(serve: Serve) -> None:
    service = start(serve, SERVICE_KEEP_ALIVE_SECONDS="1")
    with connected(service) as client, holding(service) as connection:
        assert client.submit()
        assert is_closed(connection)
        assert client.submit()


@requirement("scale.grpc-limits")
def test_above_the_number_of_connections_the_newest_is_closed_until_one_ends(serve: Serve) -> None:
    service = start(serve, SERVICE_MAX_CONNECTIONS="3")
    with connected(service) as client, ExitStack() as held:
        assert client.submit()
        for _ in range(2):
            held.enter_context(holding(service)).recv(1)  # the server has taken it when it greets
        with holding(service) as another:
            assert is_closed(another)
        assert client.submit(), "who was there before is served"
        held.close()
        with connected(service) as late:
            asked = pb.GetTaskRequest(task_id="none")
            with refused(StatusCode.NOT_FOUND, "NOT_FOUND"):
                late.tasks.GetTask(asked, metadata=keyed(), timeout=SECONDS, wait_for_ready=True)


@requirement("scale.grpc-limits")
def test_above_the_number_of_calls_at_once_a_call_is_refused_until_one_ends(serve: Serve) -> None:
    service = start(serve, SERVICE_MAX_CONNECTIONS="3")
    with connected(service) as client:
        health = health_pb2_grpc.HealthStub(client.channel)
        watching = [health.Watch(health_pb2.HealthCheckRequest(), timeout=SECONDS) for _ in range(3)]
        assert [next(one).status for one in watching] == [health_pb2.HealthCheckResponse.SERVING] * 3
        with refused(StatusCode.RESOURCE_EXHAUSTED, None):
            client.submit()
        watching.pop().cancel()
        assert until(lambda: submitted(client))


def submitted(client: Client) -> bool:
    try:
        return bool(client.submit())
    except grpc.RpcError as error:
        if error.code() != StatusCode.RESOURCE_EXHAUSTED:
            raise
        return False  # the cancellation is on its way


@requirement("scale.grpc-limits")
def test_metadata_above_the_limit_is_refused_and_the_connection_lives(serve: Serve) -> None:
    service = start(serve)
    with connected(service) as client:
        for size, ends in ((8_000, StatusCode.NOT_FOUND), (20_000, StatusCode.RESOURCE_EXHAUSTED)):
            with pytest.raises(grpc.RpcError) as found:
                client.tasks.GetTask(
                    pb.GetTaskRequest(task_id="none"), metadata=keyed(filler="x" * size), timeout=SECONDS
                )
            assert found.value.code() == ends
        assert client.submit()
