"""`stentor task steps`, `answer`, `signal`, `resolve` and `decisions` beside a running service."""

from __future__ import annotations

import re
import signal
import sqlite3
from contextlib import closing
from typing import Any

import httpx
import pytest

from stentor.domains.steps.model import MAX_PAGE
from tests.cli.program import Done, Program
from tests.requirements import requirement
from tests.service import Service

Served = tuple[Program, Any]


class Work:
    """A task of a worker that a test plays."""

    def __init__(self, api: httpx.Client) -> None:
        self.api = api
        agent = self.post("/registry/agents", name="ann", capabilities=["trip"])["agent_id"]
        body = {"type": "trip", "input": "Lisbon", "required_capabilities": ["trip"]}
        self.task_id = self.post("/tasks", **body)["task_id"]
        self.epoch = self.post(f"/agents/{agent}/claims")["tasks"][0]["epoch"]

    def post(self, path: str, **body: Any) -> Any:
        answer = self.api.post(f"/api/v1{path}", json=body)
        assert answer.is_success, answer.text
        return answer.json()

    def tell(self, verb: str, **body: Any) -> Any:
        return self.post(f"/tasks/{self.task_id}/{verb}", epoch=self.epoch, **body)


@pytest.fixture
def work(shared: Served) -> Any:
    service: Service = shared[1]
    with service.client() as api:
        yield Work(api)


@requirement("steps.commands")
def test_the_steps_are_a_tree_and_a_question_is_answered(shared: Served, work: Work) -> None:
    program, _ = shared
    work.tell("steps", key="plan/fetch", name="fetch", value="x" * 5_000)
    work.tell("steps", key="plan", name="plan", value={"hotel": "Sol"}, duration_ms=1_500)
    work.tell("waits", key="question", name="question", kind="question", question="Book Sol?", options=["yes", "no"])
    work.tell("suspend", keys=["question"])
    tree = program("task", "steps", work.task_id).out
    assert tree.index("plan") < tree.index("fetch") < tree.index("question")
    assert "5,002 bytes" in tree
    assert "waiting for Book Sol?" in tree
    assert re.search(r'plan  step completed \{"hotel":"Sol"\}  \d\d:\d\d:\d\d, took 1\.5 s, attempt 1\n', tree)
    assert "attempt 1  key plan/fetch\n" in tree, "what --step and --from-step take"
    shown = program("task", "show", work.task_id).out
    assert re.search(r"agent +ann \([0-9a-f-]{36}\)", shown)
    assert re.search(r"waits for +an answer to 'Book Sol\?' \(yes, no\)", shown)
    assert "waits for" in program("task", "show", work.task_id, "--activity").out
    assert program("task", "steps", work.task_id, "--step", "plan/fetch").out == "x" * 5_000 + "\n"
    with program.start("task", "watch", work.task_id) as watch:
        assert watch.stderr is not None
        command = next(line for line in watch.stderr if "In another shell" in line)
        assert command == f"In another shell: stentor task answer {work.task_id} ANSWER --step question\n"
        watch.send_signal(signal.SIGINT)
    listed = program("task", "decisions")
    assert "  Book Sol?\n" in listed.out
    command = f"  stentor task answer {work.task_id.rpartition('-')[2]}"
    assert f"{command} yes\n{command} no\n" in listed.out
    assert "Lisbon" in listed.out
    wrong = program("task", "answer", work.task_id, "perhaps")
    assert (wrong.code, "must be one of yes, no" in wrong.err) == (3, True)
    empty = program("task", "answer", work.task_id, " ")
    assert (empty.code, "the answer is empty" in empty.err) == (2, True)
    assert program("task", "answer", work.task_id, "yes").out == "Answered 'question': yes. The task resumes.\n"
    nothing = program("task", "answer", work.task_id, "yes")
    assert (nothing.code, nothing.err) == (3, "error: The task asks nothing now; its status is queued.\n")
    assert program("task", "decisions").out == "No task waits for a person.\n"


@requirement("steps.commands")
@pytest.mark.only("sqlite", reason="it writes rows into the file")
def test_a_question_after_a_thousand_steps_is_found(shared: Served, work: Work) -> None:
    program, _ = shared
    work.tell("steps", key="day", name="day", value=1)
    with closing(sqlite3.connect(program.data_dir / "stentor.db")) as connection, connection:
        rows = connection.execute("select * from task_steps where task_id = ?", (work.task_id,))
        names = [column[0] for column in rows.description]
        day = dict(zip(names, rows.fetchone(), strict=True))
        days = [day | {"key": f"day-{n}", "event_id": f"{day['event_id']}-{n}"} for n in range(MAX_PAGE)]
        values = ", ".join(f":{name}" for name in names)
        connection.executemany(f"insert into task_steps ({', '.join(names)}) values ({values})", days)
    work.tell("waits", key="question", name="question", kind="question", question="Book Sol?")
    work.tell("suspend", keys=["question"])
    shown = program("task", "steps", work.task_id)
    names_and_keys = 2 * (MAX_PAGE - 2) + 1
    assert (shown.out.count("day"), "waiting for Book Sol?" in shown.out) == (names_and_keys, True)
    assert shown.err == "2 steps between the first 500 and the last are left out; --json has all.\n"
    assert len(program("task", "steps", work.task_id, "--json").json["steps"]) == MAX_PAGE + 2
    with program.start("task", "watch", work.task_id) as watch:
        assert watch.stderr is not None
        command = next(line for line in watch.stderr if line.startswith(("In another shell", "task_completed")))
        assert command == f"In another shell: stentor task answer {work.task_id} ANSWER --step question\n"
        watch.send_signal(signal.SIGINT)
    assert program("task", "answer", work.task_id, "yes").out == "Answered 'question': yes. The task resumes.\n"


@requirement("steps.commands")
def test_all_questions_are_listed(shared: Served, work: Work) -> None:
    program, _ = shared
    keys = [f"question {n}" for n in range(102)]
    for key in keys:
        work.tell("waits", key=key, name=key, kind="question", question=f"Is it {key}?")
    work.tell("suspend", keys=keys)
    assert program("task", "decisions").out.count("Is it question") == len(keys)
    assert [step["key"] for step in program("task", "decisions", "--json").json["steps"]] == keys
    work.post(f"/tasks/{work.task_id}/cancel")


@requirement("steps.commands")
def test_a_task_that_waits_for_an_approval_is_a_decision(shared: Served) -> None:
    program, _ = shared
    assert program("agent", "register", "publisher", "--capability", "publish", "--tier", "human").code == 0
    done = program("task", "submit", "--type", "p", "--capability", "publish", "--input", "a page", "--id", "page-1")
    assert (done.out, done.err) == (
        "Task page-1 is pending_approval.\n",
        "It waits for an approval: stentor task approve page-1\n",
    )
    listed = program("task", "decisions").out
    assert "Run this task?" in listed
    assert "  stentor task approve page-1\n" in listed
    assert [task["task_id"] for task in program("task", "decisions", "--json").json["approvals"]] == ["page-1"]
    assert program("task", "reject", "page-1").code == 0
    assert program("task", "decisions").out == "No task waits for a person.\n"


@requirement("steps.commands")
def test_a_signal_is_sent_and_an_effect_resolved(shared: Served, work: Work) -> None:
    program, _ = shared
    sent = program("task", "signal", work.task_id, "paid", "--value", '{"eur": 5}')
    assert "the signal is kept until it does" in sent.out
    bad = program("task", "signal", work.task_id, "paid", "--value", "eur")
    assert (bad.code, "Put a text in double quotes" in bad.err.replace("\n", " ")) == (2, True)
    work.tell("effects", key="pay", name="pay")
    work.tell("fail", error={"message": "no"})
    asked = program("task", "decisions").out
    assert "Did the effect 'pay' happen? The agent ann began it at" in " ".join(asked.split())
    assert "--step pay --happened\n" in asked
    assert "--not-happened: It did not happen: it is sent again, with the same key" in asked
    resolved: Done = program("task", "resolve", work.task_id, "--step", "pay", "--happened", "--value", "5")
    assert resolved.out == "Recorded that 'pay' happened.\n"
    assert program("task", "steps", work.task_id, "--step", "pay", "--json").json["value"] == 5


@requirement("tasks.start-at", "tasks.after")
def test_a_task_is_submitted_for_later(shared: Served, work: Work) -> None:
    program, _ = shared
    submit = ("task", "submit", "--type", "trip", "--input", "Porto", "--capability", "trip")
    later = program(*submit, "--start-at", "+2h", "--after", work.task_id[-8:])
    assert later.out.endswith("is waiting.\n")
    steps = program("task", "steps", later.out.split()[1]).out
    assert "after Lisbon" in steps
    assert program(*submit, "--start-at", "2026-01-01T00:00").out.endswith("is queued.\n")  # that time is over
    for wrong in (("--start-at", "+2x"), ("--start-at", "+999999999d"), ("--after", "nothing")):
        done = program(*submit, *wrong)
        assert (done.code in (2, 3), done.out) == (True, "")
