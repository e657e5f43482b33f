"""Whether the run log is what was signed before, so that it may be signed further."""

from __future__ import annotations

from collections.abc import Iterator

from stentor.bootstrap.provenance import outside
from stentor.cli import acceptance
from stentor.cli.checks.finding import Finding, Situation
from stentor.cli.output import CommandFailed
from stentor.core.errors import StentorError, StoreUnavailable


def run_log(situation: Situation) -> Iterator[Finding]:
    settings = situation.settings
    try:
        found, size, _ = acceptance.objection(settings)
    except (CommandFailed, StoreUnavailable):
        return  # the checks of the database say that there is none, or what is wrong with it
    except StentorError as error:
        yield Finding("problem", "run log", error.message)
        return
    if found is None:
        yield Finding("ok", "run log", f"Its {size} numbered events extend what was signed before.")
    elif outside(settings).acceptance_path.exists():
        yield Finding("warning", "run log", "An acceptance of its history waits for the service to carry it out.")
    else:
        yield Finding("problem", "run log", found)
