"""Shows that routing learns: an agent that fails is left, and gets tasks again when it does better than its peer.

The demo's second part: the project's documentation becomes notes, and the librarian answers from them.

The demo's third part: an agent as a model, asked as any OpenAI client asks.

The demo's fourth part: an agent that is caught, and an update that is approved, deployed and rolled back.

The demo's last part: the run log is verified, then one row is edited behind the service's back.

The demo's input: sections of the project's own Markdown.
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
    ("bold promises more, and fails every task", "bold", 20),
    ("bold is mended, and steady breaks", "steady", 40),
)
"""What happens, who fails from then on, and for how many tasks."""
COMPETITOR_SCORES = {"bold": 0.9, "steady": 0.6}
"""The scores that they register with."""


def run_learning(call: ApiCall) -> list[dict[str, Any]]:
    """Submit the tasks one after the other and end each as the worker that was chosen; answers who got which."""
    ids = {name: _register_competitor(call, name, score) for name, score in COMPETITOR_SCORES.items()}
    names = {agent_id: name for name, agent_id in ids.items()}
    phases = []
    for title, failing, tasks in LEARNING_PHASES:
        chosen = [_run_task(call, names, failing) for _ in range(tasks)]
        phases.append({"title": title, "chosen": chosen})
    return phases


def _register_competitor(call: ApiCall, name: str, score: float) -> str:
    scores = dict.fromkeys(("alignment_score", "accuracy_score", "efficiency_score"), score)
    body = {"name": name, "capabilities": ["triage"], **scores}
    return str(call("POST", "/registry/agents", body)["agent_id"])


def _run_task(call: ApiCall, names: dict[str, str], failing: str) -> str:
    body = {"type": "triage", "input": "Who should answer this?", "required_capabilities": ["triage"]}
    task_id = call("POST", "/tasks", body)["task_id"]
    agent_id = call("GET", f"/tasks/{task_id}")["assigned_agent"]
    (claim,) = call("POST", f"/agents/{agent_id}/claims", {})["tasks"]
    epoch = {"epoch": claim["epoch"]}
    if names[agent_id] == failing:
        call("POST", f"/tasks/{task_id}/fail", epoch | {"error": {"message": "broken"}})
    else:
        call("POST", f"/tasks/{task_id}/complete", epoch | {"result": "support"})
    return names[agent_id]


def render_learning(phases: list[dict[str, Any]]) -> Panel:
    lines = []
    for phase in phases:
        chosen = phase["chosen"]
        row = "".join("[red]B[/]" if name == "bold" else "[green]s[/]" for name in chosen)
        lines.append(f"{phase['title']}: bold gets {chosen.count('bold')} of {len(chosen)}")
        lines.append(row)
    lines.append("[dim]B is bold, s is steady, in the order of the tasks.[/]")
    return Panel("\n".join(lines), title="An agent that fails is left, and comes back", title_align="left", width=80)


LIBRARIAN_QUESTIONS = (
    "What happens to a task when the lease of its worker ends?",
    "Why are transactions plain functions?",
)
INDEX_TIMEOUT_SECONDS = 30


def ask_librarian(call: ApiCall, wait: ApiCall) -> list[dict[str, Any]]:
    """Write the notes, ask the questions; each answer with its citations."""
    runtime = {"kind": "builtin", "name": "librarian"}
    call("POST", "/registry/agents", {"name": "librarian", "capabilities": ["answer"], "runtime": runtime})
    for name, text in read_documents():
        document = {"path": f"docs/{name}.md", "content": text}
        call("POST", "/memory/write", {"operation": "write", "document": document})
    _wait_until_indexed(call)
    return [_answer(call, wait, question) for question in LIBRARIAN_QUESTIONS]


def _wait_until_indexed(call: ApiCall) -> None:
    """Vectors are made in the background; without them there are still the words."""
    until = time.monotonic() + INDEX_TIMEOUT_SECONDS
    while time.monotonic() < until:
        if "wait" not in call("GET", "/memory/health")["components"]["vector_store"]["detail"]:
            return
        time.sleep(0.05)


def _answer(call: ApiCall, wait: ApiCall, question: str) -> dict[str, Any]:
    body = {"type": "answer", "input": {"question": question, "passages": 2}, "required_capabilities": ["answer"]}
    trail = wait(call("POST", "/tasks", body)["task_id"])
    return {"question": question, **trail["task"]["result"]}


def render_librarian(answers: list[dict[str, Any]]) -> Panel:
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


CHAT_MODEL = "agent:answer"
CHAT_QUESTION = "What does a receipt say, and how long is it good?"
_SSE_DATA_PREFIX = "data: "


def stream_chat(api: httpx.Client) -> dict[str, Any]:
    """Stream a chat completion of the best agent that answers. Raises CommandFailed."""
    body = {"model": CHAT_MODEL, "messages": [{"role": "user", "content": CHAT_QUESTION}], "stream": True}
    with api.stream("POST", str(api.base_url.join("/v1/chat/completions")), json=body) as answer:
        if not answer.is_success:
            raise CommandFailed(f"{CHAT_MODEL} answered {answer.status_code}: {answer.read().decode()}")
        chunks = [line[len(_SSE_DATA_PREFIX) :] for line in answer.iter_lines() if line.startswith(_SSE_DATA_PREFIX)]
    read = [json.loads(chunk) for chunk in chunks if chunk != "[DONE]"]
    if "[DONE]" not in chunks or any("error" in chunk for chunk in read):
        raise CommandFailed(f"The stream of {CHAT_MODEL} broke off: {chunks[-1]}")
    said = "".join(choice["delta"].get("content") or "" for chunk in read for choice in chunk["choices"])
    return {"question": CHAT_QUESTION, "model": read[0]["model"], "answer": said, **read[0]["stentor"]}


def render_chat(told: dict[str, Any]) -> Panel:
    asked = f'client.chat.completions.create(model="{told["model"]}", ...)'
    who = f"{told['agent_name']}, in task {told['task_id']}"
    parts = [Text(asked, style="cyan"), Text(told["question"], style="bold"), Text(told["answer"].replace("\n", " "))]
    return Panel(Group(*parts, Text(who, style="dim")), title="An agent as a model", title_align="left")


UPDATE_TIMEOUT_SECONDS = 30
ATTEMPTED_PATHS = ("notes/today.md", "/etc/passwd", "notes/../keys/receipts.key", "../../root/.ssh/id_rsa")
"""What the agent tries to read: the first lies within its allowlist, the third of the others is one too many."""


def quarantine_agent(call: ApiCall) -> dict[str, Any]:
    """An agent reads what it may not, is quarantined, and cleared by an admin."""
    files = {"name": "files", "paths": ["notes/**"], "operations": ["read"]}
    fields = {"name": "intern", "capabilities": ["tidy"], "sandbox_whitelist": {"tools": [files]}}
    agent = f"/registry/agents/{call('POST', '/registry/agents', fields)['agent_id']}"
    tries = []
    for path in ATTEMPTED_PATHS:
        asked = {"tool": "files", "operation": "read", "path": path}
        allowed = call("POST", f"{agent}/authorize", asked)["allowed"]
        tries.append({"path": path, "allowed": allowed, "status": call("GET", agent)["status"]})
    rationale = {"override_tier": "human", "rationale": "It was a test of the allowlist."}
    cleared = call("POST", f"{agent}/clear-violations", rationale)
    return {"tries": tries, "cleared_by": cleared["overridden_by"], "status": call("GET", agent)["status"]}


def update_agent(call: ApiCall, second: ApiCall, agent_id: str) -> dict[str, Any]:
    """A patch of an agent: proposed with one key, approved with another, deployed, and rolled back."""
    patch = {"runtime": {"options": {"method": "salience"}}}
    flags = dict.fromkeys(("breaking", "new_dependencies", "touches_policy"), False)
    lines = {"files_modified": [], "lines_added": 1, "lines_deleted": 1, "lines_total": 400}
    wanted = {
        "agent_id": agent_id,
        "update_type": "runtime",
        "description": "Look at all sentences, not at the first ones.",
        "changes": {**lines, **flags, "agent_patch": patch},
    }
    proposed = call("POST", "/governance/updates", wanted)
    path = f"/governance/updates/{proposed['update_id']}"
    second(
        "POST", f"{path}/approve", {"approved_by": "bert", "rationale": "Summaries were thin.", "override_risk": False}
    )
    deployed = _wait_for_status(call, path, "status", ("deployed", "rolled_back"))
    during = call("GET", f"/registry/agents/{agent_id}")["runtime"]["options"]
    taken = call("GET", f"/governance/checkpoints?agent_id={agent_id}")["checkpoints"][0]["checkpoint_id"]
    said = {"initiated_by": "anna", "reason": "It was a demonstration.", "details": ""}
    back = call("POST", "/governance/rollbacks", {"checkpoint_id": taken, **said})
    rollback = _wait_for_status(call, f"/governance/rollbacks/{back['rollback_id']}", "status", ("completed", "failed"))
    after = call("GET", f"/registry/agents/{agent_id}")["runtime"]["options"]
    shown = {"tier": proposed["tier"], "reasons": deployed["reasons"], "status": deployed["status"]}
    return shown | {"during": during, "after": after, "verified": rollback["verified"]}


def _wait_for_status(call: ApiCall, path: str, field: str, ends: tuple[str, ...]) -> dict[str, Any]:
    until = time.monotonic() + UPDATE_TIMEOUT_SECONDS
    while time.monotonic() < until:
        found: dict[str, Any] = call("GET", path)
        if found[field] in ends:
            return found
        time.sleep(0.02)
    raise CommandFailed(f"{path} did not come to an end within {UPDATE_TIMEOUT_SECONDS} s.")


def render_governance(found: dict[str, Any], update: dict[str, Any]) -> Panel:
    lines = [
        Text.assemble(
            f"{'allowed' if one['allowed'] else 'denied ':<8}",
            (f"read {one['path']:<28}", "cyan"),
            (one["status"], "bold red" if one["status"] == "quarantined" else "dim"),
        )
        for one in found["tries"]
    ]
    lines.append(Text(f"Cleared by the key {found['cleared_by']!r}: {found['status']} again.\n", style="dim"))
    lines += [
        Text.assemble("An update of ", ("quick", "bold"), f", tier {update['tier']}: {'; '.join(update['reasons'])}."),
        Text(f"Approved by a second key, then {update['status']}: options {update['during']}."),
        Text(f"Rolled back: options {update['after']}, verified {update['verified']}."),
    ]
    return Panel(Group(*lines), title="Governed: an agent is caught, an update approved and undone", title_align="left")


TAMPER_SQL = "update events set message = 'Nothing happened.' where event_id = ?"
VICTIM_SQL = "select event_id from events where event_type = 'violation_recorded' order by event_id limit 1"


def tamper_with_run_log(folder: Path) -> dict[str, Any]:
    """Verify, edit, verify again; the service is down. Raises CommandFailed when the log is not as it should be."""
    before = _verify_run_log(folder)
    with closing(sqlite3.connect(folder / "stentor.db")) as database:
        (event_id,) = database.execute(VICTIM_SQL).fetchone()
        database.execute(TAMPER_SQL, (event_id,))
        database.commit()
    after = _verify_run_log(folder)
    if not before["intact"] or after["intact"]:
        raise CommandFailed(f"The run log was verified as {before['intact']}, and with an edit as {after['intact']}.")
    return {"events": before["events"], "before": before, "after": after, "edited": event_id}


def _verify_run_log(folder: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "stentor", "provenance", "verify", "--json", "--data-dir", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - our own program
    try:
        found: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        raise CommandFailed(f"The verification gave no answer: {done.stderr.strip()}") from None
    return found | {"exit_code": done.returncode}


def render_tampering(told: dict[str, Any]) -> Panel:
    first, code = told["after"]["findings"][0], told["after"]["exit_code"]
    lines = [
        Text("$ stentor provenance verify", style="cyan"),
        Text(f"{told['events']} events, intact (exit code {told['before']['exit_code']})", style="green"),
        Text("$ sqlite3 stentor.db \"update events set message = 'Nothing happened.' where ...\"", style="cyan"),
        Text("$ stentor provenance verify", style="cyan"),
        Text(
            f"{first['kind']}: number {first['number']}, event {first['event_id']} (exit code {code})",
            style="bold red",
        ),
    ]
    return Panel(Group(*lines), title="A log that can be proven", title_align="left")


LONG_SECTION_CHARACTERS = 1_200
"""Characters from which a section counts as long."""
MIN_SECTION_CHARACTERS = 280
_CODE = re.compile(r"(?ms)^```.*?^```$")
_HEADING = re.compile(r"(?m)^#{1,3} +(.+)$")


class DemoSection(msgspec.Struct, frozen=True):
    title: str
    text: str

    @property
    def is_long(self) -> bool:
        return len(self.text) >= LONG_SECTION_CHARACTERS


def read_sections() -> tuple[list[DemoSection], list[DemoSection]]:
    """Long and short sections of the documentation; of the package's description when it is not at hand."""
    found = [section for title, text in read_documents() for section in _split_sections(title, text)]
    long = [s for s in found if s.is_long]
    short = [s for s in found if not s.is_long]
    return long or short, short or long


def take_sections(pool: list[DemoSection], start: int, count: int) -> list[DemoSection]:
    """`count` sections from a place on, beginning again at the end."""
    return list(islice(cycle(pool), start, start + count))


def read_documents() -> list[tuple[str, str]]:
    """Name and text of each page."""
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
    """Prose alone: no code, and so not the output of an earlier demo either."""
    parts = _HEADING.split(_CODE.sub("", text))
    pairs = zip(parts[1::2], parts[2::2], strict=True)
    return [
        DemoSection(f"{document}: {title}", body.strip())
        for title, body in pairs
        if len(body.strip()) >= MIN_SECTION_CHARACTERS
    ]
