"""Deadlines, callers that leave, and a service that leaves: what was begun is whole, and what waits ends."""

from __future__ import annotations

import asyncio
import itertools
import signal
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import grpc
import pytest
from grpc import StatusCode

from stentor.auth.principal import Principal
from stentor.surfaces.grpc import calls
from stentor.surfaces.grpc.calls import ActiveCalls, Call, Metadata
from stentor.surfaces.grpc.generated import tasks_pb2 as pb
from stentor.surfaces.grpc.methods import ServerStreamMethod
from stentor.web.request_context import GrpcCallDurations
from stentor.web.sse import StreamLimit
from tests.conftest import Service
from tests.patience import until
from tests.requirements import requirement
from tests.surfaces.grpc.conftest import Client, code_of, connected, keyed, refused, request

pytestmark = pytest.mark.fault
Serve = Callable[..., Service]
WAITS: dict[str, Any] = {"type": "wait", "required_capabilities": ["wait"]}


def start(serve: Serve, **more: str) -> Service:
    return serve(SERVICE_GRPC_PORT="0", SERVICE_MEMORY="0", **more)


@contextmanager
def waiting(service: Service) -> Iterator[sqlite3.Connection]:
    """Nothing can be written until the block ends, or the connection's transaction does."""
    with sqlite3.connect(service.data_dir / "stentor.db", isolation_level=None) as thief:
        thief.execute("begin immediate")
        yield thief
        if thief.in_transaction:
            thief.execute("rollback")


def waiter(service: Service) -> None:
    """An agent that does not work."""
    with service.client() as http:
        http.post("/api/v1/registry/agents", json={"name": "waiter", "capabilities": ["wait"]}).raise_for_status()


@requirement("scale.grpc-leaving")
@pytest.mark.only("sqlite", reason="its writer is held up through the file")
def test_a_deadline_ends_the_wait_and_not_the_task(serve: Serve) -> None:
    service = start(serve)
    waiter(service)
    with connected(service) as client:
        client.submit(**WAITS)  # connected, so that the deadline is for the work alone
        names = (f"late-{number}" for number in itertools.count())

        def late() -> str | None:
            """A task that a caller submitted and did not wait for. None if the request did not arrive in time."""
            name = next(names)
            # Shorter than the store itself waits for a lock: past that it would answer before the deadline.
            with waiting(service), refused(StatusCode.DEADLINE_EXCEEDED, None):
                client.tasks.SubmitTask(request(id=name, **WAITS), metadata=keyed(), timeout=3)
            client.submit(**WAITS)  # written after it
            with service.client() as http:
                return name if http.get(f"/api/v1/tasks/{name}").status_code == 200 else None

        name = until(late)
        assert name is not None
        assert client.submit(id=name, **WAITS) == name
        with refused(StatusCode.DEADLINE_EXCEEDED, None):
            list(client.watch(name, timeout=1))
        assert client.get(name).status == pb.TASK_STATUS_QUEUED


@requirement("scale.grpc-leaving")
def test_a_watcher_that_leaves_gives_its_place_back_and_the_task_goes_on(serve: Serve) -> None:
    service = start(serve, SERVICE_MAX_STREAMS_PER_KEY="1")
    waiter(service)
    with connected(service) as client:
        task_id = client.submit(**WAITS)
        for _ in range(20):
            call = client.watch(task_id)
            next(call)
            call.cancel()
            until(lambda: free(client))
        assert client.get(task_id).status == pb.TASK_STATUS_QUEUED


def free(client: Client) -> bool:
    """Whether one more stream is let in; of a task that there is not, so that it ends at once."""
    with pytest.raises(grpc.RpcError) as found:
        next(client.watch("none"))
    return code_of(found.value) == "NOT_FOUND"


def stopped(service: Service) -> str:
    """What it said when it was told to stop."""
    said = service.process.communicate(timeout=200)[1]
    assert service.process.returncode == 0
    return said


@requirement("scale.grpc-leaving")
def test_a_service_that_leaves_ends_its_streams_and_they_go_on_at_the_next_one(serve: Serve) -> None:
    service = start(serve)
    waiter(service)
    with connected(service) as client:
        task_id = client.submit(**WAITS)
        steps = client.watch(task_id)
        last = [next(steps) for _ in range(3)][-1]
        service.process.send_signal(signal.SIGTERM)
        with refused(StatusCode.UNAVAILABLE, "SERVICE_UNAVAILABLE"):
            next(steps)
    assert stopped(service) == ""
    service = start(serve)
    with connected(service) as client:
        steps = client.watch(task_id, last.id)
        client.tasks.CancelTask(pb.CancelTaskRequest(task_id=task_id), metadata=keyed())
        kinds = [step.activity.event_type or step.WhichOneof("step") for step in steps]
    assert kinds == ["task_cancelled", "learning_skipped", "ended"]


@requirement("scale.grpc-leaving")
@pytest.mark.only("sqlite", reason="its writer is held up through the file")
def test_a_service_that_leaves_finishes_what_runs_and_refuses_what_is_new(serve: Serve) -> None:
    service = start(serve)
    with connected(service) as client:
        known = client.submit()
        list(client.watch(known))
        with waiting(service) as thief:
            running = client.tasks.SubmitTask.future(request(id="last"), metadata=keyed())
            assert client.get(known).task_id == known  # on the same connection, so the one before has arrived
            service.process.send_signal(signal.SIGTERM)
            until(lambda: not taken(client, known))
            assert not running.done()
            thief.execute("rollback")
            assert running.result(timeout=200).task_id == "last"
    # The task that was accepted last may run, or have ended.
    assert [line for line in stopped(service).splitlines() if "1 tasks run here" not in line] == []
    with sqlite3.connect(service.data_dir / "stentor.db") as database:
        assert database.execute("select count(*) from tasks where task_id = 'last'").fetchone() == (1,)


def taken(client: Client, known: str) -> bool:
    """Whether one more call is answered."""
    try:
        return bool(client.get(known).task_id)
    except grpc.RpcError as error:
        assert (error.code(), code_of(error)) == (StatusCode.UNAVAILABLE, "SERVICE_UNAVAILABLE")  # noqa: PT017
        return False


@requirement("scale.grpc-leaving")
def test_watchers_of_health_and_reflection_do_not_hold_a_service_up(serve: Serve) -> None:
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    service = start(serve)
    with connected(service) as client:
        watched = health_pb2_grpc.HealthStub(client.channel).Watch(health_pb2.HealthCheckRequest())
        next(watched)
        service.process.send_signal(signal.SIGTERM)
        with refused(StatusCode.UNAVAILABLE, "SERVICE_UNAVAILABLE"):
            next(watched)
    assert stopped(service) == ""


@requirement("activity.stream-ends-with-key")
async def test_a_silent_stream_ends_when_its_key_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "CALLER_CHECK_SECONDS", 0.01)
    ended: list[StatusCode] = []

    @asynccontextmanager
    async def silent(call: Call, message: pb.WatchTaskRequest) -> AsyncIterator[AsyncIterator[Any]]:
        async def responses() -> AsyncIterator[Any]:
            await asyncio.Event().wait()
            yield

        yield responses()

    class Context:
        async def send_initial_metadata(self, pairs: object) -> None:
            pass

        async def abort(self, code: StatusCode, *_: object) -> None:
            ended.append(code)
            raise grpc.aio.AbortError

    principal = Principal("dana", "viewer", frozenset())
    call = Call("watch", Metadata([]), GrpcCallDurations(), ActiveCalls(), principal, lambda: None)
    method = ServerStreamMethod("read", pb.WatchTaskRequest, silent, StreamLimit(1))
    handle: Any = method.create_handler(call).unary_stream
    with pytest.raises(grpc.aio.AbortError):
        await handle(b"", Context())
    assert ended == [StatusCode.UNAUTHENTICATED]
