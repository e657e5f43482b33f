"""The output of `stentor provenance`: runs, proofs and verification reports."""

from __future__ import annotations

from collections import defaultdict

import msgspec
from rich.text import Text
from rich.tree import Tree

from stentor.cli.client.responses import RunEvent
from stentor.cli.output import console, print_line, print_notice, strip_controls
from stentor.cli.provenance.run_log import CheckedEventProof
from stentor.core.jsontext import JsonObject
from stentor.domains.provenance.audit.findings import AuditFinding, AuditReport
from stentor.domains.retention.verification import ArchiveReport

MAX_FINDINGS_SHOWN = 50


class Run(msgspec.Struct, frozen=True):
    """The events that belong together, oldest first; `truncated` if there are more."""

    events: list[RunEvent]
    truncated: bool


def report_document(report: AuditReport | ArchiveReport) -> JsonObject:
    """Return the report as plain values."""
    return {"intact": report.is_intact, **msgspec.to_builtins(report)}


def show_report(report: AuditReport) -> None:
    """Print the findings, checkpoints and witnesses of a report, and its verdict."""
    for finding in report.findings[:MAX_FINDINGS_SHOWN]:
        console.print(Text(strip_controls(format_finding(finding)), style="red"), soft_wrap=True)
    if len(report.findings) > MAX_FINDINGS_SHOWN:
        print_line(f"and {len(report.findings) - MAX_FINDINGS_SHOWN} more findings (--json prints all)")
    for state in report.checkpoints:
        signed = {True: "signed", False: "invalid signature", None: "signature not verified"}[state.signed]
        print_line(f"checkpoint of {state.size} events ({state.source}, {signed}): {state.text}")
    if not report.key_known:
        print_notice("No verifier key found, so signatures were not verified. Pass one with --verifier.", "yellow")
    for name, size in report.witnessed.items():
        print_line(
            f"witness {name}: cosigned the first {size} events" if size else f"witness {name}: no valid cosignature"
        )
    uncovered = report.size - report.covered
    print_line(
        f"Numbered events: {report.size}; not numbered yet: {report.waiting}; checkpoints: {report.checkpoints_checked}"
    )
    if report.archived:
        print_line(
            f"{report.archived} of them are archived: their hashes are in the tree, and their bodies "
            + ("were compared with these hashes." if report.archives_read else "were not read (--archive FOLDER does).")
        )
    if report.is_intact:
        console.print("[green]The run log is intact.[/]", end=" ")
        print_line(
            f"{uncovered} events are newer than the last checkpoint and protected by their hash only."
            if uncovered
            else ""
        )
    else:
        console.print(f"[red]The run log was tampered with or damaged:[/] {len(report.findings)} findings.")


def format_finding(finding: AuditFinding) -> str:
    """Format a finding as one line: kind, position, reason."""
    position = ""
    if finding.number is not None:
        is_range = finding.last is not None and finding.last != finding.number
        position = f" {finding.number} to {finding.last}" if is_range else f" {finding.number}"
    ids = [
        f"event {finding.event_id}" if finding.event_id else "",
        f"task {finding.task_id}" if finding.task_id else "",
    ]
    records = ", ".join(text for text in ids if text)
    return f"{finding.kind}{position}{f' ({records})' if records else ''}: {finding.text}"


def show_run(run: Run) -> None:
    """Print the events of a run as a tree of causes."""
    children: dict[str | None, list[RunEvent]] = defaultdict(list)
    known = {event.provenance_id for event in run.events}
    for event in run.events:
        parent = event.parent_provenance_id
        # The parent may be in another run, or behind the limit of a truncated one.
        children[parent if parent in known else None].append(event)
    for event in children[None]:
        console.print(_branch(event, children))
    if run.truncated:
        print_line(f"Showing only the first {len(run.events)} events.")


def _branch(event: RunEvent, children: dict[str | None, list[RunEvent]]) -> Tree:
    """Return the tree below an event; a chain stays in one column, only branches are indented."""
    tree = Tree(_label(event))
    following = children[event.provenance_id]
    while len(following) == 1:
        tree.add(_label(following[0]))
        following = children[following[0].provenance_id]
    for child in following:
        tree.add(_branch(child, children))
    return tree


def _label(event: RunEvent) -> Text:
    number = "not numbered" if event.number is None else f"#{event.number}"
    head = Text(strip_controls(f"{event.event_type} "), style="bold")
    return head.append(strip_controls(f"{event.message}  {number}  {event.provenance_id}"), style="not bold")


def show_proof(proof: CheckedEventProof) -> None:
    """Print a proof and the result of its verification."""
    print_line(f"event {proof.provenance_id} is number {proof.number} in the tree of {proof.size} events")
    if not proof.holds:
        console.print(Text(strip_controls(f"The proof is invalid: {proof.reason}."), style="red"))
        return
    if not proof.signed:
        reason = (
            "no key of the log is known here. Pass --verifier."
            if proof.signed is None
            else "no checkpoint signed its root. New events are signed once a minute; a tree of another --size is not."
        )
        console.print(Text(f"The proof is not verified: {reason}", style="red"))
        return
    console.print(f"[green]The proof is valid[/] ({len(proof.hashes)} hashes).", end=" ")
    if proof.event is None:
        reason = "the event itself is in an archive or not for this key, so its id is not proven."
        console.print(f"It covers only the event's hash: {reason}", end=" ")
    print_line("Its root is in a signed checkpoint.")
