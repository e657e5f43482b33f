"""Processes that are stopped, signalled or started twice."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable

import httpx
import pytest

from tests import forkserver
from tests.cli.program import Program
from tests.conftest import Service
from tests.faults.checker import check
from tests.requirements import requirement

pytestmark = pytest.mark.fault


def registered(client: httpx.Client) -> str:
    body = {"name": "ann", "capabilities": ["echo"]}
    return str(client.post("/api/v1/registry/agents", json=body).json()["agent_id"])


def submitted(client: httpx.Client) -> str:
    body = {"type": "echo", "input": 1, "required_capabilities": ["echo"]}
    return str(client.post("/api/v1/tasks", json=body).json()["task_id"])


def claimed(client: httpx.Client, agent_id: str, lease: int) -> dict[str, object]:
    body = {"wait_seconds": 60, "lease_seconds": lease}
    return dict(client.post(f"/api/v1/agents/{agent_id}/claims", json=body).json()["tasks"][0])


@requirement("learning.in-outcome-transaction")
def test_a_worker_that_slept_past_its_lease_is_refused_and_the_next_one_counts(serve: Callable[..., Service]) -> None:
    service = serve()
    with service.client() as client:
        agent = registered(client)
        task_id = submitted(client)
        slept = claimed(client, agent, 1)
        woken = claimed(client, agent, 30)  # waits until the first lease is over
        assert (slept["task_id"], woken["epoch"]) == (task_id, 2)
        path = f"/api/v1/tasks/{task_id}/complete"
        late = client.post(path, json={"epoch": 1, "result": "late"})
        assert (late.status_code, late.json()["error"]["code"]) == (409, "LEASE_LOST")
        assert client.post(path, json={"epoch": 2, "result": "right"}).status_code == 200
        assert client.post(path, json={"epoch": 1, "result": "later"}).status_code == 409
        assert client.get(f"/api/v1/tasks/{task_id}").json()["result"] == "right"
    service.kill()
    assert check(service.database, [task_id]) == []


@pytest.mark.only("sqlite", reason="services that share a PostgreSQL may share the folder too")
def test_a_second_service_on_the_same_folder_says_who_has_it_and_harms_nothing(serve: Callable[..., Service]) -> None:
    service = serve()
    words = ["serve", "--gateway-port", "0", "--data-dir", str(service.data_dir)]
    second = forkserver.run_text(words, service.environ, timeout=200)
    assert second.returncode != 0
    assert f"process {service.process.pid}" in second.stderr
    assert "Traceback" not in second.stderr
    with service.client() as client:
        assert client.get("/api/v1/tasks").status_code == 200
    service.kill()
    assert serve(data_dir=service.data_dir).process.poll() is None


@requirement("scale.postgres-by-setting")
@pytest.mark.only("postgresql", reason="a SQLite file has one service")
def test_two_services_may_share_a_folder_and_commands_find_the_first(serve: Callable[..., Service]) -> None:
    first, second = serve(), serve()
    program = Program(first.data_dir, {"SERVICE_CLIENT_KEY": first.key})
    assert f"Process {first.process.pid} has been running on" in program("doctor").out
    assert program("agent", "register", "ann", "--capability", "echo").code == 0
    for service in (second, first):
        service.process.terminate()
        assert service.process.wait(200) == 0
    program.environ["SERVICE_DATABASE_URL"] = str(first.database)
    refused = program("agent", "register", "bob")
    assert (refused.code, "SERVICE_URL" in refused.err) == (4, True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_signal_ends_it_cleanly_with_a_poll_and_a_stream_open(
    serve: Callable[..., Service], number: signal.Signals
) -> None:
    service = serve()
    with service.client() as client:
        agent = registered(client)
        task_id = submitted(client)
        claimed(client, agent, 300)

    def hold(method: str, path: str) -> None:
        try:
            with service.client() as held, held.stream(method, path, json={"wait_seconds": 25}) as answer:
                answer.read()
        except httpx.HTTPError:
            pass  # the service has gone

    waits = [("POST", f"/api/v1/agents/{agent}/claims"), ("GET", f"/api/v1/tasks/{task_id}/stream")]
    threads = [threading.Thread(target=hold, args=wait) for wait in waits]
    for thread in threads:
        thread.start()
    time.sleep(0.5)
    service.process.send_signal(number)
    _, err = service.process.communicate(timeout=200)
    for thread in threads:
        thread.join(200)
        assert not thread.is_alive()
    assert service.process.returncode == 0, err
    assert "Traceback" not in err
    with serve(data_dir=service.data_dir).client() as client:
        assert client.get(f"/api/v1/tasks/{task_id}").json()["status"] == "executing"
