"""The program as a whole: a light start, completion, a quiet end."""

from __future__ import annotations

import gc
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stentor.cli.main import LazyCommand, Target
from stentor.cli.output import console, print_json, print_notice, strip_controls
from tests.cli.program import COMMAND, Program

# pydantic is not among them: Typer itself loads it for a command with arguments.
HEAVY = (
    "fastapi",
    "uvicorn",
    "httpx",
    "aiohttp",
    "sqlalchemy",
    "alembic",
    "starlette",
    "stentor.bootstrap",
)


def test_the_service_is_imported_without_a_search_for_cycles() -> None:
    script = (
        "import gc\n"
        "from stentor.cli.main import COMMANDS, LazyCommand\n"
        # As the program does, or the few objects that the command itself makes could start a search.
        "gc.set_threshold(50_000, 20, 50)\n"
        "found = []\n"
        "gc.callbacks.append(lambda phase, info: found.append(phase))\n"
        "LazyCommand('serve', COMMANDS['serve']).loaded\n"
        "print(found, gc.isenabled(), gc.get_freeze_count() > 100_000)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=300)
    assert done.stdout.split("\n")[0] == "[] True True", done.stderr


def test_cycles_are_searched_for_again_after_a_command_that_cannot_be_imported() -> None:
    with pytest.raises(ModuleNotFoundError):
        _ = LazyCommand("none", Target("stentor.cli.commands.none:app", "No such command.")).loaded
    assert gc.isenabled()


@pytest.mark.parametrize(("words", "own"), [([], ()), (["task"], ("httpx",)), (["task", "submit"], ("httpx",))])
def test_help_imports_nothing_heavy(words: list[str], own: tuple[str, ...]) -> None:
    """Beside what the command itself works with."""
    script = (
        "import sys\n"
        "from stentor.cli import app\n"
        "try:\n"
        f"    app([*{words!r}, '--help'])\n"
        "except SystemExit as end:\n"
        "    assert end.code == 0\n"
        f"found = [name for name in {tuple(set(HEAVY) - set(own))!r} if name in sys.modules]\n"
        "assert not found, found\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout


def test_the_shell_completes_commands(program: Program) -> None:
    assert "--install-completion" in program("--help").out
    program.environ = {
        "_STENTOR_COMPLETE": "complete_bash",
        "COMP_WORDS": "stentor ta",
        "COMP_CWORD": "1",
    }
    command = [sys.executable, "-c", "from stentor.cli import app; app(prog_name='stentor')"]
    done = subprocess.run(command, env=program.env, capture_output=True, text=True, timeout=200)
    assert done.stdout.split() == ["task"]


def test_wrong_usage_ends_with_2(program: Program) -> None:
    assert program("task", "submit", "--input", "x").code == 2
    assert program("task", "list", "--limit", "0").code == 2
    assert program("nonsense").code == 2


def test_ctrl_c_ends_a_watch_quietly(served: tuple[Program, Any]) -> None:
    program, _ = served
    program("agent", "register", "ann", "--capability", "echo")
    task = program("task", "submit", "--type", "echo", "--capability", "echo", "--input", "x", "--json").json
    watch = program.start("task", "watch", task["task_id"])
    assert watch.stderr is not None
    assert "no worker online" in watch.stderr.readline()
    assert "Task of type echo received." in watch.stderr.readline()
    watch.send_signal(signal.SIGINT)
    out, err = watch.communicate(timeout=200)
    assert watch.returncode == 130
    assert out == ""
    assert "Traceback" not in err
    assert program("task", "show", task["task_id"], "--json").json["status"] == "queued"


@pytest.mark.parametrize("module", ["typer", "stentor.cli.commands.tasks.task"])
def test_ctrl_c_during_a_start_ends_quietly(module: str) -> None:
    script = (
        "import sys\n"
        "class Interrupted:\n"
        "    def find_spec(self, name, *_):\n"
        f"        if name == {module!r}:\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Interrupted())\n"
        "from stentor.cli import main\n"
        "sys.argv = ['stentor', 'task', 'list']\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=200)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_a_full_disk_under_standard_output_is_told_in_one_line(program: Program) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*COMMAND, "--version"], env=program.env, stdout=full, stderr=subprocess.PIPE, text=True, timeout=200
        )
    assert done.returncode == 1
    assert done.stderr == "error: standard output or a file cannot be written: No space left on device\n"


def test_what_would_turn_text_around_in_a_terminal_is_replaced() -> None:
    assert strip_controls("a\u202eb\u2066c\x1bd") == "a\ufffdb\ufffdc\ufffdd"
    assert strip_controls("\u05e9\u200f\n\U0001f468\u200d\U0001f469") == "\u05e9\u200f\n\U0001f468\u200d\U0001f469"


def test_json_in_a_terminal_has_control_characters_as_escapes(
    capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    value = {"a": "\x1b\x9b31m\u202e\\é\n"}
    print_json(value)
    raw = capfdbinary.readouterr().out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_json(value)
    shown = capfdbinary.readouterr().out
    assert json.loads(raw) == json.loads(shown) == value
    assert ("\u202e" in raw.decode(), shown) == (True, rb'{"a":"\u001b\u009b31m\u202e\\' + "é".encode() + b'\\n"}\n')


def test_text_between_colons_is_no_emoji(capsys: pytest.CaptureFixture[str]) -> None:
    print_notice("agent:id:usd/month=20")
    console.print("agent:id:usd/month=20")
    printed = capsys.readouterr()
    assert (printed.err, printed.out) == ("agent:id:usd/month=20\n",) * 2


def test_a_vault_that_is_a_file_is_refused_with_its_setting(tmp_path: Path) -> None:
    file = tmp_path / "notes.md"
    file.write_text("A note.")
    with Program(tmp_path / "data", {"SERVICE_VAULT_DIR": str(file), "SERVICE_GATEWAY_PORT": "0"}).start(
        "serve"
    ) as run:
        assert run.stdout is not None
        first = run.stdout.readline()  # a service that starts would say where it listens, and go on
        run.terminate()
        _, errors = run.communicate()
    assert (first, run.returncode) == ("", 3)
    assert f"The vault's folder {file} (SERVICE_VAULT_DIR) is a file." in errors
