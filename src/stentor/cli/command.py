"""The options that every command which talks to the service takes.

How a command runs: it asks the service, and shows the answer to a person or as JSON.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, TypeVar

import typer

from stentor.cli.output import EXIT_USAGE, CommandFailed, print_json, report_errors

if TYPE_CHECKING:
    from stentor.cli.client import ServiceClient


DataDir = Annotated[Path | None, typer.Option(help="Folder of the database and the keys.")]
Url = Annotated[str | None, typer.Option(help="Address of the service; else SERVICE_URL.")]
Key = Annotated[
    str | None,
    typer.Option(help="Key to send; others can read it in the process list, unlike SERVICE_CLIENT_KEY."),
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]
GradeValue = Annotated[float, typer.Argument(metavar="GRADE", min=0, max=1, help="From 0, worthless, to 1, perfect.")]
GradeComment = Annotated[str | None, typer.Option("--comment", help="Why; it stands in the run log.")]

Access = Literal["read", "change", "create", "memory"]
"""What a command does: it reads, changes what is there, may make the first record of a folder, or needs the vault."""


class ServiceTarget(NamedTuple):
    """Which service a command means; None leaves it to the environment."""

    data_dir: Path | None = None
    url: str | None = None
    key: str | None = None


T = TypeVar("T")


def run_command(
    target: ServiceTarget,
    work: Callable[[ServiceClient], Awaitable[T]],
    show: Callable[[T], Any],
    *,
    as_json: bool,
    access: Access = "read",
) -> T:
    """Do `work` with the service, print what it answers, and answer that. Ends the command on errors."""
    with report_errors(as_json=as_json):
        # An HTTP client, and without a running service the whole kernel: not for `stentor --help`.
        from stentor.cli import client

        try:
            value = client.run_with_client(target, work, access=access)
        except UnicodeEncodeError:
            raise CommandFailed("An argument is not valid UTF-8.", EXIT_USAGE) from None
        if as_json:
            print_json(value)
        else:
            show(value)
        return value
