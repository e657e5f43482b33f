"""A task that is submitted here, carried out there and watched elsewhere."""

from __future__ import annotations

import math
import threading

import httpx
import pytest

from tests.patience import until
from tests.processes.calls import Stream, claim, ended, known, post, register, submit, task
from tests.processes.conftest import Installation, Start
from tests.requirements import requirement

pytestmark = pytest.mark.together("processes")


@requirement("scale.dispatch-across-machines")
def test_a_gateway_that_does_not_work_has_its_tasks_done_by_one_that_does(installation: Installation) -> None:
    ids = [submit(service) for service in (installation.one, installation.other) for _ in range(10)]
    for task_id in ids:
        found = ended(installation.other, task_id)
        assert found["attempts"] == 1
        assert "Stentor routes each task" in found["result"]["summary"]


@requirement("scale.dispatch-across-machines")
def test_a_worker_claims_at_one_gateway_what_was_submitted_at_another_and_nobody_claims_it_twice(
    installation: Installation,
) -> None:
    agent_id = register(installation.one, "claimed")
    known(installation.other, agent_id)
    ids = {submit(installation.other, type="x", required_capabilities=["claimed"]) for _ in range(20)}
    taken: list[str] = []

    def work(at: int) -> None:
        service = (installation.one, installation.other)[at % 2]
        while len(taken) < 20:
            for one in post(service, f"/api/v1/agents/{agent_id}/claims", max=2, wait_seconds=1)["tasks"]:
                taken.append(one["task_id"])
                post(service, f"/api/v1/tasks/{one['task_id']}/complete", epoch=one["epoch"], result=at)

    workers = [threading.Thread(target=work, args=(at,)) for at in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(200)
    assert sorted(taken) == sorted(ids)


@requirement("execution.worker-leaves")
def test_a_worker_that_leaves_at_one_gateway_is_offline_at_another_and_back_with_its_next_claim(
    installation: Installation,
) -> None:
    agent_id = register(installation.one, "leaving")
    known(installation.other, agent_id)

    def is_online() -> bool:
        with installation.other.client() as http:
            return bool(http.get(f"/api/v1/registry/agents/{agent_id}").json()["online"])

    post(installation.one, f"/api/v1/agents/{agent_id}/claims")
    assert is_online()
    assert post(installation.one, f"/api/v1/agents/{agent_id}/leave")["online"] is False
    until(lambda: not is_online())
    post(installation.one, f"/api/v1/agents/{agent_id}/claims")
    until(is_online)


@requirement("scale.streams-across-instances")
def test_a_stream_at_another_gateway_gets_the_tokens_one_by_one_and_the_events_in_their_order(
    installation: Installation,
) -> None:
    agent_id = register(installation.one, "speaking")
    task_id = submit(installation.one, type="x", required_capabilities=["speaking"])
    taken = claim(installation.one, agent_id)
    path, epoch = f"/api/v1/tasks/{task_id}", taken["epoch"]
    post(installation.one, f"{path}/tokens", epoch=epoch, tokens=["be", "fore"])
    streams = [Stream(installation.other, task_id)]
    until(lambda: len(streams[0].tokens()) == 2)
    post(installation.one, f"{path}/tokens", epoch=epoch, tokens=[" one"])
    until(lambda: streams[0].tokens()[2:] == [" one"])
    streams.append(Stream(installation.other, task_id))
    until(lambda: len(streams[1].tokens()) == 3)
    post(installation.one, f"{path}/tokens", epoch=epoch, tokens=[" two", " three"])
    until(lambda: len(streams[0].tokens()) == len(streams[1].tokens()) == 5)
    post(installation.one, f"{path}/complete", epoch=epoch, result="done")
    for stream in streams:
        stream.join(200)
        assert stream.tokens() == ["be", "fore", " one", " two", " three"]
        kinds = [kind for kind in stream.kinds() if kind != "token"]
        assert kinds[:4] == ["prompt_received", "routing", "task_queued", "task_started"]
        assert kinds[4:] == ["task_completed", "learning_updated", "complete"]
        assert stream.steps[-1][1]["result"] == "done"


@requirement("scale.streams-across-instances")
def test_a_stream_gets_the_tokens_that_a_worker_sends_to_both_gateways(installation: Installation) -> None:
    agent_id = register(installation.one, "both")
    task_id = submit(installation.one, type="x", required_capabilities=["both"])
    taken = claim(installation.one, agent_id)
    path, epoch = f"/api/v1/tasks/{task_id}", taken["epoch"]
    streams = [Stream(installation.other, task_id), Stream(installation.one, task_id)]
    words = ["a", "b", "c", "d"]
    for number, word in enumerate(words, 1):
        post((installation.one, installation.other)[number % 2], f"{path}/tokens", epoch=epoch, tokens=[word])
        until(lambda expected=words[:number]: all(stream.tokens() == expected for stream in streams))
    post(installation.one, f"{path}/complete", epoch=epoch, result="done")
    for stream in streams:
        stream.join(200)


@requirement("llm.settings-everywhere")
def test_a_budget_is_in_force_and_gone_at_another_gateway(installation: Installation) -> None:
    body = {"kind": "key", "subject": "writer", "unit": "tokens", "period": "day", "limit": 0}

    def listed() -> list[str]:
        with installation.other.client() as client:
            budgets = client.get("/api/v1/llm/budgets").json()["budgets"]
        return [str(budget["budget_id"]) for budget in budgets]

    made = post(installation.one, "/api/v1/llm/budgets", **body)
    until(lambda: listed() == [made["budget_id"]])
    with installation.one.client() as client:
        assert client.delete(f"/api/v1/llm/budgets/{made['budget_id']}").status_code == 200
    until(lambda: listed() == [])


@requirement("scale.streams-across-instances")
def test_a_stream_is_resumed_at_another_gateway_where_it_was_left(installation: Installation) -> None:
    agent_id = register(installation.one, "resumed")
    task_id = submit(installation.one, type="x", required_capabilities=["resumed"])
    taken = claim(installation.one, agent_id)
    first = Stream(installation.one, task_id)
    post(installation.one, f"/api/v1/tasks/{task_id}/tokens", epoch=taken["epoch"], tokens=["a", "b", "c"])
    until(lambda: len(first.tokens()) == 3)
    seen = [name for kind, data, name in first.steps if kind == "token" and data["text"] == "b"]
    again = Stream(installation.other, task_id, seen[0])
    until(lambda: again.tokens() == ["c"])
    post(installation.one, f"/api/v1/tasks/{task_id}/complete", epoch=taken["epoch"], result=1)
    again.join(200)
    assert again.kinds() == ["token", "task_completed", "learning_updated", "complete"]


@requirement("scale.streams-across-instances")
def test_without_any_message_between_them_tasks_are_done_and_streams_come_to_their_end(start: Start) -> None:
    deaf = {"SERVICE_NATS_URL": "nats://127.0.0.1:1"}
    gateway = start("gateway", **deaf)
    start("worker", **deaf)
    task_id = submit(gateway)
    stream = Stream(gateway, task_id)
    stream.join(200)
    assert stream.kinds()[-1] == "complete"
    assert "task_started" in stream.kinds()


def test_a_cancelled_task_is_stopped_where_it_runs(installation: Installation) -> None:
    """The process that works has it in hand; the word comes to another."""
    begun, stopped, address = sleeper()
    register(installation.one, "sleeping", runtime={"kind": "http", "endpoint": address})
    task_id = submit(installation.one, type="x", required_capabilities=["sleeping"])
    assert begun.wait(200)
    with installation.other.client() as client:
        assert client.post(f"/api/v1/tasks/{task_id}/cancel").status_code == 200
    assert stopped.wait(200)
    assert task(installation.one, task_id)["status"] == "cancelled"


def test_what_is_learned_at_two_gateways_at_the_same_time_is_all_kept(installation: Installation) -> None:
    agent_id = register(installation.one, "learning")
    known(installation.other, agent_id)
    services = installation.one, installation.other
    ids = [submit(services[i % 2], type="learned", required_capabilities=["learning"]) for i in range(60)]
    claims = [one for _ in range(6) for one in post(services[0], f"/api/v1/agents/{agent_id}/claims", max=10)["tasks"]]
    assert sorted(one["task_id"] for one in claims) == sorted(ids)

    def finish(at: int) -> None:
        for one in claims[at::6]:
            post(services[at % 2], f"/api/v1/tasks/{one['task_id']}/complete", epoch=one["epoch"], result=1)

    finishing = [threading.Thread(target=finish, args=(at,)) for at in range(6)]
    for thread in finishing:
        thread.start()
    for thread in finishing:
        thread.join(200)
    with installation.other.client() as client:
        found = client.get(f"/api/v1/hebbian/history/{agent_id}", params={"limit": 100}).json()
        weights = client.get("/api/v1/hebbian/weights", params={"agent_id": agent_id}).json()["weights"]
    assert len(found["history"]) == found["total_entries"] == 60
    # The time that the outcomes take moves the weight by far less than one outcome.
    assert weights["learned"] == pytest.approx(1 + 60 * math.tanh(0.1), abs=0.01)


def sleeper() -> tuple[threading.Event, threading.Event, str]:
    """An agent that never answers: it says when it was asked, and when nobody waits for it any more."""
    import socket

    begun, stopped = threading.Event(), threading.Event()
    listening = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        with listening, listening.accept()[0] as connection:
            connection.recv(65_536)
            begun.set()
            while connection.recv(65_536):
                pass
            stopped.set()

    threading.Thread(target=answer, daemon=True).start()
    return begun, stopped, f"http://127.0.0.1:{listening.getsockname()[1]}/do"


def test_a_process_that_is_no_gateway_answers_for_its_health_and_its_figures_alone(installation: Installation) -> None:
    with installation.worker.client() as client:
        assert client.get("/api/v1/health/ready").json() == {"ready": True}
        assert "stentor_running" in client.get("/metrics").text
        assert client.get("/api/v1/tasks").status_code == 404
    assert httpx.get(f"{installation.worker.address}/metrics").status_code == 401
