"""`stentor policy ...`: a file is checked, and asked examples."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli.program import Program
from tests.domains.governance.test_policy_in_use import POLICY_FILE
from tests.requirements import requirement

REQUESTS: list[dict[str, Any]] = [
    {
        "name": "unscored",
        "action": "route",
        "principal": {"id": "ann"},
        "resource": {"id": "sum"},
        "context": {"required_capabilities": [], "preferred": False},
        "expect": "deny",
    },
    {
        "name": "scored",
        "action": "route",
        "principal": {"id": "ann", "capabilities": ["sum"], "trust_tier": "auto"},
        "resource": {"id": "sum"},
        "context": {"required_capabilities": ["sum"], "preferred": False, "trust": 0.5},
        "expect": "allow",
    },
    {
        "action": "use_tool",
        "principal": {},
        "resource": {"id": "files"},
        "context": {"operation": "read", "path": "notes/a"},
    },
]


@requirement("policy.command-line")
def test_the_command_line_checks_a_file_and_asks_it_examples(program: Program, tmp_path: Path) -> None:
    file, requests = tmp_path / "rules.cedar", tmp_path / "requests.json"
    file.write_text(POLICY_FILE)
    requests.write_text(json.dumps(REQUESTS))
    checked = program("policy", "check", "--policy", str(file), "--json")
    assert (checked.code, checked.json["policies"]) == (0, 4)
    assert checked.json["actions"] == ["propose_update", "route", "use_tool"]
    asked = program("policy", "test", str(requests), "--policy", str(file), "--json")
    assert asked.code == 0
    assert [r["decision"] for r in asked.json["results"]] == ["deny", "allow", "allow"]
    assert asked.json["results"][0]["reasons"] == ["no unscored agents"]
    requests.write_text(json.dumps([{**REQUESTS[0], "expect": "allow"}]))
    wrong = program("policy", "test", str(requests), "--policy", str(file))
    assert (wrong.code, "unscored" in wrong.out) == (1, True)


@requirement("policy.command-line")
@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "not valid JSON"),
        ("{}", "list"),
        ('[{"action": "fly"}]', "must be one of"),
        ('[{"action": []}]', "route"),
        ('[{"action": "route", "expect": "maybe"}]', "allow or deny"),
        ('[{"action": "route", "principal": 5}]', "principal"),
        ('[{"action": "route", "context": 5}]', "context"),
    ],
)
def test_examples_that_are_none_are_refused(program: Program, tmp_path: Path, content: str, says: str) -> None:
    file, requests = tmp_path / "rules.cedar", tmp_path / "requests.json"
    file.write_text(POLICY_FILE)
    requests.write_text(content)
    done = program("policy", "test", str(requests), "--policy", str(file))
    assert (done.code, says in done.err) == (2, True), done.err
    file.write_text("forbid (")
    assert program("policy", "check", "--policy", str(file)).code == 3
    assert program("policy", "check").code == 2


@requirement("policy.command-line")
def test_the_examples_of_the_page_hold(program: Program, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "policy.md").read_text()
    blocks = dict(re.findall(r"```(cedar|json)\n(.*?)```", page, re.DOTALL))
    file, requests = tmp_path / "rules.cedar", tmp_path / "requests.json"
    file.write_text(blocks["cedar"])
    requests.write_text(blocks["json"])
    asked = program("policy", "test", str(requests), "--policy", str(file), "--json")
    assert (asked.code, asked.json["results"][0]["reasons"]) == (0, ["deployments need trust"])
    checked = program("policy", "check", "--policy", str(file), "--json").json
    assert checked["actions"] == ["propose_update", "route", "use_tool"]
