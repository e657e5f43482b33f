"""`stentor schedule ...` beside a running service."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.cli.program import SUMMARIZE, TEXT, Program
from tests.requirements import requirement


@requirement("cli.schedules")
def test_a_schedule_is_made_run_paused_and_removed(serve: Callable[..., Any]) -> None:
    service = serve()
    program = Program(service.data_dir, {"SERVICE_CLIENT_KEY": service.key, **service.state})
    assert "There are no schedules yet" in program("schedule", "list").err
    made = program(
        "schedule", "add", "morning", "--cron", "@daily", "--timezone", "Europe/Rome", *SUMMARIZE, "--input", TEXT
    )
    assert made.code == 0, made.err
    assert made.out.startswith("morning runs at 00:00 every day (Europe/Rome); next in ")
    task_id = program("schedule", "run", "morning", "--json").json["task_id"]
    (run,) = program("schedule", "runs", "morning", "--json").json["runs"]
    assert (run["task_id"], run["outcome"]) == (task_id, "submitted")
    assert task_id in program("schedule", "runs", "morning").out
    assert program("schedule", "pause", "morning").out == "morning is paused.\n"
    assert "paused" in program("schedule", "list").out
    assert program("schedule", "resume", "morning").out.startswith("morning runs ")
    text = program("schedule", "show", "morning").out
    assert "At 00:00 every day (@daily)" in text
    assert "in 4 d" in text, "the fifth of the next times"
    assert "{" not in text.replace('{"text"', ""), "no JSON but that of an input that is JSON"
    shown = program("schedule", "show", "morning", "--json").json
    assert (len(shown["next_times"]), shown["task"]["type"]) == (5, "summarize")
    assert program("schedule", "remove", "morning").out == "Deleted schedule morning.\n"
    gone = program("schedule", "show", "morning")
    assert (gone.code, "There is no schedule 'morning'" in gone.err) == (3, True)
    wrong = program("schedule", "add", "x", "--cron", "@daily", "--timezone", "Rome", *SUMMARIZE, "--input", TEXT)
    assert (wrong.code, "timezone: 'Rome' is not a time zone" in wrong.err) == (3, True)


@requirement("cli.schedules")
def test_a_wrong_time_is_an_error_before_the_input_is_read(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.txt")
    wrong = Program(tmp_path)("schedule", "add", "x", "--cron", "now and then", *SUMMARIZE, "--file", missing)
    assert (wrong.code, "cron: must have five fields" in wrong.err) == (2, True)
