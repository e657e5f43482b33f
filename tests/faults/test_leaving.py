"""Those who leave in the middle: a client that does not wait for its answer, a worker that is stopped."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Callable

import httpx
import pytest

from tests.conftest import KEYS, Service
from tests.faults.checker import check
from tests.faults.load import summaries, wait_for
from tests.faults.test_kill import worker
from tests.patience import until
from tests.requirements import requirement

KEY = KEYS["ADMIN"].split(":")[0]
pytestmark = pytest.mark.fault


def send_and_leave(address: str, body: dict[str, object], linger: float) -> None:
    host, port = address.removeprefix("http://").split(":")
    content = json.dumps(body).encode()
    head = (
        f"POST /api/v1/tasks HTTP/1.1\r\nHost: localhost\r\nX-API-Key: {KEY}\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    with socket.create_connection((host, int(port)), timeout=200) as connection:
        connection.sendall(head.encode() + content)
        time.sleep(linger)


def test_a_client_that_leaves_before_its_answer_leaves_a_whole_task_or_none(serve: Callable[..., Service]) -> None:
    service = serve()
    bodies = summaries(60)
    for i, body in enumerate(bodies):
        send_and_leave(service.address, body, linger=i / 30_000)
    with service.client() as client:
        time.sleep(0.5)
        found = [client.get(f"/api/v1/tasks/{body['id']}").status_code for body in bodies]
        assert set(found) <= {200, 404}
        kept = [str(body["id"]) for body, status in zip(bodies, found, strict=True) if status == 200]
        assert kept
        wait_for(client, len(kept))
        for body in bodies:  # asking again with the same id brings each to its end, once
            assert client.post("/api/v1/tasks", json=body).status_code == 202
        wait_for(client, len(bodies))
    service.process.send_signal(signal.SIGTERM)
    assert "Traceback" not in service.process.communicate(timeout=200)[1]
    assert check(service.database, [str(body["id"]) for body in bodies]) == []


def submitted(client: httpx.Client) -> str:
    body = {"type": "work", "input": 1, "required_capabilities": ["work"]}
    return str(client.post("/api/v1/tasks", json=body).json()["task_id"])


@pytest.mark.slow
@requirement("learning.in-outcome-transaction")
def test_a_worker_process_that_is_stopped_past_its_lease_counts_for_nothing(serve: Callable[..., Service]) -> None:
    service = serve()
    with worker(service.address, "work", 0.5, lease=1) as sleeper, service.client() as client:
        task_id = submitted(client)
        until(lambda: task_of(client, task_id)["status"] == "executing")
        sleeper.send_signal(signal.SIGSTOP)
        with worker(service.address, "work", 0.1, lease=1):
            until(lambda: task_of(client, task_id)["status"] == "completed")
            sleeper.send_signal(signal.SIGCONT)
            second = submitted(client)
            until(lambda: task_of(client, second)["status"] == "completed")
            time.sleep(1)  # the sleeper's late answer has come by now
        assert int(str(task_of(client, task_id)["attempts"])) >= 2  # its open poll may have been given one more
        assert sleeper.poll() is None
    service.kill()
    assert check(service.database, [task_id, second]) == []


def task_of(client: httpx.Client, task_id: str) -> dict[str, object]:
    return dict(client.get(f"/api/v1/tasks/{task_id}").json())
