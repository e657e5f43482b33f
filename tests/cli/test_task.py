"""`stentor task ...` beside a running service."""

from __future__ import annotations

import asyncio
import json
import re
from itertools import islice, takewhile
from typing import Any, cast

import pytest
import typer

from stentor.cli.client.responses import Response
from stentor.cli.commands.tasks import task
from stentor.cli.input_files import read_input
from stentor.cli.tasks import view
from tests.cli.program import SUMMARIZE, TEXT, Done, Program
from tests.requirements import requirement

Served = tuple[Program, Any]


def _submit_echo(program: Program, *more: str) -> Done:
    return program("task", "submit", "--type", "echo", "--capability", "echo", *more, "--json")


@requirement("execution.builtin-summarizer")
def test_submit_and_wait_prints_the_result_and_nothing_else(shared: Served) -> None:
    program, _ = shared
    done = program("task", "submit", *SUMMARIZE, "--input", TEXT, "--wait")
    assert done.code == 0
    assert json.loads(done.out)["summary"]
    assert "Completed." in done.err
    assert re.search("^Task .* is queued.$", done.err, re.MULTILINE), "its id, for other commands"
    as_json = program("task", "submit", *SUMMARIZE, "--input", TEXT, "--wait", "--json").json
    assert as_json["status"] == "completed"
    assert as_json["result"]["summary"] in TEXT, "the sentences of the text itself"


def test_a_capability_that_no_agent_has_is_refused_with_the_known_ones_and_the_command(served: Served) -> None:
    program, _ = served
    done = program("task", "submit", "--type", "a", "--capability", "fly", "--input", "a", "--wait")
    assert done.code == 3
    assert "None has 'fly'. Known capabilities: answer, search, summarize." in done.err
    assert done.err.endswith("To register an agent: stentor agent register --help\n")


def test_waiting_for_a_task_that_fails_ends_with_1(shared: Served) -> None:
    program, _ = shared
    done = program("task", "submit", *SUMMARIZE, "--input-json", "[1]", "--wait")
    assert done.code == 1
    assert done.out == ""
    assert " failed. " in done.err
    failed = program("task", "submit", *SUMMARIZE, "--input-json", "[1]", "--wait", "--json")
    assert failed.code == 1
    assert failed.json["status"] == "failed"
    retried = program("task", "retry", failed.json["task_id"], "--json")
    assert retried.code == 0
    assert retried.json["task_id"] == failed.json["task_id"]
    again = program("task", "rerun", failed.json["task_id"][-8:], "--agent", "summarizer", "--json")
    assert again.json["task_id"] != failed.json["task_id"]
    other = program("task", "rerun", failed.json["task_id"], "--input", "Agents do tasks. It works.", "--json")
    assert program("task", "show", other.json["task_id"], "--json").json["title"] == "Agents do tasks. It works."
    assert program("task", "rerun", failed.json["task_id"], "--input", "a", "--from-step", "b").code == 3


def test_the_input_comes_as_text_as_json_from_a_file_or_from_standard_input(shared: Served) -> None:
    program, service = shared
    program("agent", "register", "ann", "--capability", "echo", "--key-name", "admin")
    path = program.data_dir.parent / "input.txt"
    path.write_text("from a file\n")
    _submit_echo(program, "--input", "[1]", "--id", "text")
    _submit_echo(program, "--input-json", '{"a": [1, null]}', "--id", "json")
    _submit_echo(program, "--file", str(path), "--id", "file")
    piped = program("task", "submit", "--type", "echo", "--capability", "echo", "--file", "-", "--id", "-", stdin="ü\n")
    assert piped.code == 0
    with service.client() as http:
        agent = http.get("/api/v1/registry/agents", params={"capability": "echo"}).json()["agents"][0]["agent_id"]
        claims = http.post(f"/api/v1/agents/{agent}/claims", json={"max": 10}).json()["tasks"]
    got = {claim["task_id"]: claim["input"] for claim in claims}
    assert got == {"text": "[1]", "json": {"a": [1, None]}, "file": "from a file\n", "-": "ü\n"}


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--input", "a", "--input-json", "1"),
        ("--input-json", "{"),
        ("--file", "/nonexistent/file"),
        ("--input", "a", "--priority", "critical"),
        ("--input", "a", "--limit", f"k={'9' * 5_000}"),
        ("--input", "a", "--limit", f"k=1/{'9' * 30}"),
    ],
)
def test_an_input_that_cannot_be_taken_is_wrong_usage(program: Program, options: tuple[str, ...]) -> None:
    assert program("task", "submit", "--type", "echo", *options).code == 2
    assert not program.data_dir.exists()


def test_json_that_cannot_be_read_is_called_by_its_option() -> None:
    with pytest.raises(typer.BadParameter, match=r"^--input-json: not valid JSON: .*trailing comma"):
        read_input(None, '{"text": "x",}', None)


def test_what_is_no_utf_8_is_wrong_usage(shared: Served) -> None:
    program, _ = shared
    assert program("task", "submit", "--type", "echo", "--file", "-", stdin=b"\xff").code == 2
    done = program("task", "show", "\udcff")
    assert done.code == 2
    assert "UTF-8" in done.err


def test_an_id_of_any_characters_is_one_segment_of_the_path(shared: Served) -> None:
    program, _ = shared
    program("agent", "register", "ann", "--capability", "echo")
    for task_id in ("a/b", "..", ".", "a b?c#d", "[red]x[/red]", "ü%2F%", "x" * 255):
        assert _submit_echo(program, "--input", "x", "--id", task_id).code == 0
        assert program("task", "show", task_id, "--json").json["task_id"] == task_id
        assert program("task", "cancel", task_id, "--json").json["task_id"] == task_id
    assert "[red]x[/red]" in program("task", "list").out


def test_an_id_with_a_slash_works_without_a_service_too(program: Program) -> None:
    program("agent", "register", "ann", "--capability", "echo")
    assert _submit_echo(program, "--input", "x", "--id", "a/../b").code == 0
    shown = program("task", "show", "a/../b", "--json")
    assert shown.code == 0, shown
    assert shown.json["status"] == "queued"


def test_show_with_activity_says_why_and_what_happened(shared: Served) -> None:
    program, _ = shared
    program("task", "submit", *SUMMARIZE, "--input", TEXT, "--id", "one", "--priority", "high", "--wait")
    text = program("task", "show", "one", "--activity").out
    terms = ("expected", "uncertainty", "time", "cost", "trust", "score")
    for word in (*terms, "summarizer (chosen)", "summarizer was chosen", "0.500", "└── routing_decision"):
        assert word in text
    depths = [line.index("─ ") for line in text.partition("Events")[2].splitlines() if "── " in line]
    assert depths == sorted(set(depths)), "each event stands below the one that led to it"
    trail = program("task", "show", "one", "--activity", "--json").json
    assert trail["routing"]["agent_name"] == "summarizer"
    assert [e["event_type"] for e in trail["events"]][:2] == ["prompt_received", "routing_decision"]
    assert program("task", "show", "one", "--json").json["metadata"] == {"priority": "high"}
    assert "completed" in program("task", "show", "one").out


def test_show_with_activity_has_all_events_of_a_long_task() -> None:
    class Api:
        """Answers an activity of three pages."""

        async def get(self, path: str, kind: Any, **params: Any) -> Any:
            page = int(params.get("cursor") or 1)
            trail = {"task": {}, "events": [page], "next_cursor": None if page == 3 else str(page + 1)}
            return Response(trail if path.endswith("/activity") else {"task_id": "one"}, kind)

    found = asyncio.run(task._get_whole_activity(cast("Any", Api()), "one")).document
    assert found == {"task": {"task_id": "one"}, "events": [1, 2, 3], "next_cursor": None}


def test_list_filters_by_state_agent_and_time(shared: Served) -> None:
    program, _ = shared
    agent = program("agent", "register", "ann", "--capability", "echo", "--json").json["agent_id"]
    for number in range(3):
        _submit_echo(program, "--input", "x", "--id", f"t{number}")
    program("task", "submit", *SUMMARIZE, "--input", TEXT, "--id", "done", "--wait")

    def ids(*options: str) -> list[str]:
        return [t["task_id"] for t in program("task", "list", *options, "--json").json["tasks"]]

    assert ids() == ["done", "t2", "t1", "t0"]
    assert ids("--status", "completed") == ["done"]
    assert ids("--agent", agent) == ["t2", "t1", "t0"]
    unknown = program("task", "list", "--agent", "nope")
    assert (unknown.code, "No agent has the name or id 'nope'" in unknown.err) == (3, True)
    assert ids("--created-after", "2099-01-01") == []
    assert ids("--created-after", "2020-01-01T00:00:00+02:00", "--limit", "1") == ["done"]
    shown = program("task", "list", "--limit", "2").out
    assert "2 of 4" in shown
    assert re.search(r"just now| ago", shown)  # a fast machine lists them within a second
    assert program("task", "list", "--created-after", "yesterday").code == 2


def test_a_list_shows_long_titles_in_two_lines_and_the_status_in_one(shared: Served) -> None:
    program, _ = shared
    program("agent", "register", "somebody-with-a-name", "--capability", "echo", "--tier", "human")
    words = ["task", "submit", "--type", "echo", "--capability", "echo", "--input", "x", "--id", "t"]
    program(*words, "--title", "All the words of a title that nobody would want to see in a list of tasks")
    out = Program(program.data_dir, program.environ | {"COLUMNS": "80"})("task", "list").out
    assert "pending_approval" in out
    assert "…" in out
    assert "somebody-with-a-name" in out
    (row,) = (number for number, line in enumerate(out.splitlines()) if line.startswith(" t "))
    assert len(out.splitlines()[row:]) <= 4


@requirement("tasks.search")
@pytest.mark.parametrize(("rows", "events", "text"), [(0, 1, "latest event "), (1, 1001, "latest 1,001 events ")])
def test_a_list_says_how_far_the_search_index_is_behind(
    rows: int, events: int, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    row = view.TaskRow("t", "echo", "queued", None, "2026-01-01T00:00:00.000Z")
    view.show_list(view.TaskList([row] * rows, rows, events))
    assert text in " ".join(capsys.readouterr().err.split())
    view.show_list(view.TaskList([row], 1, 1000))
    view.show_list(view.TaskList([], 0, 0))
    assert capsys.readouterr().err == ""


def test_a_refusal_tells_the_code_and_the_sentence_of_the_service(shared: Served) -> None:
    program, _ = shared
    program("task", "submit", *SUMMARIZE, "--input", TEXT, "--id", "done", "--wait")
    done = program("task", "cancel", "done")
    assert (done.code, done.out) == (3, "")
    assert done.err.startswith("error: CONFLICT: ")
    missing = program("task", "show", "nope", "--json")
    assert missing.code == 3
    assert missing.json["details"] == {"code": "NOT_FOUND", "status": 404}
    assert "No task has the name or id 'nope', or an id that begins or ends with it." in missing.json["error"]
    denied = program("task", "submit", "--type", "x", "--capability", "unheard-of", "--input", "x", "--json")
    assert denied.code == 3
    assert denied.json["details"]["code"] == "ROUTING_CAPABILITY_UNAVAILABLE"


def test_a_second_submission_with_an_id_says_how_the_first_one_stands(shared: Served) -> None:
    program, _ = shared
    submit = ("task", "submit", *SUMMARIZE, "--input", TEXT, "--id", "once")
    assert program(*submit, "--wait").code == 0
    assert program(*submit).out == "Task once was submitted before; it is completed.\n"
    assert "was submitted before; it is completed." in program(*submit, "--wait").err


def test_submit_and_wait_prints_how_to_approve_the_task(shared: Served) -> None:
    program, _ = shared
    program("agent", "register", "ann", "--capability", "echo", "--tier", "human")
    words = ("--type", "echo", "--capability", "echo", "--input", "hello", "--id", "t 1", "--wait")
    with program.start("task", "submit", *words) as waiting:
        assert waiting.stderr is not None
        commands = list(islice((line for line in waiting.stderr if "In another shell" in line), 2))
        assert commands == [f"In another shell: stentor task {verb} 't 1'\n" for verb in ("approve", "reject")]
        assert program("task", "reject", "t 1").code == 0
        assert waiting.wait(200) == 1
    assert "In another shell" not in program("task", "watch", "t 1").err, "the task waits no more"


def test_watch_prints_what_a_worker_says_as_it_comes(shared: Served) -> None:
    program, service = shared
    agent = program("agent", "register", "ann", "--capability", "echo", "--json").json["agent_id"]
    _submit_echo(program, "--input", "x", "--id", "w/1")
    watch = program.start("task", "watch", "w/1")
    assert watch.stdout is not None
    with service.client() as http:
        epoch = http.post(f"/api/v1/agents/{agent}/claims", json={}).json()["tasks"][0]["epoch"]
        tokens = {"epoch": epoch, "tokens": ["hel\u2028", "lo\x1b[2J "]}
        assert http.post("/api/v1/tasks/w%2F1/tokens", json=tokens).is_success
        seen = "hel\u2028lo\N{REPLACEMENT CHARACTER}[2J "
        assert watch.stdout.read(len(seen)) == seen, "the text comes before the end, and cannot steer the terminal"
        http.post("/api/v1/tasks/w%2F1/complete", json={"epoch": epoch, "result": "hello"})
    out, err = watch.communicate(timeout=200)
    assert watch.returncode == 0
    assert out == "\n"
    assert "Started." in err
    assert "task_started" not in err, "the names of events are for programs"
    late = program("task", "watch", "w/1")
    assert (late.code, late.out) == (0, "hello\n")
    assert program("task", "watch", "w/1", "--json").json["result"] == "hello"


def test_watching_a_task_that_is_cancelled_ends_with_1(shared: Served) -> None:
    program, _ = shared
    program("agent", "register", "ann", "--capability", "echo")
    _submit_echo(program, "--input", "x", "--id", "c")
    watch = program.start("task", "watch", "c", "--json")
    assert watch.stderr is not None
    assert "no worker online" in watch.stderr.readline()
    assert "Task of type echo received." in watch.stderr.readline()
    assert program("task", "cancel", "c").out == "Task c is cancelled.\n"
    out, _ = watch.communicate(timeout=200)
    assert watch.returncode == 1
    assert json.loads(out)["status"] == "cancelled"


@requirement("tasks.approve-queues")
def test_a_task_that_waits_for_approval_is_approved_or_rejected(shared: Served) -> None:
    program, _ = shared
    program("agent", "register", "ann", "--capability", "echo", "--tier", "human")
    for name in ("good", "bad"):
        assert "pending_approval" in _submit_echo(program, "--input", "x", "--id", name).out
    assert program("task", "approve", "good").out == "Task good is queued.\n"
    assert program("task", "reject", "bad", "--reason", "too dear").out == "Task bad is aborted.\n"
    assert "too dear" in program("task", "show", "bad").out
    again = program("task", "approve", "bad")
    assert (again.code, "CONFLICT" in again.err) == (3, True)


def test_tasks_and_agents_are_found_by_names_and_parts_of_ids(shared: Served) -> None:
    program, _ = shared
    agent = program("agent", "register", "ann", "--capability", "echo", "--json").json["agent_id"]
    tasks = [_submit_echo(program, "--input", f"Question {n}", "--json").json["task_id"] for n in range(2)]
    tail = tasks[0].rpartition("-")[2]
    assert program("task", "show", tail, "--json").json["task_id"] == tasks[0]
    assert program("task", "cancel", tasks[1][:23], "--json").json["task_id"] == tasks[1]
    assert program("agent", "show", "ann", "--json").json["agent_id"] == agent
    assert program("agent", "suspend", agent[:18], "--reason", "slow").code == 0
    assert {task["task_id"] for task in program("task", "list", "--agent", "ann", "--json").json["tasks"]} == {*tasks}
    shown = program("task", "list").out
    assert tail in shown
    assert "Question 1" in shown
    assert agent not in shown
    common = "".join(one for one, two in takewhile(lambda pair: pair[0] == pair[1], zip(*tasks, strict=True)))
    ambiguous = program("task", "show", common)
    assert ambiguous.code == 2
    assert all(task in ambiguous.err for task in tasks)
    for words in (
        ["task", "show", ""],
        ["agent", "show", ""],
        ["task", "submit", "--type", "x", "--input", "y", "--after", ""],
    ):
        empty = program(*words)
        assert (empty.code, "An id or a name is empty." in empty.err) == (2, True), words
    missing = program("task", "show", "no-such-task")
    assert missing.code == 3
    assert "NOT_FOUND" in missing.err
