"""The options that every command which talks to the service takes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import typer

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


class Target(NamedTuple):
    """Which service a command means; None leaves it to the environment."""

    data_dir: Path | None = None
    url: str | None = None
    key: str | None = None
