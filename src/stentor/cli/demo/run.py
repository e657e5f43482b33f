"""Run the demo: start a temporary service, drive it over HTTP, stop it and print the report (`report`)."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from stentor.cli.client.responses import read_fields
from stentor.cli.demo import governance_scenarios, scenarios
from stentor.cli.demo.report import DemoReport, print_report
from stentor.cli.demo.sections import DemoSection, read_sections, take_sections
from stentor.cli.output import CommandFailed, console, error_console, print_json
from stentor.core.jsontext import JsonObject

TASK_TIMEOUT_SECONDS = 180
STOP_SIGNALS = (signal.SIGTERM, signal.SIGHUP)
"""Besides SIGINT; SIGHUP arrives when the terminal closes."""
ADMIN_NAMES = ("ANNA", "BERT")
"""Two admins, because the proposer of an update may not approve it."""
AGENTS: dict[str, JsonObject] = {
    "quick": {
        "capabilities": ["summarize"],
        "alignment_score": 0.70,
        "accuracy_score": 0.70,
        "efficiency_score": 0.95,
        "runtime": {"kind": "builtin", "name": "summarizer", "options": {"method": "lead"}},
    },
    "careful": {
        "capabilities": ["summarize", "summarize-long"],
        "alignment_score": 0.70,
        "accuracy_score": 0.75,
        "efficiency_score": 0.60,
        "runtime": {"kind": "builtin", "name": "summarizer", "options": {"method": "salience"}},
    },
    "keyworder": {
        "capabilities": ["keywords"],
        "alignment_score": 0.60,
        "accuracy_score": 0.65,
        "efficiency_score": 0.70,
        "runtime": {"kind": "worker"},
    },
}


def run_demo(rounds: int, *, as_json: bool, stays_open: bool) -> None:
    """Run the demo and print its report. Raises CommandFailed if a task does not complete.

    With `stays_open` the service then continues with its dashboard, until Ctrl-C.
    """
    for number in STOP_SIGNALS:
        # `nohup` ignores SIGHUP.
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _stop)
    keys = ["demo_" + secrets.token_urlsafe(24) for _ in range(2)]
    with tempfile.TemporaryDirectory(prefix="stentor-demo-") as temporary:
        folder, edited = Path(temporary, "data"), Path(temporary, "edited")
        with _service(folder, keys) as ready:
            address = ready["gateway"]
            error_console.print(f"A temporary service listens on [cyan]{address}[/]; its data is in {folder}.")
            figures = _tour(address, keys, rounds)
        error_console.print("The service is stopped. Verifying its run log, editing a row, and verifying again.")
        # Edits a copy: the dashboard continues with the original log.
        shutil.copytree(folder, edited)
        figures |= {"proof": governance_scenarios.tamper_with_run_log(edited)}
        if as_json:
            print_json(figures)
        else:
            print_report(console, read_fields(figures, DemoReport))
        if stays_open:
            _keep_open(folder, keys)


def _stop(*_: object) -> None:
    """End the demo as Ctrl-C does, so that its service is stopped and its folder deleted."""
    for number in STOP_SIGNALS:
        # A closing terminal may send more than one signal.
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


def _keep_open(folder: Path, keys: list[str]) -> None:
    """Serve the data of the demo until Ctrl-C."""
    try:
        with _service(folder, keys) as ready:
            with create_client(ready["gateway"], keys[0]) as api:
                agents = _call(api, "GET", "/registry/agents?capability=keywords")["agents"]
            with _worker(ready["gateway"], keys[0], agents[0]["agent_id"]):
                error_console.print(f"\nThe dashboard of this demo: [bold cyan]{ready['dashboard']}[/]")
                error_console.print(f"Sign in with the key:       [bold]{keys[0]}[/]")
                error_console.print("Ctrl-C ends it and deletes its data.")
                while True:
                    time.sleep(3600)
    except KeyboardInterrupt:
        error_console.print("\nThe demo's service is stopped and its data deleted.")


def _tour(address: str, keys: list[str], rounds: int) -> JsonObject:
    """Run all parts that need the running service; return their results."""
    with create_client(address, keys[0]) as api, create_client(address, keys[1]) as second:
        call = partial(_call, api)
        agents = {
            name: str(call("POST", "/registry/agents", {"name": name, **fields})["agent_id"])
            for name, fields in AGENTS.items()
        }
        with _worker(address, keys[0], agents["keyworder"]):
            rows = _drive(api, rounds)
        error_console.print("Two agents compete for sixty more tasks and take turns failing.")
        phases = scenarios.run_learning(call)
        error_console.print("Writing the documentation to notes and asking the librarian about it.")
        answers = scenarios.ask_librarian(call, partial(_wait, api))
        figures = _collect_report(api, agents, rows) | {"answers": answers, "model": scenarios.stream_chat(api)}
        figures |= {"learning": phases}
        error_console.print(
            "An agent attempts forbidden access; an update is approved with a second key and rolled back."
        )
        figures |= {"caught": governance_scenarios.quarantine_agent(call)}
        figures |= {"update": governance_scenarios.update_agent(call, partial(_call, second), agents["quick"])}
        call("POST", "/provenance/checkpoint")
        return figures


def create_client(address: str, key: str) -> httpx.Client:
    # A proxy from the environment could not reach this machine, and would receive the key.
    return httpx.Client(base_url=f"{address}/api/v1", headers={"X-API-Key": key}, timeout=30, trust_env=False)


def _drive(api: httpx.Client, rounds: int) -> list[JsonObject]:
    """Run rounds of two short summaries, a long one and a keyword task; routing learns from each round."""
    long, short = read_sections()
    rows: list[JsonObject] = []
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=error_console) as progress:
        bar = progress.add_task("Running tasks", total=rounds * 4)
        for number in range(rounds):
            bodies = [_summary(s, "summarize", 1) for s in take_sections(short, number * 2, 2)]
            bodies += [_summary(s, "summarize-long", 2) for s in take_sections(long, number, 1)]
            bodies += [_keywords(s) for s in take_sections(short, number, 1)]
            submitted = [(body, _call(api, "POST", "/tasks", body)["task_id"]) for body in bodies]
            for body, task_id in submitted:
                rows.append({"round": number + 1, "capability": body["required_capabilities"][0]} | _wait(api, task_id))
                progress.advance(bar)
    return rows


def _summary(section: DemoSection, capability: str, sentences: int) -> JsonObject:
    text = {"text": section.text, "sentences": sentences}
    return {"type": "summarize", "input": text, "required_capabilities": [capability], **_title_tag(section)}


def _keywords(section: DemoSection) -> JsonObject:
    text = {"text": section.text, "top": 5}
    return {"type": "keywords", "input": text, "required_capabilities": ["keywords"], **_title_tag(section)}


def _title_tag(section: DemoSection) -> JsonObject:
    title = "".join(c for c in section.title if c.isprintable())[:200]
    return {"title": title or "Untitled", "metadata": {"tags": [title]}}


def _wait(api: httpx.Client, task_id: str) -> JsonObject:
    """Return a completed task with its events. Raises CommandFailed if it fails or takes too long."""
    deadline = time.monotonic() + TASK_TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        trail = _call(api, "GET", f"/tasks/{task_id}/activity")
        if trail["status"] == "completed":
            return dict(trail)
        if trail["status"] not in ("queued", "executing"):
            raise CommandFailed(f"Task {task_id} is {trail['status']}: {trail['task']['error']}")
        time.sleep(0.01)
    raise CommandFailed(f"Task {task_id} did not complete within {TASK_TIMEOUT_SECONDS} s.")


def _call(api: httpx.Client, method: str, path: str, body: Any = None) -> Any:
    response = api.request(method, path, json=body)
    if not response.is_success:
        raise CommandFailed(f"{method} {path} returned {response.status_code}: {response.text}")
    return response.json()


def _collect_report(api: httpx.Client, agents: dict[str, str], rows: list[JsonObject]) -> JsonObject:
    """Return the figures of the report: the task rows, and the weights and trust scores from the service."""
    weights = {n: api.get("/hebbian/weights", params={"agent_id": i}).json()["weights"] for n, i in agents.items()}
    trust = {n: api.get(f"/registry/agents/{i}").json()["trust_score"] for n, i in agents.items()}
    return {"tasks": len(rows), "weights": weights, "trust": trust, "rows": rows}


@contextmanager
def _service(folder: Path, keys: list[str]) -> Iterator[JsonObject]:
    """Run `stentor serve` on free ports and yield its addresses; always stops it."""
    # Settings of the user must not leak into the demo's service.
    inherited = {
        name: value for name, value in os.environ.items() if not name.startswith(("SERVICE_", "MCP_", "SKIP_"))
    }
    environ = {
        **inherited,
        **{
            f"SERVICE_API_KEY_{n}": f"{key}:admin:read,write,delete,admin"
            for n, key in zip(ADMIN_NAMES, keys, strict=True)
        },
        # Empty means none: a stentor.toml in the current folder must be ignored.
        "SERVICE_CONFIG_FILE": "",
        "SERVICE_RATE_LIMIT_PER_MINUTE": "0",
        "SERVICE_BUILTIN_AGENTS": "false",
        "SERVICE_LOG_LEVEL": "warning",
    }
    command = [
        sys.executable,
        "-m",
        "stentor",
        "serve",
        "--json",
        "--data-dir",
        str(folder),
        "--gateway-port",
        "0",
    ]
    with _process(command, environ, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        # The service prints its addresses when it is ready, and an error or nothing if it cannot start.
        ready = json.loads(process.stdout.readline() or "{}")
        if "gateway" not in ready:
            raise CommandFailed("The service did not start; the reason is printed above.")
        yield ready


@contextmanager
def _worker(address: str, key: str, agent_id: str) -> Iterator[None]:
    environ = {**os.environ, "DEMO_URL": address, "DEMO_KEY": key, "DEMO_AGENT": agent_id}
    with _process([sys.executable, "-m", "stentor.cli.demo.worker"], environ):
        yield


@contextmanager
def _process(command: list[str], environ: dict[str, str], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    def ignore_interrupts() -> None:
        # Ctrl-C reaches the children too. One that is still importing would print a traceback.
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    with subprocess.Popen(command, env=environ, preexec_fn=ignore_interrupts, **options) as process:  # noqa: S603 - our own program
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
