"""The parts of the demo after the first: learning, the librarian, an agent as a model, governance, a tampered run log.

Each part has a function that drives the service and one that renders its result. At the end: the demo's input, sections
of the project's own Markdown.
"""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from importlib import metadata
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import httpx
import msgspec
from rich.console import Group
from rich.panel import Panel
from rich.text import Text

from stentor.cli.output import CommandFailed

ApiCall = Callable[..., Any]
LEARNING_PHASES = (
    ("bold declares higher scores but fails every task", "bold", 20),
    ("bold is fixed, and steady fails every task", "steady", 40),
)
"""Title, the agent that fails, and the number of tasks."""
COMPETITOR_SCORES = {"bold": 0.9, "steady": 0.6}
"""The scores that the agents register with."""


def run_learning(call: ApiCall) -> list[dict[str, Any]]:
    """Submit tasks one by one and end each as the selected worker; return which agent got which task."""
    ids = {name: _register_competitor(call, name, score) for name, score in COMPETITOR_SCORES.items()}
    names = {agent_id: name for name, agent_id in ids.items()}
    phases = []
    for title, failing, tasks in LEARNING_PHASES:
        selected = [_run_task(call, names, failing) for _ in range(tasks)]
        phases.append({"title": title, "chosen": selected})
    return phases


def _register_competitor(call: ApiCall, name: str, score: float) -> str:
    scores = dict.fromkeys(("alignment_score", "accuracy_score", "efficiency_score"), score)
    body = {"name": name, "capabilities": ["triage"], **scores}
    return str(call("POST", "/registry/agents", body)["agent_id"])


def _run_task(call: ApiCall, names: dict[str, str], failing: str) -> str:
    body = {"type": "triage", "input": "Who should answer this?", "required_capabilities": ["triage"]}
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


def render_learning(phases: list[dict[str, Any]]) -> Panel:
    """Render the sequence of selected agents in each phase."""
    lines = []
    for phase in phases:
        selected = phase["chosen"]
        row = "".join("[red]B[/]" if name == "bold" else "[green]s[/]" for name in selected)
        lines.append(f"{phase['title']}: bold gets {selected.count('bold')} of {len(selected)}")
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


def ask_librarian(call: ApiCall, wait: ApiCall) -> list[dict[str, Any]]:
    """Write the documentation to notes and ask the questions; return the answers with citations."""
    runtime = {"kind": "builtin", "name": "librarian"}
    call("POST", "/registry/agents", {"name": "librarian", "capabilities": ["answer"], "runtime": runtime})
    for name, text in read_documents():
        document = {"path": f"docs/{name}.md", "content": text}
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


def _ask(call: ApiCall, wait: ApiCall, question: str) -> dict[str, Any]:
    body = {"type": "answer", "input": {"question": question, "passages": 2}, "required_capabilities": ["answer"]}
    trail = wait(call("POST", "/tasks", body)["task_id"])
    return {"question": question, **trail["task"]["result"]}


def render_librarian(answers: list[dict[str, Any]]) -> Panel:
    """Render questions and answers with the source of each passage."""
    parts: list[Text] = []
    for answer in answers:
        parts += [Text(answer["question"], style="bold"), Text(answer["answer"].replace("\n", " "))]
        parts += [
            Text(f"[{citation['number']}] {citation['path']}: {citation['heading'] or citation['title']}", style="dim")
            for citation in answer["citations"]
        ]
        parts.append(Text(""))
    return Panel(Group(*parts[:-1]), title="The librarian, citing this project's documentation", title_align="left")


CHAT_MODEL = "agent:answer"
CHAT_QUESTION = "What does a receipt say, and how long is it good?"
_SSE_DATA_PREFIX = "data: "


def stream_chat(api: httpx.Client) -> dict[str, Any]:
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


def render_chat(chat: dict[str, Any]) -> Panel:
    """Render the chat completion with the agent and the task behind it."""
    code = f'client.chat.completions.create(model="{chat["model"]}", ...)'
    agent = f"{chat['agent_name']}, in task {chat['task_id']}"
    parts = [Text(code, style="cyan"), Text(chat["question"], style="bold"), Text(chat["answer"].replace("\n", " "))]
    return Panel(Group(*parts, Text(agent, style="dim")), title="An agent as a model", title_align="left")


UPDATE_TIMEOUT_SECONDS = 30
ATTEMPTED_PATHS = ("notes/today.md", "/etc/passwd", "notes/../keys/receipts.key", "../../root/.ssh/id_rsa")
"""What the agent tries to read: only the first is on its allowlist; the third violation quarantines the agent."""


def quarantine_agent(call: ApiCall) -> dict[str, Any]:
    """Let an agent attempt forbidden reads until it is quarantined, and have an admin release it."""
    files = {"name": "files", "paths": ["notes/**"], "operations": ["read"]}
    fields = {"name": "intern", "capabilities": ["tidy"], "sandbox_whitelist": {"tools": [files]}}
    agent = f"/registry/agents/{call('POST', '/registry/agents', fields)['agent_id']}"
    attempts = []
    for path in ATTEMPTED_PATHS:
        request = {"tool": "files", "operation": "read", "path": path}
        allowed = call("POST", f"{agent}/authorize", request)["allowed"]
        attempts.append({"path": path, "allowed": allowed, "status": call("GET", agent)["status"]})
    rationale = {"override_tier": "human", "rationale": "Test of the allowlist."}
    release = call("POST", f"{agent}/clear-violations", rationale)
    return {"tries": attempts, "cleared_by": release["overridden_by"], "status": call("GET", agent)["status"]}


def update_agent(call: ApiCall, second: ApiCall, agent_id: str) -> dict[str, Any]:
    """Propose a patch of an agent with one key, approve it with another, deploy it and roll it back."""
    patch = {"runtime": {"options": {"method": "salience"}}}
    flags = dict.fromkeys(("breaking", "new_dependencies", "touches_policy"), False)
    lines = {"files_modified": [], "lines_added": 1, "lines_deleted": 1, "lines_total": 400}
    proposal = {
        "agent_id": agent_id,
        "update_type": "runtime",
        "description": "Consider all sentences, not only the first ones.",
        "changes": {**lines, **flags, "agent_patch": patch},
    }
    proposed = call("POST", "/governance/updates", proposal)
    path = f"/governance/updates/{proposed['update_id']}"
    second(
        "POST",
        f"{path}/approve",
        {"approved_by": "bert", "rationale": "Summaries were thin.", "override_risk": False},
    )
    deployed = _wait_for_status(call, path, "status", ("deployed", "rolled_back"))
    during = call("GET", f"/registry/agents/{agent_id}")["runtime"]["options"]
    checkpoint_id = call("GET", f"/governance/checkpoints?agent_id={agent_id}")["checkpoints"][0]["checkpoint_id"]
    origin = {"initiated_by": "anna", "reason": "End of the demonstration.", "details": ""}
    started = call("POST", "/governance/rollbacks", {"checkpoint_id": checkpoint_id, **origin})
    rollback = _wait_for_status(
        call, f"/governance/rollbacks/{started['rollback_id']}", "status", ("completed", "failed")
    )
    after = call("GET", f"/registry/agents/{agent_id}")["runtime"]["options"]
    summary = {"tier": proposed["tier"], "reasons": deployed["reasons"], "status": deployed["status"]}
    return summary | {"during": during, "after": after, "verified": rollback["verified"]}


def _wait_for_status(call: ApiCall, path: str, field: str, ends: tuple[str, ...]) -> dict[str, Any]:
    deadline = time.monotonic() + UPDATE_TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        record: dict[str, Any] = call("GET", path)
        if record[field] in ends:
            return record
        time.sleep(0.02)
    raise CommandFailed(f"{path} did not end within {UPDATE_TIMEOUT_SECONDS} s.")


def render_governance(quarantine: dict[str, Any], update: dict[str, Any]) -> Panel:
    """Render the attempts of the quarantined agent and the steps of the update."""
    lines = [
        Text.assemble(
            f"{'allowed' if attempt['allowed'] else 'denied ':<8}",
            (f"read {attempt['path']:<28}", "cyan"),
            (attempt["status"], "bold red" if attempt["status"] == "quarantined" else "dim"),
        )
        for attempt in quarantine["tries"]
    ]
    lines.append(
        Text(f"Released with the key {quarantine['cleared_by']!r}: {quarantine['status']} again.\n", style="dim")
    )
    lines += [
        Text.assemble("Update of ", ("quick", "bold"), f", tier {update['tier']}: {'; '.join(update['reasons'])}."),
        Text(f"Approved with a second key, then {update['status']}: options {update['during']}."),
        Text(f"Rolled back: options {update['after']}, verified {update['verified']}."),
    ]
    return Panel(
        Group(*lines),
        title="Governance: an agent is quarantined, an update approved and rolled back",
        title_align="left",
    )


TAMPER_SQL = "update events set message = 'Nothing happened.' where event_id = ?"
VICTIM_SQL = "select event_id from events where event_type = 'violation_recorded' order by event_id limit 1"


def tamper_with_run_log(folder: Path) -> dict[str, Any]:
    """Verify the run log of the stopped service, edit a row, and verify again. Raises CommandFailed."""
    before = _verify_run_log(folder)
    with closing(sqlite3.connect(folder / "stentor.db")) as database:
        (event_id,) = database.execute(VICTIM_SQL).fetchone()
        database.execute(TAMPER_SQL, (event_id,))
        database.commit()
    after = _verify_run_log(folder)
    if not before["intact"] or after["intact"]:
        raise CommandFailed(f"The run log was verified as {before['intact']}, and after an edit as {after['intact']}.")
    return {"events": before["events"], "before": before, "after": after, "edited": event_id}


def _verify_run_log(folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "stentor", "provenance", "verify", "--json", "--data-dir", str(folder)]
    process = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own program
    try:
        report: dict[str, Any] = json.loads(process.stdout)
    except ValueError:
        raise CommandFailed(f"The verification printed no result: {process.stderr.strip()}") from None
    return report | {"exit_code": process.returncode}


def render_tampering(proof: dict[str, Any]) -> Panel:
    """Render both verifications and the edit between them."""
    first, code = proof["after"]["findings"][0], proof["after"]["exit_code"]
    lines = [
        Text("$ stentor provenance verify", style="cyan"),
        Text(f"{proof['events']} events, intact (exit code {proof['before']['exit_code']})", style="green"),
        Text("$ sqlite3 stentor.db \"update events set message = 'Nothing happened.' where ...\"", style="cyan"),
        Text("$ stentor provenance verify", style="cyan"),
        Text(
            f"{first['kind']}: number {first['number']}, event {first['event_id']} (exit code {code})",
            style="bold red",
        ),
    ]
    return Panel(Group(*lines), title="A tamper-evident run log", title_align="left")


LONG_SECTION_CHARACTERS = 1_200
"""Minimum length of a long section, in characters."""
MIN_SECTION_CHARACTERS = 280
_CODE = re.compile(r"(?ms)^```.*?^```$")
_HEADING = re.compile(r"(?m)^#{1,3} +(.+)$")


class DemoSection(msgspec.Struct, frozen=True):
    """One section of the documentation."""

    title: str
    text: str

    @property
    def is_long(self) -> bool:
        return len(self.text) >= LONG_SECTION_CHARACTERS


def read_sections() -> tuple[list[DemoSection], list[DemoSection]]:
    """Return the long and the short sections of the documentation, or of the package description if not installed."""
    sections = [section for title, text in read_documents() for section in _split_sections(title, text)]
    long = [s for s in sections if s.is_long]
    short = [s for s in sections if not s.is_long]
    return long or short, short or long


def take_sections(pool: list[DemoSection], start: int, count: int) -> list[DemoSection]:
    """Return `count` sections from an index on, wrapping around at the end."""
    return list(islice(cycle(pool), start, start + count))


def read_documents() -> list[tuple[str, str]]:
    """Return name and text of each page of the documentation."""
    root = Path(__file__).parents[4]
    paths = [
        root / "README.md",
        *sorted((root / "docs").glob("*.md")),
        *sorted((root / "docs/decisions").glob("*.md")),
    ]
    if not (root / "pyproject.toml").exists():
        return [("README", str(metadata.metadata("stentor")["Description"] or ""))]
    return [(path.stem, path.read_text()) for path in paths if path.exists()]


def _split_sections(document: str, text: str) -> list[DemoSection]:
    """Split a page into sections without their code blocks, which may show output of an earlier demo."""
    parts = _HEADING.split(_CODE.sub("", text))
    pairs = zip(parts[1::2], parts[2::2], strict=True)
    return [
        DemoSection(f"{document}: {title}", body.strip())
        for title, body in pairs
        if len(body.strip()) >= MIN_SECTION_CHARACTERS
    ]
