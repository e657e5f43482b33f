"""The demo's second part: the project's documentation becomes notes, and the librarian answers from them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rich.console import Group
from rich.panel import Panel
from rich.text import Text

from stentor.cli.demo import texts

QUESTIONS = (
    "What happens to a task when the lease of its worker ends?",
    "Why are transactions plain functions?",
)
PATIENCE_SECONDS = 30
Call = Callable[..., Any]


def ask(call: Call, wait: Call) -> list[dict[str, Any]]:
    """Write the notes, ask the questions; each answer with its citations."""
    runtime = {"kind": "builtin", "name": "librarian"}
    call("POST", "/registry/agents", {"name": "librarian", "capabilities": ["answer"], "runtime": runtime})
    for name, text in texts.documents():
        document = {"path": f"docs/{name}.md", "content": text}
        call("POST", "/memory/write", {"operation": "write", "document": document})
    _until_indexed(call)
    return [_answer(call, wait, question) for question in QUESTIONS]


def _until_indexed(call: Call) -> None:
    """Vectors are made in the background; without them there are still the words."""
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until:
        if "wait" not in call("GET", "/memory/health")["components"]["vector_store"]["detail"]:
            return
        time.sleep(0.05)


def _answer(call: Call, wait: Call, question: str) -> dict[str, Any]:
    body = {"type": "answer", "input": {"question": question, "passages": 2}, "required_capabilities": ["answer"]}
    trail = wait(call("POST", "/tasks", body)["task_id"])
    return {"question": question, **trail["task"]["result"]}


def show(answers: list[dict[str, Any]]) -> Panel:
    """Questions and answers, with the place of each passage."""
    parts: list[Text] = []
    for answer in answers:
        parts += [Text(answer["question"], style="bold"), Text(answer["answer"].replace("\n", " "))]
        parts += [
            Text(f"[{one['number']}] {one['path']}: {one['heading'] or one['title']}", style="dim")
            for one in answer["citations"]
        ]
        parts.append(Text(""))
    return Panel(Group(*parts[:-1]), title="The librarian, citing this project's documentation", title_align="left")
