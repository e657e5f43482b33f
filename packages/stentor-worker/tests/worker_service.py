"""A minimal service for the tests, which hands out tasks and records the reports, and a worker for one task."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from stentor_worker import Task, Worker

Reply = tuple[int, Any]
"""Status and JSON body."""
AGENT = {"agent_id": "agent", "name": "counter", "capabilities": ["count", "sum"]}
ENDS = {"complete", "fail", "suspend"}
TIMEOUT_S = 60
"""An upper bound for each wait in the tests, also on a slow machine."""


class Service:
    """Hands out `tasks` tasks, one at a time; each report is answered by `reply`."""

    def __init__(self, tasks: int) -> None:
        self.url = ""
        self.tasks = tasks
        self.claimed = 0
        self.reports: list[tuple[str, str, dict[str, Any]]] = []
        """Task id, verb and body of each report."""
        self.requests: list[str] = []
        self.agent_pages = [[AGENT]]
        self.agents_reply: Reply | None = None
        """In place of the list of agents."""
        self.reply: Callable[[str], Reply] = lambda verb: (200, {})
        self.changed = threading.Condition()

    def wait_until(self, condition: Callable[[], bool]) -> bool:
        with self.changed:
            return self.changed.wait_for(condition, TIMEOUT_S)

    def respond(self, method: str, path: str, body: dict[str, Any]) -> Reply:
        with self.changed:
            self.requests.append(f"{method} {path}")
        if path.endswith("/claims"):
            return self._claim()
        if path.endswith("/leave"):
            return self.reply("leave")
        if method == "GET":
            if not path.partition("?")[0].endswith("/agents"):
                return 200, AGENT
            return self.agents_reply or (200, self._list_agents(path))
        task_id, verb = path.split("/")[-2:]
        status, response_body = self.reply(verb) if is_valid(verb, body) else (400, {"error": {"code": "BAD_REQUEST"}})
        with self.changed:
            self.reports.append((task_id, verb, body))
            self.changed.notify_all()
        return status, response_body

    def _list_agents(self, path: str) -> dict[str, Any]:
        number = int(path.partition("cursor=")[2] or 0)
        is_last = number + 1 == len(self.agent_pages)
        return {"agents": self.agent_pages[number], "next_cursor": None if is_last else str(number + 1)}

    def _claim(self) -> Reply:
        status, response_body = self.reply("claims")
        if status != 200:
            return status, response_body
        with self.changed:
            if self.claimed == self.tasks:
                # Like a long poll without a task; the short wait keeps the worker from spinning.
                self.changed.wait(0.05)
                return 200, {"tasks": []}
            self.claimed += 1
            self.changed.notify_all()
            fields = dict.fromkeys(("type", "input", "timeout_seconds", "idempotency_key"), "x")
            return 200, {"tasks": [{"task_id": f"t{self.claimed}", "epoch": 1, "metadata": {}, **fields}]}


def is_valid(verb: str, body: dict[str, Any]) -> bool:
    """Return whether the real service accepts a report."""
    if verb == "tokens":
        return len(body["tokens"]) <= 1_000 and all(len(text) <= 65_536 for text in body["tokens"])
    if verb == "fail":
        code, message = body["error"]["code"], body["error"]["message"]
        is_code = 1 <= len(code) <= 255 and code.isprintable()
        is_class = body.get("outcome_class", "agent_failure") in ("agent_failure", "provider_failure")
        return is_code and is_class and 1 <= len(message) <= 10_000 and "\0" not in message
    return "NaN" not in json.dumps(body)


@contextmanager
def run_service(service: Service) -> Iterator[Service]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status, response_body = service.respond(self.command, self.path, json.loads(content) if content else {})
            payload = json.dumps(response_body).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(payload)))
            self.end_headers()
            self.wfile.write(payload)

        do_GET = do_POST  # noqa: N815 - http.server's name

        def log_message(self, format: str, *args: Any) -> None:
            return

    class Server(ThreadingHTTPServer):
        daemon_threads = True

    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        service.url = f"http://127.0.0.1:{server.server_port}"
        try:
            yield service
        finally:
            server.shutdown()


def run_once(handler: Callable[[Task], Any], reply: Callable[[str], Reply] | None = None) -> list[Any]:
    """Run a worker for one task; return its reports as (task id, verb, body)."""
    with run_service(Service(tasks=1)) as service:
        if reply is not None:
            service.reply = reply
        worker = Worker(service.url, "key", "agent", concurrency=1)
        worker.handler(handler)
        thread = threading.Thread(target=worker.run)
        thread.start()
        assert service.wait_until(lambda: not ENDS.isdisjoint(verb for _, verb, _ in service.reports))
        worker.stop()
        thread.join(TIMEOUT_S)
        assert not thread.is_alive()
        return service.reports
