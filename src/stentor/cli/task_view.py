"""Tasks for people: records, lists, trails, results."""

from __future__ import annotations

from typing import Any, TextIO

from rich.text import Text
from rich.tree import Tree

from stentor.cli import decision_view, display
from stentor.cli.output import notice, out, plain


class Tokens:
    """Prints the pieces of an answer as they come."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._said = False

    def print(self, text: str) -> None:
        self._said = True
        self._stream.write(plain(text))
        self._stream.flush()

    def end(self) -> bool:
        """Ends the line; answers whether anything was said."""
        if self._said:
            self._stream.write("\n")
        return self._said


def show_submitted(answer: dict[str, Any]) -> None:
    display.say(f"Task {answer['task_id']} is {answer['status']}.")
    show_notice(answer)


def show_notice(answer: dict[str, Any]) -> None:
    """What the service wants known of a task that waits, on standard error."""
    if answer.get("notice"):
        notice(f"Notice: {answer['notice']}.", "yellow")


def show_grade(answer: dict[str, Any]) -> None:
    learned = "what was learned from it is corrected" if answer["learned"] else "nothing was learned from it"
    display.say(f"Task {answer['task_id']} is graded {answer['grade']:g}; {learned}.")


def show_result(record: dict[str, Any], *, said: bool = False) -> None:
    """The result on standard output, unless it was said already; how it ended on standard error."""
    if record["status"] == "completed":
        if not said:
            display.say_value(record["result"])
        return
    error = record["error"]
    reason = f" {error.get('code', '')}: {error.get('message', '')}" if isinstance(error, dict) else ""
    notice(f"Task {record['task_id']} is {record['status']}.{reason}", "red")


def show_task(record: dict[str, Any]) -> None:
    out.print(display.fields({name: value for name, value in record.items() if value not in (None, [], {})}))


def show_list(page: dict[str, Any]) -> None:
    rows = [
        (t["task_id"], t["type"], t["status"], t["assigned_agent"], display.ago(t["created_at"])) for t in page["tasks"]
    ]
    out.print(display.table(("id", "type", "status", "agent", "created"), rows))
    if page["total"] > len(rows):
        out.print(f"{len(rows)} of {page['total']}; --limit shows more.", style="dim")


def show_trail(trail: dict[str, Any]) -> None:
    """The task, the decision with the terms of its formula, and the events below those that led to them."""
    if trail["task"]:
        show_task(trail["task"])
    if trail["routing"]:
        decision_view.show_short(trail["routing"])
    tree = Tree("What happened")
    nodes: dict[str | None, Tree] = {}
    for event in trail["events"]:
        parent = nodes.get(event["parent_provenance_id"], tree)
        nodes[event["provenance_id"]] = parent.add(_line(event))
    out.print(tree)


def _line(event: dict[str, Any]) -> Text:
    clock = event["timestamp"][11:-4]
    return Text.assemble((event["event_type"], "cyan"), (f" {clock} ", "dim"), plain(event["message"]))
