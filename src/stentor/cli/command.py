"""How a command runs: it asks the service, and shows the answer to a person or as JSON."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from stentor.cli.options import Access, Target
from stentor.cli.output import USAGE, CommandFailed, print_json, reporting

if TYPE_CHECKING:
    from stentor.cli.api import Api

T = TypeVar("T")


def perform(
    target: Target,
    work: Callable[[Api], Awaitable[T]],
    show: Callable[[T], Any],
    *,
    as_json: bool,
    access: Access = "read",
) -> T:
    """Do `work` with the service, print what it answers, and answer that. Ends the command on errors."""
    with reporting(as_json=as_json):
        # An HTTP client, and without a running service the whole kernel: not for `stentor --help`.
        from stentor.cli import connection

        try:
            value = connection.run(target, work, access=access)
        except UnicodeEncodeError:
            raise CommandFailed("An argument is not valid UTF-8.", USAGE) from None
        if as_json:
            print_json(value)
        else:
            show(value)
        return value
