"""`stentor task explain` and `stentor task grade`, beside a service and on the folder of a stopped one."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from typing import Any

from tests.cli.populated import stop
from tests.cli.program import SUMMARIZE, TEXT, Program
from tests.requirements import requirement

Served = tuple[Program, Any]


def _change(program: Program, task_id: str, change: Callable[[dict[str, Any]], None]) -> None:
    """Change the decision in the run log behind the service's back."""
    with closing(sqlite3.connect(program.data_dir / "stentor.db")) as connection, connection:
        where = "task_id = ? and event_type = 'routing_decision'"
        [(text,)] = connection.execute(f"select metadata from events where {where}", (task_id,)).fetchall()
        metadata = json.loads(text)
        change(metadata["routing"])
        connection.execute(f"update events set metadata = ? where {where}", (json.dumps(metadata), task_id))


@requirement("routing.decision-recomputed")
def test_explain_says_who_was_chosen_and_why_and_recomputes_it(shared: Served) -> None:
    program, service = shared
    ann = program("agent", "register", "ann", "--capability", "echo", "--accuracy", "0.9", "--json").json["agent_id"]
    program("agent", "register", "bob", "--capability", "echo")
    out = program("agent", "register", "eve", "--capability", "echo", "--json").json["agent_id"]
    program("agent", "suspend", out, "--reason", "moved")
    with service.client() as http:
        for number in range(3):
            program("task", "submit", "--type", "echo", "--capability", "echo", "--input", "x", "--id", f"t{number}")
            claim = http.post(f"/api/v1/agents/{ann}/claims", json={}).json()["tasks"][0]
            body = {"epoch": claim["epoch"], "result": "y"}
            assert http.post(f"/api/v1/tasks/t{number}/complete", json=body).is_success
    program("task", "submit", "--type", "echo", "--capability", "echo", "--input", "x", "--id", "t", "--prefer", "fast")
    done = program("task", "explain", "t")
    assert done.code == 0
    for words in ("ann was chosen among 2 candidates", "prefer fast", "alpha 0.2, beta 0", "eve", "3.0 of 3.0"):
        assert words in done.out
    for column in ("declared", "elsewhere", "prior", "outcomes", "expected", "uncertainty", "ahead", "ready", "online"):
        assert column in done.out
    assert "is suspended, quarantined or archived (ROUTING_AGENT_UNAVAILABLE)" in " ".join(done.out.split())
    assert done.out.endswith("Recomputation from the run log: identical.\n")
    found = program("task", "explain", "t", "--json").json
    assert found["decision"]["agent_id"] == ann
    assert found["recomputation"] == {
        "recomputed": True,
        "same": True,
        "reason": None,
        "differences": [],
        "assumed": [],
    }


@requirement("routing.decision-recomputed")
def test_explain_shows_the_share_of_degraded_results_by_which_a_score_is_lower(shared: Served) -> None:
    program, service = shared
    ann = program("agent", "register", "ann", "--capability", "echo", "--json").json["agent_id"]
    submit = ("task", "submit", "--type", "echo", "--capability", "echo", "--input", "x", "--id")
    program(*submit, "t1")
    assert "failing" not in program("task", "explain", "t1").out
    with service.client() as http:
        claim = http.post(f"/api/v1/agents/{ann}/claims", json={}).json()["tasks"][0]
        body = {"epoch": claim["epoch"], "result": "y", "degraded": True}
        assert http.post("/api/v1/tasks/t1/complete", json=body).is_success
    program(*submit, "t2")
    done = program("task", "explain", "t2")
    words = " ".join(done.out.split())
    assert "(expected + uncertainty) (1 - failing) - time - cost" in words
    assert "failing 0.0" in words
    assert "tries 1" in words
    found = program("task", "explain", "t2", "--json").json["decision"]["candidates"][0]
    left = (found["expected"] + found["uncertainty"]) * (1 - found["failing"])
    assert abs(left - found["time_penalty"] - found["cost_penalty"] - found["blended"]) < 1e-9
    assert "(1 - failing)" in " ".join(program("task", "show", "t2", "--activity").out.split())


@requirement("routing.decision-recomputed")
def test_explain_works_on_the_folder_of_a_stopped_service_and_finds_a_changed_decision(program: Program) -> None:
    submitted = program("task", "submit", *SUMMARIZE, "--input", TEXT, "--json").json
    task_id = submitted["task_id"]
    same = program("task", "explain", task_id)
    assert same.code == 0
    assert "summarizer was chosen as the only eligible agent." in same.out
    _change(program, task_id, lambda routing: routing["candidates"][0].update(expected=0.9))
    done = program("task", "explain", task_id)
    assert done.code == 1
    assert "Recomputation from the run log: different" in done.out
    assert "summarizer" in done.out.partition("different")[2]
    as_json = program("task", "explain", task_id, "--json")
    assert as_json.code == 1
    [difference] = as_json.json["recomputation"]["differences"]
    assert (difference["field"], difference["name"], difference["recorded"]) == ("expected", "summarizer", 0.9)


@requirement("routing.own-outage")
def test_explain_says_that_the_results_of_an_agent_are_from_before_its_failures(program: Program) -> None:
    task_id = program("task", "submit", *SUMMARIZE, "--input", TEXT, "--json").json["task_id"]
    _change(program, task_id, lambda routing: routing["candidates"][0].update(rewards=9.0, outcomes=9.0, retry=True))
    assert "9.0 of 9.0, before its failures" in " ".join(program("task", "explain", task_id).out.split())


def test_a_decision_that_cannot_be_read_differs_and_is_said(program: Program) -> None:
    task_id = program("task", "submit", *SUMMARIZE, "--input", TEXT, "--json").json["task_id"]
    _change(program, task_id, lambda routing: routing.pop("candidates_total"))
    done = program("task", "explain", task_id)
    assert done.code == 1
    assert "The recorded decision cannot be read." in done.out
    assert "The recorded decision cannot be read." in program("task", "show", task_id, "--activity").out


def test_explain_says_why_nobody_was_chosen(shared: Served) -> None:
    program, _ = shared
    agent = program("agent", "register", "ann", "--capability", "echo", "--json").json["agent_id"]
    program("agent", "suspend", agent, "--reason", "moved")
    program("task", "submit", "--type", "echo", "--capability", "echo", "--input", "x", "--id", "t")
    done = program("task", "explain", "t")
    assert done.code == 0
    assert "No agent was chosen: The agent ann is suspended: stentor agent activate ann" in done.out
    assert "ann" in done.out
    assert program("task", "explain", "none").code == 3


def test_a_grade_is_given_once_and_corrects_what_was_learned(shared: Served) -> None:
    program, _ = shared
    program("task", "submit", *SUMMARIZE, "--input", TEXT, "--id", "t", "--wait")
    done = program("task", "grade", "t", "0.8", "--comment", "Right, but slow.")
    assert (done.code, done.out) == (0, "Graded task t 0.8; learning was updated.\n")
    other = program("task", "grade", "t", "0.1", "--json")
    assert other.code == 3
    assert other.json["details"]["code"] == "CONFLICT"
    assert program("task", "grade", "t", "1.5").code == 2
    assert program("task", "grade", "t", "nan").code in (2, 3)


def test_a_task_for_an_agent_whose_program_was_never_started_says_so_at_once(shared: Served) -> None:
    program, _ = shared
    program("agent", "register", "ann", "--capability", "echo")
    words = ["--type", "echo", "--capability", "echo", "--input", "x"]
    done = program("task", "submit", *words, "--id", "t")
    assert done.out == "Task t is queued.\n"
    assert "no worker online: the task waits until the program of its agent connects" in done.err
    assert "offline" in program("agent", "list", "--capability", "echo").out
    assert "no worker online" in program("task", "show", "t").out
    watch = program.start("task", "watch", "t")
    assert watch.stderr is not None
    assert "no worker online: the task waits until" in watch.stderr.readline()
    program("task", "cancel", "t")
    assert watch.wait(200) == 1


def test_a_task_that_no_worker_can_take_now_says_so(serve: Callable[..., Any]) -> None:
    service = serve(SERVICE_WORKER_OFFLINE_SECONDS="1")
    program = Program(service.data_dir, {"SERVICE_CLIENT_KEY": service.key, **service.state})
    program("agent", "register", "ann", "--capability", "echo")
    words = ["--type", "echo", "--capability", "echo", "--input", "x", "--queue-timeout", "3600"]
    done = program("task", "submit", *words, "--id", "t")
    assert done.out == "Task t is queued.\n"
    assert "no worker online" in done.err
    shown = program("task", "show", "t", "--json").json
    assert (shown["notice"], shown["queue_timeout_seconds"]) == ("no worker online", 3600)
    assert "no worker online" in program("task", "show", "t").out
    assert "no worker online" in program("task", "show", "t", "--activity").out
    assert "offline" in program("agent", "list", "--capability", "echo").out
    stop(service)
    alone = Program(service.data_dir, service.state)
    assert "no worker online" in alone("task", "show", "t").out, "a stopped service has no workers"
