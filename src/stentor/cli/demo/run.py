"""Runs the demo: starts a service of its own, drives it over HTTP, and stops it again."""

from __future__ import annotations

import json
import os
import secrets
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

from stentor.cli.demo import governed, learning, library, model, proof, report, texts
from stentor.cli.output import CommandFailed, err, out, print_json

PATIENCE_SECONDS = 30
NAMES = ("ANNA", "BERT")
"""Of two admins, because who proposes an update does not approve it."""
AGENTS: dict[str, dict[str, Any]] = {
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


def run(rounds: int, *, as_json: bool) -> None:
    """The whole demo. Raises CommandFailed when a task does not complete."""
    keys = ["demo_" + secrets.token_urlsafe(24) for _ in range(2)]
    with tempfile.TemporaryDirectory(prefix="stentor-demo-") as folder:
        with _service(Path(folder), keys) as address:
            err.print(f"A fresh service answers on [cyan]{address}[/], its data is in {folder}.")
            figures = _tour(address, keys, rounds)
        err.print("The service is down; its run log is verified, edited, and verified again.")
        figures |= {"proof": proof.tamper(Path(folder))}
    if as_json:
        print_json(figures)
    else:
        report.show(out, figures)


def _tour(address: str, keys: list[str], rounds: int) -> dict[str, Any]:
    """All that is shown while the service runs, as figures."""
    with _client(address, keys[0]) as api, _client(address, keys[1]) as second:
        call = partial(_call, api)
        agents = {name: _register(api, name, fields) for name, fields in AGENTS.items()}
        with _worker(address, keys[0], agents["keyworder"]):
            rows = _drive(api, rounds)
        err.print("Two agents compete for sixty tasks, and fail in turns.")
        phases = learning.watch(call)
        err.print("The documentation becomes notes, and the librarian is asked about it.")
        answers = library.ask(call, partial(_wait, api))
        figures = report.collect(api, agents, rows) | {"answers": answers, "model": model.talk(api)}
        figures |= {"learning": phases}
        err.print("An agent reaches for what it may not have; an update is approved by a second key and undone.")
        figures |= {"caught": governed.caught(call)}
        figures |= {"update": governed.updated(call, partial(_call, second), agents["quick"])}
        call("POST", "/provenance/checkpoint")
        return figures


def _client(address: str, key: str) -> httpx.Client:
    return httpx.Client(base_url=f"{address}/api/v1", headers={"X-API-Key": key}, timeout=30)


def _register(api: httpx.Client, name: str, fields: dict[str, Any]) -> str:
    return str(_call(api, "POST", "/registry/agents", {"name": name, **fields})["agent_id"])


def _drive(api: httpx.Client, rounds: int) -> list[dict[str, Any]]:
    """Rounds of two short summaries, a long one and a keyword task; each learns from the one before."""
    long, short = texts.sections()
    done: list[dict[str, Any]] = []
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=err) as progress:
        bar = progress.add_task("Routing and doing tasks", total=rounds * 4)
        for number in range(rounds):
            bodies = [_summary(s, "summarize", 1) for s in texts.take(short, number * 2, 2)]
            bodies += [_summary(s, "summarize-long", 2) for s in texts.take(long, number, 1)]
            bodies += [_keywords(s) for s in texts.take(short, number, 1)]
            submitted = [(body, _call(api, "POST", "/tasks", body)["task_id"]) for body in bodies]
            for body, task_id in submitted:
                done.append({"round": number + 1, "capability": body["required_capabilities"][0]} | _wait(api, task_id))
                progress.advance(bar)
    return done


def _summary(section: texts.Section, capability: str, sentences: int) -> dict[str, Any]:
    text = {"text": section.text, "sentences": sentences}
    return {"type": "summarize", "input": text, "required_capabilities": [capability], **_titled(section)}


def _keywords(section: texts.Section) -> dict[str, Any]:
    text = {"text": section.text, "top": 5}
    return {"type": "keywords", "input": text, "required_capabilities": ["keywords"], **_titled(section)}


def _titled(section: texts.Section) -> dict[str, Any]:
    title = "".join(c for c in section.title if c.isprintable())[:200]
    return {"metadata": {"tags": [title]}}


def _wait(api: httpx.Client, task_id: str) -> dict[str, Any]:
    """The ended task with its activity. Raises CommandFailed when it fails or takes too long."""
    until = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < until:
        trail = _call(api, "GET", f"/tasks/{task_id}/activity")
        if trail["status"] == "completed":
            return dict(trail)
        if trail["status"] not in ("queued", "executing"):
            raise CommandFailed(f"Task {task_id} is {trail['status']}: {trail['task']['error']}")
        time.sleep(0.01)
    raise CommandFailed(f"Task {task_id} did not end within {PATIENCE_SECONDS} s.")


def _call(api: httpx.Client, method: str, path: str, body: Any = None) -> Any:
    answer = api.request(method, path, json=body)
    if not answer.is_success:
        raise CommandFailed(f"{method} {path} answered {answer.status_code}: {answer.text}")
    return answer.json()


@contextmanager
def _service(folder: Path, keys: list[str]) -> Iterator[str]:
    """A `stentor serve` on free ports; its address. It is stopped at the end, whatever happens."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("SERVICE_", "MCP_", "SKIP_"))}
    environ = {
        **ours,
        **{f"SERVICE_API_KEY_{n}": f"{key}:admin:read,write,delete,admin" for n, key in zip(NAMES, keys, strict=True)},
        "SERVICE_RATE_LIMIT_PER_MINUTE": "0",
        "SERVICE_BUILTIN_AGENTS": "false",
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
        line = process.stdout.readline()
        if not line:
            raise CommandFailed("The service did not start; its reason stands above.")
        yield json.loads(line)["gateway"]


@contextmanager
def _worker(address: str, key: str, agent_id: str) -> Iterator[None]:
    environ = {**os.environ, "DEMO_URL": address, "DEMO_KEY": key, "DEMO_AGENT": agent_id}
    with _process([sys.executable, "-m", "stentor.cli.demo.agent"], environ):
        yield


@contextmanager
def _process(command: list[str], environ: dict[str, str], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(command, env=environ, **options) as process:  # noqa: S603 - our own program
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
