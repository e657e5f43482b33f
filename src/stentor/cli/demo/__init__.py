"""`stentor demo`: a fresh service, three agents, forty real tasks, and an explanation of what happened."""

from __future__ import annotations

from typing import Annotated

import typer

from stentor.cli.output import report_errors


def demo(
    rounds: Annotated[int, typer.Option(min=1, max=100, help="Rounds of four tasks each.")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="The figures as one JSON document.")] = False,
) -> None:
    """Watch forty tasks being routed, done and learned from, in less than a minute."""
    # The demonstration needs an HTTP client and Markdown tables: not for `stentor --help`.
    from stentor.cli.demo.run import run_demo

    with report_errors(as_json=as_json):
        run_demo(rounds, as_json=as_json)
