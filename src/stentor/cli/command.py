"""The options that commands share, and `with_service` for the commands that call the service and print its response.

Imported at every start, so heavy imports stay inside functions. The client is in `client`, the printing in `output`.
"""

from __future__ import annotations

import functools
import getpass
import inspect
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Concatenate, Literal, NamedTuple, TypeVar, get_type_hints

import typer

from stentor.cli.output import EXIT_FAILED, EXIT_USAGE, CommandFailed, print_json, report_errors

if TYPE_CHECKING:
    from stentor.cli.client.client import ServiceClient
    from stentor.cli.client.responses import Response


def _parse_folder(value: str) -> Path:
    # `Path("")` is the current folder, which an empty variable of a shell does not mean.
    if not value.strip():
        raise typer.BadParameter("must not be blank")
    return Path(value)


DataDir = Annotated[
    Path | None, typer.Option(parser=_parse_folder, metavar="<path>", help="Folder with the database and the keys.")
]
Url = Annotated[str | None, typer.Option(help="URL of the service; default: SERVICE_URL.")]
Key = Annotated[
    str | None,
    typer.Option(help="API key; visible in the process list, unlike SERVICE_CLIENT_KEY."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output.")]


def split_commas(given: list[str]) -> list[str]:
    """Return the names of an option that may be repeated, or have several names with commas between them."""
    names = [part.strip() for value in given for part in value.split(",") if part.strip() or not value.strip()]
    if given and not names:
        raise typer.BadParameter("has only commas, no name.")
    return names


Capabilities = Annotated[
    list[str],
    typer.Option(
        "--capability", callback=split_commas, help="A capability that the agent must have; repeatable, or with commas."
    ),
]
GradeValue = Annotated[float, typer.Argument(metavar="GRADE", min=0, max=1, help="From 0 (worthless) to 1 (perfect).")]
GradeComment = Annotated[str | None, typer.Option("--comment", help="Reason, recorded in the run log.")]

Access = Literal["read", "change", "create", "memory"]
"""What a command needs without a running service: it reads, changes records, may create the data folder, or uses the
vault.
"""
NOT_UTF_8 = "An argument is not valid UTF-8."
T = TypeVar("T")


class ServiceTarget(NamedTuple):
    """The service that a command calls, with how to print; None means that the environment decides."""

    data_dir: DataDir = None
    url: Url = None
    key: Key = None
    as_json: AsJson = False

    def call(
        self,
        work: Callable[[ServiceClient], Awaitable[Response[T]]],
        show: Callable[[T], Any],
        *,
        access: Access = "read",
        is_success: Callable[[T], bool] | None = None,
    ) -> None:
        """Run `work` with a client of the service and print its response.

        Ends the command on errors, and with exit code 1 if `is_success` is False for the response.
        """
        with report_errors(as_json=self.as_json):
            # Imported late: keeps `stentor --help` fast.
            from stentor.cli.client import client

            try:
                response = client.run_with_client(self, work, access=access)
            # Python decodes command-line bytes that are not UTF-8 as surrogates, which cannot be sent.
            except UnicodeEncodeError:
                raise CommandFailed(NOT_UTF_8, EXIT_USAGE) from None
            if self.as_json:
                print_json(response.document)
            else:
                show(response.value)
            if is_success is not None and not is_success(response.value):
                raise typer.Exit(EXIT_FAILED)


def with_service(command: Callable[Concatenate[ServiceTarget, ...], None]) -> Callable[..., None]:
    """Fill the first parameter of a command from options, one for each field of ServiceTarget, after its own ones."""

    @functools.wraps(command)
    def run(**options: Any) -> None:
        target = ServiceTarget(*(options.pop(name) for name in ServiceTarget._fields))
        command(target, **options)

    _, *own = inspect.signature(command, eval_str=True).parameters.values()
    hints = get_type_hints(ServiceTarget, include_extras=True)
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[name])
        for name, default in ServiceTarget._field_defaults.items()
    ]
    # Typer reads the options of a command from its signature.
    vars(run)["__signature__"] = inspect.Signature([*own, *shared])
    return run


def current_user() -> str:
    """Return the user of this machine, marked as such: no name of an API key has this form."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        name = "unknown"
    return f"{name[:200]} (command line)"
