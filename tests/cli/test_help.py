"""The list of commands: it is shown without importing them, so it is written down and compared here."""

from __future__ import annotations

import subprocess
import sys

import pytest

from stentor.cli.main import COMMANDS, LazyCommand
from tests.cli.program import Program


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_says_what_the_command_says_of_itself(name: str) -> None:
    help_text = LazyCommand(name, COMMANDS[name]).loaded.help or ""
    assert " ".join(help_text.split("\n\n")[0].split()) == COMMANDS[name].help


def test_a_paragraph_of_the_help_is_broken_by_the_terminal_alone(program: Program) -> None:
    text = LazyCommand("keys", COMMANDS["keys"]).loaded.commands["make"].help
    assert "must share their keys: generate them once" in text
    assert "\n\n" in text


def test_a_mistyped_command_is_answered_with_the_one_that_was_meant(program: Program) -> None:
    done = program("tsak")
    assert (done.code, "Did you mean 'task'?" in done.err) == (2, True)


def test_an_unknown_command_of_a_group_is_answered_with_those_that_it_has(program: Program) -> None:
    done = program("schedule", "crate")
    assert (done.code, "Commands: add, list, show" in done.err) == (2, True)


@pytest.mark.parametrize(
    ("group", "verb", "meant"),
    [
        ("schedule", "create", "add"),
        ("webhook", "create", "add"),
        ("webhook", "delete", "remove"),
        ("agent", "create", "register"),
        ("agent", "remove", "archive"),
        ("keys", "add", "create"),
        ("session", "rm", "delete"),
        ("task", "new", "submit"),
    ],
)
def test_a_verb_of_another_group_is_answered_with_that_of_this_one(
    program: Program, group: str, verb: str, meant: str
) -> None:
    done = program(group, verb)
    text = " ".join(done.err.replace("│", "").split())
    assert (done.code, f"No such command '{verb}'. Did you mean '{meant}'? Commands: " in text) == (2, True), text


def test_a_wrong_value_is_answered_in_plain_words(program: Program) -> None:
    wrong = program("keys", "create", "x", "--role", "agnt")
    assert (wrong.code, "Value error" in wrong.err, "'agnt' is not one of" in wrong.err) == (2, False, True)
    unit = program("task", "submit", "--type", "x", "--input", "a", "--timeout", "5m")
    assert (unit.code, "whole number. Maximum run time in seconds" in " ".join(unit.err.replace("│", "").split())) == (
        2,
        True,
    )
    high = program("task", "grade", "x", "5")
    assert (high.code, "must be less than or equal to 1" in high.err) == (2, True)


def test_the_list_of_commands_imports_none_of_them() -> None:
    code = (
        "import sys\nfrom stentor.cli import app\n"
        "try:\n    app(['--help'])\nexcept SystemExit:\n    pass\n"
        "assert not any(name.startswith('stentor.cli.commands') for name in sys.modules), 'a command was imported'"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "Run the service" in done.stdout
