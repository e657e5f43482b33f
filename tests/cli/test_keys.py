"""`stentor keys`: API keys from the command line, and the key files that several instances have in common."""

from __future__ import annotations

import re
import stat
from typing import Any

import pytest

from tests.cli.program import Program
from tests.requirements import requirement

NAMES = ["provenance.key", "provenance.pub", "providers.key", "receipts.key"]


@requirement("scale.shared-keys")
def test_keys_are_made_once_and_then_left_alone(program: Program) -> None:
    made = program("keys", "make", "--json").json
    assert (made["made"], made["kept"]) == (NAMES, [])
    folder = program.data_dir / "keys"
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert modes == {name: 0o644 if name.endswith(".pub") else 0o600 for name in NAMES}
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    again = program("keys", "make", "--json").json
    assert (again["made"], again["kept"]) == ([], NAMES)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert program("keys", "make").out.splitlines() == [str(folder / name) for name in NAMES]


@requirement("scale.shared-keys")
@pytest.mark.parametrize("name", NAMES)
def test_a_key_that_cannot_be_used_is_named_and_not_replaced(program: Program, name: str) -> None:
    assert program("keys", "make").code == 0
    path = program.data_dir / "keys" / name
    path.write_text("nonsense")
    done = program("keys", "make")
    if name.endswith(".pub"):
        assert done.code == 0, "the public half says nothing that the private one does not"
    else:
        assert (done.code, name in done.err) == (3, True)
    assert path.read_text() == "nonsense"


@requirement("scale.shared-keys")
def test_a_folder_that_cannot_be_written_is_named(program: Program) -> None:
    program.data_dir.write_text("no folder")
    done = program("keys", "make")
    assert (done.code, str(program.data_dir) in done.err) == (3, True)


@requirement("keys.cli")
def test_a_key_is_made_used_rotated_and_revoked_from_the_command_line(served: tuple[Program, Any]) -> None:
    program, _ = served
    made = program("keys", "create", "ci", "--role", "operator", "--expires", "30d", "--description", "Nightly")
    assert made.code == 0, made.err
    secret = made.out.strip()
    assert secret.startswith("st_")
    assert "Key ci: operator (read, write, delete), until " in made.err
    assert "It is not shown again." in made.err
    listed = {key["name"]: key for key in program("keys", "list", "--json").json["keys"]}
    assert (listed["ci"]["status"], listed["ci"]["description"]) == ("active", "Nightly")
    assert secret not in program("keys", "list").out
    limits = ("--budget", "usd/month=5", "--model", "openai/gpt-*", "--model", "fast")
    limited = program("keys", "create", "reports", "--role", "operator", *limits)
    assert ", budget usd/month=5, models openai/gpt-*, fast. It is not shown again." in limited.err
    line = next(line for line in program("keys", "list").out.splitlines() if "reports" in line)
    assert line.split()[:3] + line.split()[-2:] == ["reports", "operator", "active", "usd/month=5", "openai/gpt-*"]
    assert program("keys", "change", "reports", "--model", "*", "--json").json["models"] == ["*"]
    assert program("keys", "change", "reports", "--team", "research", "--json").json["team"] == "research"
    assert "research" in program("keys", "list").out
    assert program("keys", "change", "reports", "--description", "Monthly", "--json").json["team"] == "research"
    assert program("keys", "change", "reports", "--team", "", "--json").json["team"] == ""
    holder = Program(program.data_dir, program.environ | {"SERVICE_CLIENT_KEY": secret})
    assert holder("task", "list").code == 0
    assert program("keys", "change", "ci", "--permission", "write", "--expires", "never").code == 0
    assert re.search(r"ci +operator: .*\n +write ", program("keys", "list").out)
    refused = holder("task", "list")
    assert (refused.code, "'read'" in refused.err) == (3, True)
    rotated = program("keys", "rotate", "ci").out.strip()
    assert holder("call", "whoami").code == 3
    other = Program(program.data_dir, program.environ | {"SERVICE_CLIENT_KEY": rotated})
    assert program("keys", "change", "ci", "--role", "viewer").code == 0
    assert other("task", "list").code == 0
    assert program("keys", "revoke", "ci").out == "Revoked key ci.\n"
    assert other("task", "list").code == 3


@requirement("keys.cli")
def test_keys_are_made_without_a_service_too(program: Program) -> None:
    assert program("keys", "create", "dana", "--role", "viewer").code == 0
    names = {key["name"] for key in program("keys", "list", "--json").json["keys"] if not key["configured"]}
    assert names == {"dana"}
    for time in ("tomorrow", "0001-01-01"):
        wrong = program("keys", "create", "other", "--role", "viewer", "--expires", time)
        assert (wrong.code, "use 12h, 30d or 8w" in wrong.err) == (2, True)
