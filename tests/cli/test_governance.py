"""`stentor governance ...` beside a running service."""

from __future__ import annotations

import json
import uuid
from pathlib import Path
from typing import Any

from tests.cli.program import Program
from tests.domains.governance.conftest import proposal
from tests.requirements import requirement

Served = tuple[Program, Any]
SECOND = ("--key", "second-key-7c1e")


def proposed(program: Program, tmp_path: Path, agent: str, **changes: Any) -> dict[str, Any]:
    file = tmp_path / f"{uuid.uuid4()}.json"
    file.write_text(json.dumps(proposal(agent, changes)))
    return dict(program("governance", "propose", str(file), "--json").json)


def registered(program: Program) -> str:
    words = ["--capability", "echo", "--capability", "sum"]
    return str(program("agent", "register", "ann", *words, "--json").json["agent_id"])


@requirement("governance.command-line")
def test_an_update_is_proposed_shown_with_its_diff_and_approved(served: Served, tmp_path: Path) -> None:
    program, _ = served
    agent = registered(program)
    update = proposed(program, tmp_path, agent, agent_patch={"capabilities": ["echo"]})["update_id"]
    listed = program("governance", "list", "--status", "submitted", "--tier", "human", "--agent", agent).out
    assert (update[-12:] in listed, " ann " in listed) == (True, True)
    shown = program("governance", "show", update[-12:]).out
    assert "the agent has no trust score" in shown
    assert '- "sum"' in shown
    assert '"echo"' not in shown, "only what differs"
    vain = program("governance", "approve", update, "--rationale", "Mine.", stdin="y\n")
    assert (vain.code, "Approve this update?" in vain.out + vain.err, '- "sum"' in vain.out) == (3, False, True)
    assert "Neither the proposer of an update" in vain.err
    assert "Ask another person with the permission approve" in vain.err
    own = program("governance", "approve", update, "--yes", "--rationale", "Mine.")
    assert (own.code, "GOVERNANCE_SELF_APPROVAL" in own.err) == (3, True)
    asked = program("governance", "approve", update, *SECOND, "--rationale", "Fine.", stdin="n\n")
    assert (asked.code, '- "sum"' in asked.out) == (1, True)
    done = program("governance", "approve", update, *SECOND, "--rationale", "Fine.", stdin="y\n")
    assert (done.code, "is approved" in done.out) == (0, True)
    assert program("governance", "approve", update, *SECOND, "--yes", "--rationale", "Again.").code == 3


@requirement("governance.command-line")
def test_a_null_that_is_removed_is_shown(shared: Served, tmp_path: Path) -> None:
    program, _ = shared
    file = tmp_path / "agent.json"
    runtime = {"kind": "worker", "options": {"strict": None}}
    file.write_text(json.dumps({"name": "nil", "capabilities": ["echo"], "runtime": runtime}))
    agent = program("call", "agents.register", "--body", f"@{file}").json["agent_id"]
    patch = {"runtime": {"options": {"strict": None}}}
    update = proposed(program, tmp_path, agent, agent_patch=patch)["update_id"]
    shown = program("governance", "show", update).out
    assert "runtime.options.strict" in shown
    assert "null is added or removed" in " ".join(shown.split())


@requirement("governance.command-line")
def test_a_long_name_of_an_agent_hides_no_column_of_a_list(shared: Served, tmp_path: Path) -> None:
    program, _ = shared
    agent = program("agent", "register", "long-name-" * 8, "--capability", "echo", "--json").json["agent_id"]
    update = proposed(program, tmp_path, agent, agent_patch={"capabilities": ["sum"]})["update_id"]
    program.environ["COLUMNS"] = "80"
    listed = program("governance", "list", "--agent", agent).out
    assert all(text in listed for text in (update[-12:], "long-name-", "submitted", "proposed"))


@requirement("governance.command-line")
def test_an_update_is_rejected_and_an_agent_rolled_back(shared: Served, tmp_path: Path) -> None:
    program, _ = shared
    agent = registered(program)
    update = proposed(program, tmp_path, agent)["update_id"]
    assert "is rejected" in program("governance", "reject", update, "--reason", "No.").out
    taken = program("governance", "checkpoints", "--agent", agent, "--take", "--json").json["checkpoints"][0]
    assert taken["checkpoint_id"][-12:] in program("governance", "checkpoints").out
    back = program("governance", "rollback", taken["checkpoint_id"], "--reason", "It got worse.", "--json")
    assert (back.code, back.json["status"], back.json["verified"]) == (0, "completed", True)
    said = program("governance", "rollback", taken["checkpoint_id"][-12:], "--reason", "Again.").out
    assert "completed and verified" in said


def test_wrong_words_are_said_to_be_wrong(shared: Served, tmp_path: Path) -> None:
    program, _ = shared
    assert program("governance", "propose", str(tmp_path / "none.json")).code == 2
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    assert program("governance", "propose", str(broken)).code == 2
    assert program("governance", "propose", "-", stdin="{}").code == 3
    assert program("governance", "checkpoints", "--take").code == 2
    assert program("governance", "show", "none").code == 3
    assert "checkpoint_id: must be a UUID" in program("governance", "rollback", "none", "--reason", "x").err
    assert program("governance", "list", "--tier", "9").code == 2


@requirement("governance.command-line")
def test_a_file_is_proposed_for_the_agent_that_the_option_names(served: Served, tmp_path: Path) -> None:
    program, _ = served
    program("agent", "register", "olga", "--capability", "echo")
    body = proposal("", {"agent_patch": {"capabilities": ["echo", "sum"]}})
    del body["agent_id"]
    done = program("governance", "propose", "-", "--agent", "olga", "--json", stdin=json.dumps(body))
    shown = program("governance", "show", done.json["update_id"]).out
    assert ("olga" in shown, "widens_access" in shown, "--override-risk" in shown) == (True, True, True)
    refused = program("governance", "approve", done.json["update_id"], *SECOND, "--yes", "--rationale", "Fine.")
    assert (refused.code, "--override-risk" in refused.err) == (3, True)
    assert (
        "No agent has the name or id 'pia'"
        in program("governance", "propose", "-", "--agent", "pia", stdin=json.dumps(body)).err
    )


@requirement("governance.command-line")
def test_an_agent_is_named_and_a_part_of_an_id_is_enough(shared: Served, tmp_path: Path) -> None:
    program, _ = shared
    agent = str(program("agent", "register", "nora", "--capability", "echo", "--json").json["agent_id"])
    update = proposed(program, tmp_path, "nora")["update_id"]
    listed = program("governance", "list", "--agent", "nora", "--json").json["updates"]
    assert [(row["update_id"], row["agent_id"]) for row in listed] == [(update, agent)]
    assert "is rejected" in program("governance", "reject", update[-12:], "--reason", "No.").out
    taken = program("governance", "checkpoints", "--agent", "nora", "--take", "--json").json["checkpoints"]
    assert [row["agent_id"] for row in taken] == [agent]
    for last in "12":
        file = tmp_path / f"{last}.json"
        file.write_text(json.dumps(proposal(agent, {}) | {"update_id": f"5eed0000-0000-4000-8000-00000000000{last}"}))
        assert program("governance", "propose", str(file)).code == 0
    unclear = program("governance", "show", "5eed")
    assert (unclear.code, "'5eed' is not unique" in unclear.err) == (2, True)
    unknown = program("governance", "checkpoints", "--agent", "nobody")
    assert (unknown.code, "No agent has the name or id 'nobody'" in unknown.err) == (3, True)
