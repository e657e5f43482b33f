"""A real `stentor serve` that serves gRPC, and the official client."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import pytest

from stentor.surfaces.grpc.generated import atp_pb2_grpc, llm_pb2_grpc, tasks_pb2, tasks_pb2_grpc
from tests.conftest import KEYS, Service, serving

SECONDS = 60
"""No call of a test waits longer."""


@dataclass
class Client:
    """The stubs over one channel; `key` names one of KEYS, None sends none."""

    service: Service
    channel: Any
    tasks: Any = field(init=False)
    atp: Any = field(init=False)
    llm: Any = field(init=False)

    def __post_init__(self) -> None:
        self.tasks = tasks_pb2_grpc.TaskServiceStub(self.channel)
        self.atp = atp_pb2_grpc.AtpServiceStub(self.channel)
        self.llm = llm_pb2_grpc.LlmServiceStub(self.channel)

    def submit(self, key: str | None = "ADMIN", **fields: Any) -> str:
        """Submit a task; answers its id."""
        answer = self.tasks.SubmitTask(request(**fields), metadata=keyed(key), timeout=SECONDS)
        return str(answer.task_id)

    def get(self, task_id: str) -> tasks_pb2.Task:
        asked = tasks_pb2.GetTaskRequest(task_id=task_id)
        found: tasks_pb2.Task = self.tasks.GetTask(asked, metadata=keyed(), timeout=SECONDS)
        return found

    def watch(self, task_id: str, last: str = "", key: str | None = "ADMIN", timeout: float = SECONDS) -> Any:
        """The call, to be iterated."""
        asked = tasks_pb2.WatchTaskRequest(task_id=task_id, last_event_id=last)
        return self.tasks.WatchTask(asked, metadata=keyed(key), timeout=timeout)


def request(**fields: Any) -> tasks_pb2.SubmitTaskRequest:
    """A task for the agent inside the service, or what `fields` make of it."""
    usual: dict[str, Any] = {
        "type": "summarize",
        "input_json": '"One thing. Another thing."',
        "required_capabilities": ["summarize"],
    }
    return tasks_pb2.SubmitTaskRequest(**usual | fields)


def keyed(key: str | None = "ADMIN", **more: str) -> list[tuple[str, str]]:
    """Metadata with one of KEYS, and others by their names with underscores."""
    own = [("x-api-key", KEYS[key].split(":")[0])] if key else []
    return own + [(name.replace("_", "-"), value) for name, value in more.items()]


@contextmanager
def connected(service: Service, **options: Any) -> Iterator[Client]:
    with grpc.insecure_channel(service.ready["grpc"], list(options.items())) as channel:
        yield Client(service, channel)


def code_of(error: grpc.RpcError) -> str | None:
    """The service's own code of a refusal."""
    return trailing(error).get("stentor-code")


def trailing(ended: Any) -> dict[str, Any]:
    """The metadata at the end of a call, refused or not."""
    return dict(ended.trailing_metadata())


@contextmanager
def refused(status: grpc.StatusCode, code: str | None) -> Iterator[pytest.ExceptionInfo[grpc.RpcError]]:
    """The block must fail like this; None is for what the core refuses by itself."""
    with pytest.raises(grpc.RpcError) as found:
        yield found
    assert (found.value.code(), code_of(found.value)) == (status, code), found.value


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """One for all tests of a module, without a memory, because none of them needs it. It must end without a word, but
    for that on tasks that still run.
    """
    with serving(tmp_path_factory.mktemp("grpc")) as start:
        made = start(SERVICE_GRPC_PORT="0", SERVICE_MEMORY="0", SERVICE_MAX_BODY_MB="1")
        yield made
        made.process.send_signal(signal.SIGTERM)
        told = made.process.communicate(timeout=200)[1].splitlines()
        assert [line for line in told if "tasks run here" not in line] == []
        assert made.process.returncode == 0


@pytest.fixture
def client(service: Service) -> Iterator[Client]:
    with connected(service) as made:
        yield made
