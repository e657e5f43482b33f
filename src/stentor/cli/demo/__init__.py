"""`stentor demo`: starts a temporary service, routes real tasks to three agents and prints a report.

`run` drives the service, `report` prints the tables, `scenarios` and `governance_scenarios` have the later parts,
`sections` the texts of the tasks, `worker` is the third agent.
"""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from stentor.cli.demo.run import run_demo
from stentor.cli.output import report_errors


def demo(
    rounds: Annotated[int, typer.Option(min=1, max=100, help="Number of rounds of four tasks each.")] = 10,
    once: Annotated[bool, typer.Option("--once", help="End after the report, also at a terminal.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as one JSON document.")] = False,
) -> None:
    """Run a demonstration of routing, learning and governance on a temporary service, in less than a minute.

    At a terminal the service then continues, with its dashboard, until Ctrl-C.
    """
    is_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    with report_errors(as_json=as_json):
        run_demo(rounds, as_json=as_json, stays_open=is_terminal and not once and not as_json)
