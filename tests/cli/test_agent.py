"""`stentor agent ...` beside a running service."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from stentor.cli import agents, output
from tests.cli.program import Program

Served = tuple[Program, Any]


def test_register_takes_every_field_of_an_agent(shared: Served) -> None:
    program, _ = shared
    scores = ["--alignment", "0.9", "--accuracy", "0.8", "--efficiency", "0.7"]
    words = ["--capability", "a", "--capability", "b", *scores, "--tier", "auto", "--key-name", "bob"]
    made = program("agent", "register", "ann", *words, "--json").json
    assert made["status"] == "active"
    shown = program("agent", "show", made["agent_id"], "--json").json
    expected: dict[str, Any] = {"name": "ann", "capabilities": ["a", "b"], "trust_tier": "auto", "key_name": "bob"}
    expected |= {"alignment_score": 0.9, "accuracy_score": 0.8, "efficiency_score": 0.7, "trust_score": None}
    assert {name: shown[name] for name in expected} == expected
    assert shown["runtime"]["kind"] == "worker"
    text = program("agent", "show", made["agent_id"]).out
    assert "unscored" in text
    assert "0.9" in text
    assert "a, b" in text
    assert not {"{", "null", "-  "} & set(text.split()), "no JSON, and no field that says nothing"
    assert "archived_at" not in text


def test_several_capabilities_may_have_commas_between_them(shared: Served) -> None:
    program, _ = shared
    words = ("--capability", "p, q", "--capability", "r")
    made = program("agent", "register", "pqr", *words, "--json").json
    assert program("agent", "show", made["agent_id"], "--json").json["capabilities"] == ["p", "q", "r"]
    task = program("task", "submit", "--type", "a", "--input", "x", "--json", *words).json["task_id"]
    assert program("task", "show", task, "--json").json["required_capabilities"] == ["p", "q", "r"]


def test_an_id_is_whole_in_a_narrow_terminal(shared: Served) -> None:
    program, _ = shared
    words = ("--capability", "summarize-short-texts,summarize-long-texts", "--json")
    made = program("agent", "register", "a writer with a long name", *words).json
    program.environ["COLUMNS"] = "80"
    assert made["agent_id"][-12:] in program("agent", "list").out


def test_an_agent_with_a_typo_in_its_name_is_suggested(shared: Served) -> None:
    program, _ = shared
    agent = program("agent", "register", "ann keyworder", "--capability", "a", "--json").json["agent_id"]
    done = program("agent", "show", "ann keywrder")
    assert (done.code, "Did you mean 'ann keyworder'?" in done.err) == (3, True)
    assert "To list them: stentor agent list" in program("agent", "show", "qqqqqqqqqqqq").err
    words = ("task", "submit", "--type", "a", "--input", "x", "--id", "t", "--agent")
    assert "Did you mean 'ann keyworder'?" in program(*words, "ann keyworde").err
    assert program(*words, "ann keyworder").code == 0
    assert program("task", "show", "t", "--json").json["agent_preference"] == agent


def test_register_describes_the_runtime(shared: Served) -> None:
    program, _ = shared
    words = ["--runtime", "builtin", "--builtin-name", "summarizer"]
    made = program("agent", "register", "second", *words, "--json").json
    assert program("agent", "show", made["agent_id"], "--json").json["runtime"]["name"] == "summarizer"
    words = ["--runtime", "http", "--endpoint", "https://example.com/tasks", "--repeat", "hold"]
    made = program("agent", "register", "third", *words, "--json").json
    assert program("agent", "show", made["agent_id"], "--json").json["runtime"]["options"] == {"repeat": "hold"}
    incomplete = program("agent", "register", "third", "--runtime", "http")
    assert incomplete.code == 3
    assert "an http runtime needs an endpoint" in incomplete.err
    inside = program("agent", "register", "third", "--runtime", "http", "--endpoint", "http://127.0.0.1:1/x")
    assert inside.code == 3
    assert program("agent", "register", "fourth", "--alignment", "1.5").code == 2
    assert program("agent", "register", "fourth", "--runtime", "nothing").code == 2


def test_register_reads_the_allow_list_of_a_file(shared: Served, tmp_path: Path) -> None:
    program, _ = shared
    file = tmp_path / "allowed.json"
    tools = [{"name": "http_request", "operations": ["get"]}]
    file.write_text(json.dumps({"tools": tools, "network": {"allowlist": ["api.example.com"], "ports": [443]}}))
    words = ["--runtime", "llm", "--prompt", "Look things up.", "--allow-list", str(file)]
    made = program("agent", "register", "scout", *words, "--json").json
    allowed = program("agent", "show", made["agent_id"], "--json").json["sandbox_whitelist"]
    assert (allowed["tools"][0]["name"], allowed["network"]["allowlist"]) == ("http_request", ["api.example.com"])
    file.write_text("[]")
    for wrong in (file, tmp_path / "none.json"):
        refused = program("agent", "register", "scout", "--allow-list", str(wrong))
        assert (refused.code, wrong.name in refused.err) == (2, True), refused.err


def test_an_agent_is_shown_as_online_with_when_its_worker_was_seen(shared: Served) -> None:
    program, service = shared
    agent = program("agent", "register", "ann", "--capability", "echo", "--json").json["agent_id"]
    assert program("agent", "show", agent, "--json").json["last_seen"] is None
    with service.client() as http:
        assert http.post(f"/api/v1/agents/{agent}/claims", json={}).is_success
    assert "online, seen " in program("agent", "show", agent).out
    listed = program("agent", "list", "--capability", "echo").out
    assert "presence  seen" in listed
    assert re.search(r"online    (just now|\d+ (s|min) ago)", listed)


def test_the_list_fits_a_narrow_terminal_and_cuts_no_capability(served: Served) -> None:
    program, service = served
    program("agent", "register", "customer-support", "--capability", "summarize", "--capability", "classification")
    agent = program("agent", "register", "ann", "--capability", "translation", "--json").json["agent_id"]
    with service.client() as http:
        assert http.post(f"/api/v1/agents/{agent}/claims", json={}).is_success
    out = Program(program.data_dir, program.environ | {"COLUMNS": "80"})("agent", "list").out
    assert all(len(line) <= 80 for line in out.splitlines())
    assert {"translation", "classification", "unscored", agent[-12:]} <= set(re.findall(r"[\w-]+", out))


def test_a_long_name_leaves_the_list_a_table_in_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = [
        agents.ListedAgent(
            trust_score=None, online=True, agent_id=name, name=name, capabilities=["summarize"], status="active"
        )
        for name in ("9b965a6fea3b", "cfeb92dc1e7e")
    ]
    listed[0] = msgspec.structs.replace(listed[0], name="customer-support-for-the-region-of-southern-europe")
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    monkeypatch.setattr(output, "_console", lambda *, is_error: console)
    monkeypatch.setattr(agents, "console", console)
    agents.show_agents(agents.AgentList(listed, 2))
    assert isinstance(console.file, io.StringIO)
    lines = console.file.getvalue().splitlines()
    assert any(line.lstrip().startswith("customer-support-fo… ") and "9b965a6fea3b" in line for line in lines)


def test_list_shows_trust_as_unscored_until_something_scores_it(served: Served) -> None:
    program, _ = served
    program("agent", "register", "[bold]ann", "--capability", "echo")
    rows = program("agent", "list", "--capability", "echo").out.splitlines()
    assert rows[1].split() == ["name", "capabilities", "trust", "status", "presence", "seen", "id"]
    ann = ["[bold]ann", "echo", "unscored", "active", "offline", "-"]
    assert any(row.split()[:-1] == ann for row in rows if row.strip())
    page = program("agent", "list", "--json").json
    assert [a["name"] for a in page["agents"]] == ["summarizer", "librarian", "[bold]ann"]
    assert page["agents"][2]["trust_score"] is None


def test_edit_makes_an_agent_need_approval_and_takes_that_away_with_a_reason(shared: Served) -> None:
    program, _ = shared
    program("agent", "register", "ann", "--capability", "echo")
    words = ["--tier", "human", "--key-name", "bob", "--accuracy", "0.8", "--reason", "It publishes now."]
    edited = program("agent", "edit", "ann", *words)
    assert edited.out == "Agent ann: accuracy score is 0.8, key name is bob, trust tier is human.\n"
    assert program("task", "submit", "--input", "hello", "--type", "echo", "--capability", "echo", "--json").json[
        "status"
    ] == ("pending_approval")
    refused = program("agent", "edit", "ann", "--tier", "auto")
    assert refused.code == 3
    assert "reason: required to change the trust tier from human to auto" in refused.err
    assert program("agent", "edit", "ann").code == 2
    assert program("agent", "edit", "ann", "--reason", "none").code == 2
    assert program("agent", "edit", "ann", "--tier", "auto", "--key-name", "", "--reason", "It is safe.").code == 0
    shown = program("agent", "show", "ann", "--json").json
    assert (shown["trust_tier"], shown["key_name"], shown["accuracy_score"]) == ("auto", None, 0.8)


def test_suspend_and_activate_move_an_agent_and_say_so(shared: Served) -> None:
    program, _ = shared
    agent = program("agent", "register", "ann", "--json").json["agent_id"]
    assert program("agent", "suspend", agent).code == 2, "a reason is wanted"
    assert program("agent", "suspend", agent, "--reason", "too slow").out == f"Agent {agent} is suspended.\n"
    assert program("agent", "list", "--status", "suspended", "--json").json["total"] == 1
    again = program("agent", "suspend", agent, "--reason", "x", "--json")
    assert (again.code, again.json["details"]["code"]) == (3, "CONFLICT")
    assert program("agent", "activate", agent, "--json").json["status"] == "active"
    assert program("agent", "show", "a/../b").code == 3


def test_agents_of_every_runtime_are_registered(shared: Served) -> None:
    program, _ = shared
    llm = ("--runtime", "llm", "--model", "ollama/sea", "--prompt", "Answer in one word.")
    registered = program("agent", "register", "oracle", "--capability", "ask", *llm, "--json")
    assert registered.code == 0, registered.err
    runtime = program("agent", "show", "oracle", "--json").json["runtime"]
    assert (runtime["kind"], runtime["options"]) == (
        "llm",
        {"model": "ollama/sea", "system_prompt": "Answer in one word."},
    )
    unclosed = program("agent", "register", "shell", "--runtime", "command", "--command", "echo 'x")
    assert unclosed.code == 2
    assert "--command" in unclosed.err


def test_a_second_agent_of_the_same_name_is_registered_with_a_warning(shared: Served) -> None:
    program, _ = shared
    first = program("agent", "register", "ann", "--json").json
    assert first["notice"] is None
    second = program("agent", "register", "ann")
    assert second.code == 0
    assert f"another agent has the name 'ann': {first['agent_id']}" in second.err
    assert "another agent" not in program("agent", "register", "bob").err


@pytest.mark.parametrize(
    "name",
    ["assessor", "Assessor ", "\u0410ssessor", "\uff21ssessor", "Assess0r", "As\u0455ess\u03bfr", "Assess\ufe0for"],
    ids=["case", "space", "Cyrillic", "full width", "digit", "two scripts", "invisible"],
)
def test_an_agent_whose_name_looks_like_another_one_is_registered_with_a_warning(shared: Served, name: str) -> None:
    program, _ = shared
    agents = [program("agent", "register", one, "--json").json for one in ("Assessor", name)]
    assert agents[1]["name"] == name
    assert f"looks like that of another agent, 'Assessor': {agents[0]['agent_id']}" in agents[1]["notice"]
    for other in ("Assessor 2", "Assessors", "\u00c4ssessor", "\u0421\u0443\u043c\u043c\u0430"):
        agents.append(program("agent", "register", other, "--json").json)
        assert agents[-1]["notice"] is None
    for agent in agents:
        program("agent", "archive", agent["agent_id"])
