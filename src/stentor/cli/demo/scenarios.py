"""Parts of the demo: learning, the librarian, and an agent as a model; see also `governance_scenarios`.

Each part has a function that drives the service and returns the document for `--json`, a class with the fields of that
document that are printed, and a function that renders them.
"""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Callable
from typing import Any

import httpx
import msgspec
from rich.console import Group
from rich.panel import Panel
from rich.text import Text

from stentor.cli.demo.sections import read_documents
from stentor.cli.output import CommandFailed
from stentor.core.jsontext import JsonObject

ApiCall = Callable[..., Any]
LEARNING_PHASES = (
    ("bold declares higher scores but fails every task", "bold", 20),
    ("bold is fixed, and steady fails every task", "steady", 40),
)
"""Title, the agent that fails, and the number of tasks."""
TICKETS = ("I cannot sign in", "The invoice is wrong", "The parcel has not arrived", "How do I cancel my order?")
COMPETITOR_SCORES = {"bold": 0.9, "steady": 0.6}
"""The scores that the agents register with."""


class LearningPhase(msgspec.Struct, frozen=True):
    """The agents that got the tasks of a phase, in order."""

    title: str
    chosen: list[str]


def run_learning(call: ApiCall) -> list[JsonObject]:
    """Submit tasks one by one and end each as the selected worker; return which agent got which task."""
    ids = {name: _register_competitor(call, name, score) for name, score in COMPETITOR_SCORES.items()}
    names = {agent_id: name for name, agent_id in ids.items()}
    numbers = itertools.count(1)
    phases = []
    for title, failing, tasks in LEARNING_PHASES:
        selected = [_run_task(call, names, failing, next(numbers)) for _ in range(tasks)]
        phases.append({"title": title, "chosen": selected})
    return phases


def _register_competitor(call: ApiCall, name: str, score: float) -> str:
    scores = dict.fromkeys(("alignment_score", "accuracy_score", "efficiency_score"), score)
    body = {"name": name, "capabilities": ["triage"], **scores}
    return str(call("POST", "/registry/agents", body)["agent_id"])


def _run_task(call: ApiCall, names: dict[str, str], failing: str, number: int) -> str:
    # Each has a distinct title in lists.
    ticket = f"Ticket {number}: {TICKETS[number % len(TICKETS)]}"
    body = {"type": "triage", "input": ticket, "required_capabilities": ["triage"]}
    task_id = call("POST", "/tasks", body)["task_id"]
    agent_id = call("GET", f"/tasks/{task_id}")["assigned_agent"]
    # The demo acts as the worker itself, so that it decides which tasks fail.
    (claim,) = call("POST", f"/agents/{agent_id}/claims", {})["tasks"]
    epoch = {"epoch": claim["epoch"]}
    if names[agent_id] == failing:
        call("POST", f"/tasks/{task_id}/fail", epoch | {"error": {"message": "broken"}})
    else:
        call("POST", f"/tasks/{task_id}/complete", epoch | {"result": "support"})
    return names[agent_id]


def render_learning(phases: list[LearningPhase]) -> Panel:
    """Render the sequence of selected agents in each phase."""
    lines = []
    for phase in phases:
        row = "".join("[red]B[/]" if name == "bold" else "[green]s[/]" for name in phase.chosen)
        lines.append(f"{phase.title}: bold gets {phase.chosen.count('bold')} of {len(phase.chosen)}")
        lines.append(row)
    lines.append("[dim]B: bold, s: steady, in the order of the tasks.[/]")
    return Panel(
        "\n".join(lines), title="A failing agent loses its tasks, and regains them later", title_align="left", width=80
    )


LIBRARIAN_QUESTIONS = (
    "What happens to a task when the lease of its worker ends?",
    "Why are transactions plain functions?",
)
INDEX_TIMEOUT_SECONDS = 30
_LINK = re.compile(r"\[([^\]]+)\]\([^)]*\)")


class Citation(msgspec.Struct, frozen=True):
    """The source of a passage; `heading` is empty outside any section."""

    number: int
    path: str
    title: str
    heading: str | None


class LibrarianAnswer(msgspec.Struct, frozen=True):
    question: str
    answer: str
    citations: list[Citation]


def ask_librarian(call: ApiCall, wait: ApiCall) -> list[JsonObject]:
    """Write the documentation to notes and ask the questions; return the answers with citations."""
    runtime = {"kind": "builtin", "name": "librarian"}
    call("POST", "/registry/agents", {"name": "librarian", "capabilities": ["answer"], "runtime": runtime})
    for path, text in read_documents():
        document = {"path": path, "content": text}
        call("POST", "/memory/write", {"operation": "write", "document": document})
    _wait_until_indexed(call)
    return [_ask(call, wait, question) for question in LIBRARIAN_QUESTIONS]


def _wait_until_indexed(call: ApiCall) -> None:
    """Wait for the embeddings, which are computed in the background; after a timeout keyword search must do."""
    deadline = time.monotonic() + INDEX_TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        if "wait" not in call("GET", "/memory/health")["components"]["vector_store"]["detail"]:
            return
        time.sleep(0.05)


def _ask(call: ApiCall, wait: ApiCall, question: str) -> JsonObject:
    body = {"type": "answer", "input": {"question": question, "passages": 2}, "required_capabilities": ["answer"]}
    trail = wait(call("POST", "/tasks", body)["task_id"])
    return {"question": question, **trail["task"]["result"]}


def render_librarian(answers: list[LibrarianAnswer]) -> Panel:
    """Render questions and answers with the source of each passage."""
    parts: list[Text] = []
    for answer in answers:
        parts += [Text(answer.question, style="bold"), Text(_plain(answer.answer))]
        parts += [
            Text(f"[{citation.number}] {citation.path}: {_plain(citation.heading or citation.title)}", style="dim")
            for citation in answer.citations
        ]
        parts.append(Text(""))
    return Panel(Group(*parts[:-1]), title="The librarian, citing this project's documentation", title_align="left")


def _plain(markdown: str) -> str:
    """Return a passage of Markdown as text of one line: links as their texts, without marks for bold and code."""
    return " ".join(_LINK.sub(r"\1", markdown).replace("**", "").replace("`", "").split())


CHAT_MODEL = "agent:answer"
CHAT_QUESTION = "How are conflicting edits of a note merged?"
_SSE_DATA_PREFIX = "data: "


class ChatAnswer(msgspec.Struct, frozen=True):
    """A chat completion with the agent and the task behind it."""

    question: str
    model: str
    answer: str
    agent_name: str
    task_id: str


def stream_chat(api: httpx.Client) -> JsonObject:
    """Stream a chat completion from the best agent with the capability `answer`. Raises CommandFailed."""
    body = {"model": CHAT_MODEL, "messages": [{"role": "user", "content": CHAT_QUESTION}], "stream": True}
    with api.stream("POST", str(api.base_url.join("/v1/chat/completions")), json=body) as response:
        if not response.is_success:
            raise CommandFailed(f"{CHAT_MODEL} returned {response.status_code}: {response.read().decode()}")
        chunks = [line[len(_SSE_DATA_PREFIX) :] for line in response.iter_lines() if line.startswith(_SSE_DATA_PREFIX)]
    messages = [json.loads(chunk) for chunk in chunks if chunk != "[DONE]"]
    if "[DONE]" not in chunks or any("error" in message for message in messages):
        raise CommandFailed(f"The stream of {CHAT_MODEL} ended early: {chunks[-1]}")
    text = "".join(choice["delta"].get("content") or "" for message in messages for choice in message["choices"])
    return {"question": CHAT_QUESTION, "model": messages[0]["model"], "answer": text, **messages[0]["stentor"]}


def render_chat(chat: ChatAnswer) -> Panel:
    """Render the chat completion with the agent and the task behind it."""
    code = f'client.chat.completions.create(model="{chat.model}", ...)'
    agent = f"{chat.agent_name}, in task {chat.task_id}"
    parts = [Text(code, style="cyan"), Text(chat.question, style="bold"), Text(_plain(chat.answer))]
    return Panel(Group(*parts, Text(agent, style="dim")), title="An agent as a model", title_align="left")
