"""How runs, proofs and verifications are shown."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text
from rich.tree import Tree

from stentor.cli.output import console, error_console, print_line, print_notice, strip_controls
from stentor.domains.provenance.audit.findings import AuditFinding, AuditReport

MAX_FINDINGS_SHOWN = 50


@contextmanager
def progress_bar(word: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar on standard error."""
    columns = TextColumn(word), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=error_console, transient=True) as progress:
        task = progress.add_task(word, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


def report_document(report: AuditReport) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(report)
    return {"intact": report.is_intact, **found}


def show_report(report: AuditReport) -> None:
    for finding in report.findings[:MAX_FINDINGS_SHOWN]:
        console.print(Text(strip_controls(format_finding(finding)), style="red"), soft_wrap=True)
    if len(report.findings) > MAX_FINDINGS_SHOWN:
        print_line(f"and {len(report.findings) - MAX_FINDINGS_SHOWN} more findings (all of them with --json)")
    for state in report.checkpoints:
        signed = {True: "signed", False: "not believed", None: "signature not verified"}[state.signed]
        print_line(f"checkpoint of {state.size} events ({state.source}, {signed}): {state.text}")
    if not report.key_known:
        print_notice("No key is known: signatures were not verified. Name one with --verifier.", "yellow")
    for name, size in report.witnessed.items():
        print_line(
            f"the witness {name} signed {size} of them" if size else f"the witness {name} signed none that holds"
        )
    after = report.size - report.covered
    print_line(
        f"{report.size} events have a number, {report.waiting} wait for one; {report.checkpoints_checked} checkpoints."
    )
    if report.is_intact:
        console.print("[green]The run log is intact.[/]", end=" ")
        print_line(
            f"{after} events are newer than the last checkpoint: their hashes alone speak for them." if after else ""
        )
    else:
        console.print(f"[red]The run log was tampered with or damaged:[/] {len(report.findings)} findings.")


def format_finding(finding: AuditFinding) -> str:
    """A finding in one line: what, which, why."""
    place = ""
    if finding.number is not None:
        several = finding.last is not None and finding.last != finding.number
        place = f" {finding.number} to {finding.last}" if several else f" {finding.number}"
    names = [
        f"event {finding.event_id}" if finding.event_id else "",
        f"task {finding.task_id}" if finding.task_id else "",
    ]
    which = ", ".join(name for name in names if name)
    return f"{finding.kind}{place}{f' ({which})' if which else ''}: {finding.text}"


def show_run(run: dict[str, Any]) -> None:
    children: dict[str | None, list[dict[str, Any]]] = defaultdict(list)
    known = {event["provenance_id"] for event in run["events"]}
    for event in run["events"]:
        parent = event["parent_provenance_id"]
        children[parent if parent in known else None].append(event)
    for event in children[None]:
        console.print(_branch(event, children))
    if run["truncated"]:
        print_line(f"Only the first {len(run['events'])} events are shown.")


def _branch(event: dict[str, Any], children: dict[str | None, list[dict[str, Any]]]) -> Tree:
    """Chains stay in one column; only what branches off is indented."""
    tree = Tree(_label(event))
    following = children[event["provenance_id"]]
    while len(following) == 1:
        tree.add(_label(following[0]))
        following = children[following[0]["provenance_id"]]
    for child in following:
        tree.add(_branch(child, children))
    return tree


def _label(event: dict[str, Any]) -> Text:
    number = "waits" if event["number"] is None else f"#{event['number']}"
    head = Text(strip_controls(f"{event['event_type']} "), style="bold")
    return head.append(strip_controls(f"{event['message']}  {number}  {event['provenance_id']}"), style="not bold")


def show_proof(found: dict[str, Any]) -> None:
    print_line(f"event {found['provenance_id']} has number {found['number']} in the tree of {found['size']} events")
    if not found["holds"]:
        console.print(Text(strip_controls(f"The proof does not hold: {found['reason']}."), style="red"))
        return
    console.print(f"[green]The proof holds[/] ({len(found['hashes'])} hashes).", end=" ")
    print_line(
        {True: "A signed checkpoint has its root.", None: "No checkpoint with a known key has its root."}[
            found["signed"]
        ]
    )
