"""The command tree. A command is imported when it is used, so that each starts fast and `--help` needs none of them."""

from __future__ import annotations

import errno
import gc
import importlib
import inspect
import io
import os
import re
import sys
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from stentor import __version__
from stentor.core import filesystem
from stentor.core.lazy_import import lazy_module

if TYPE_CHECKING:
    from stentor.cli import output
    from stentor.core.settings import config_file
else:
    # Without a file `stentor --help` need not import the settings.
    output = lazy_module("stentor.cli.output")
    config_file = lazy_module("stentor.core.settings.config_file")


class Target(NamedTuple):
    """A function or a Typer application: `module:attribute`, with its line in the list of commands."""

    path: str
    help: str


COMMANDS = {
    "serve": Target("stentor.cli.commands.servers.serve:serve", "Run the service; Ctrl-C stops it gracefully."),
    "demo": Target(
        "stentor.cli.demo:demo",
        "Run a demonstration of routing, learning and governance on a temporary service, in less than a minute.",
    ),
    "vault": Target(
        "stentor.cli.commands.servers.vault:vault",
        "Serve a folder of notes with the REST API of Obsidian's plugin; Ctrl-C stops it gracefully.",
    ),
    "notes": Target(
        "stentor.cli.commands.servers.notes:notes",
        "Serve note tools for agents on top of a vault plugin; needs MCP_API_KEY, NOTES_BASE_URL and NOTES_API_KEY.",
    ),
    "dashboard": Target(
        "stentor.cli.commands.servers.dashboard:dashboard",
        "Run only the dashboard, which shows tasks and agents even while the gateway is down.",
    ),
    "reindex": Target(
        "stentor.cli.commands.memory.memory:reindex",
        "Rebuild the search index from the files of the vault, and the notes of tasks. Search keeps working.",
    ),
    "verify": Target(
        "stentor.cli.commands.memory.memory:verify",
        "Compare the search index and the tasks with the files of the vault; the exit code is 1 if they differ.",
    ),
    "search": Target(
        "stentor.cli.commands.memory.search:search",
        "Find notes by word and by meaning, the best match first; the exit code is 1 if none is found.",
    ),
    "history": Target(
        "stentor.cli.commands.memory.memory:history",
        "List the stored versions of a note, newest first, even if it was deleted; or restore one.",
    ),
    "invalidate": Target(
        "stentor.cli.commands.memory.invalidation:invalidate",
        "Exclude a note, a passage or a source, and everything derived from it, from search; without one, list them.",
    ),
    "init": Target(
        "stentor.cli.commands.installation:init",
        "Write stentor.toml, a commented file of the usual settings, into this folder.",
    ),
    "config": Target(
        "stentor.cli.commands.installation:config",
        "List all settings with their value and source; secrets are never shown.",
    ),
    "doctor": Target(
        "stentor.cli.commands.installation:doctor", "Check the installation; the exit code is 1 if there is a problem."
    ),
    "task": Target("stentor.cli.commands.tasks.task:app", "Submit, list, follow and grade tasks."),
    "schedule": Target("stentor.cli.commands.tasks.schedule:app", "Submit tasks on a cron schedule."),
    "session": Target(
        "stentor.cli.commands.tasks.session:app", "Create, read, extend and delete conversations that outlive tasks."
    ),
    "agent": Target("stentor.cli.commands.agents.agent:app", "Register, list, edit, suspend and archive agents."),
    "governance": Target(
        "stentor.cli.commands.agents.governance:app", "Propose, review and roll back updates of agents."
    ),
    "policy": Target(
        "stentor.cli.commands.agents.policy:app", "Check a policy file, and test it with example requests."
    ),
    "receipt": Target(
        "stentor.cli.commands.agents.receipt:app",
        "Issue, inspect and verify receipts: signed, short-lived permissions.",
    ),
    "mcp": Target("stentor.cli.commands.memory.mcp:app", "Serve the governed memory to MCP clients."),
    "llm": Target(
        "stentor.cli.commands.llm:app", "Grade answers of the model auto, and explain why a model was chosen."
    ),
    "webhook": Target(
        "stentor.cli.commands.webhook:app", "Subscribe other services to events; test and replay deliveries."
    ),
    "provenance": Target(
        "stentor.cli.commands.provenance:app", "Verify and export the run log, show runs, prove events."
    ),
    "db": Target("stentor.cli.commands.db:app", "Upgrade the database schema, back up, copy to another database."),
    "archive": Target(
        "stentor.cli.commands.archive:app", "Archive tasks that ended long ago, list and verify the archives."
    ),
    "call": Target(
        "stentor.cli.commands.call:call",
        "Call any operation of the HTTP API by its name, and print the response as JSON.",
    ),
    "keys": Target("stentor.cli.commands.keys:app", "Create, limit, rotate and revoke API keys."),
}
"""The commands in the order of the help. A test compares the lines with the help of the commands themselves."""
_NOT_A_NUMBER = "a valid integer, unable to parse string as an integer"
"""How the library ends its error about such a value."""


class LazyCommand(TyperCommand):
    """A command that is imported when it is parsed. Until then only its name and its line of help are known."""

    def __init__(self, name: str, target: Target) -> None:
        super().__init__(name, help=target.help)
        self._target = target

    @cached_property
    def loaded(self) -> Any:
        """The command itself."""
        module, _, attribute = self._target.path.partition(":")
        # Imported objects stay alive. Searching them for cycles takes a twentieth of a start, even with the threshold
        # below.
        gc.disable()
        try:
            command = getattr(importlib.import_module(module), attribute)
            gc.freeze()
        finally:
            gc.enable()
        parent = typer.Typer()
        if isinstance(command, typer.Typer):
            parent.add_typer(command, name=self.name)
        else:
            parent.command(self.name)(command)
        # `get_group`, because `get_command` makes no group for a single command.
        found = typer.main.get_group(parent).commands[str(self.name)]
        _join_lines(found)
        return found

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        return self.loaded.make_context(*args, **kwargs)


def _join_lines(command: Any) -> None:
    """Join the lines of each paragraph of the help, which the terminal breaks where its width ends."""
    command.help = re.sub(r"(?<=\S)\n(?=\S)", " ", inspect.cleandoc(command.help or "")) or None
    for child in getattr(command, "commands", {}).values():
        _join_lines(child)


SAME_VERBS = (
    ("add", "create", "register", "submit", "new"),
    ("remove", "delete", "revoke", "archive", "rm"),
    ("list", "ls"),
    ("show", "get"),
)
"""Verbs that one group has, and that a user may expect in another one."""


class LazyGroup(TyperGroup):
    def __init__(self, **settings: Any) -> None:
        commands = {name: LazyCommand(name, target) for name, target in COMMANDS.items()}
        super().__init__(**settings | {"commands": commands})

    def invoke(self, ctx: Any) -> Any:
        """Run the command; say what is wrong with an argument without the words of the library that checked it."""
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = error.message.removeprefix("Value error, ").replace("Input should", "must")
            if error.message.endswith(_NOT_A_NUMBER):
                # The help of the option names the unit.
                error.message = f"must be a whole number. {getattr(error.param, 'help', None) or ''}".rstrip()
            raise
        except typer.TyperException as error:
            _list_commands(error)
            raise


def _list_commands(error: typer.TyperException) -> None:
    """Add the commands of a group to the error about one that it does not have."""
    group = getattr(getattr(error, "ctx", None), "command", None)
    commands = getattr(group, "commands", {})
    found = re.match(r"No such command '([^']*)'\.", error.message)
    if found and len(commands) <= 20:
        same = [verb for verbs in SAME_VERBS if found[1] in verbs for verb in verbs if verb in commands]
        if same:  # the group's own word for it, not one that only looks similar
            error.message = f"{found[0]} Did you mean '{same[0]}'?"
        error.message += f" Commands: {', '.join(commands)}."


app = typer.Typer(
    cls=LazyGroup,
    help="A self-hosted control plane for software agents.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"stentor {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
) -> None:
    """A self-hosted control plane for software agents."""
    # Before anything is written: databases, keys and logs must not be readable by others.
    filesystem.set_private_umask()
    _apply_config_file()


def _apply_config_file() -> None:
    if os.environ.get("SERVICE_CONFIG_FILE") or Path("stentor.toml").exists():
        with output.report_errors():
            config_file.apply_config_file(os.environ)


def main() -> None:
    # A start imports thousands of classes and functions that stay alive. Searching them for cycles takes a tenth of the
    # start.
    gc.set_threshold(50_000, 20, 50)
    # In an encoding other than UTF-8 an agent's text must not make a command fail.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        app()
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        # Python would try to write the rest again at exit, and fail with a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(f"error: standard output or a file cannot be written: {error.strerror}")
