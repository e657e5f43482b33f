"""A Stentor of its own for each showcase: a temporary folder, free ports, and a scripted model if there is no key."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx

DESK_KEY, PERSON_KEY, ASSISTANT_KEY = "showcase-desk-key", "showcase-person-key", "showcase-assistant-key"
Answer = Callable[[str, str], str]
"""(model, prompt) -> what the scripted model says."""


@dataclass
class Showcase:
    """`desk` calls the service as the program that submits tasks, `person` as the one who approves and grades.

    `assistant` is an agent that may edit the memory, with a key of its own, so that each version names who wrote it.
    """

    address: str
    dashboard: str
    data_dir: Path
    desk: httpx.Client
    person: httpx.Client
    assistant: httpx.Client
    is_scripted: bool

    def submit(
        self, task_type: str, task_input: Any, capability: str, title: str, agent: str | None = None, **metadata: Any
    ) -> str:
        body = {"type": task_type, "input": task_input, "required_capabilities": [capability], "title": title}
        body |= {"metadata": metadata} | ({"agent_preference": agent} if agent else {})
        answer = self.desk.post("/tasks", json=body)
        answer.raise_for_status()
        return str(answer.json()["task_id"])

    def ended(self, task_id: str) -> dict[str, Any]:
        """Wait until a task has ended, or waits for approval."""
        while True:
            task = self.person.get(f"/tasks/{task_id}").raise_for_status().json()
            if task["status"] not in ("queued", "executing"):
                return dict(task)
            time.sleep(0.05)

    def show(self, story: str, path: str) -> None:
        """Print where the story is told. At a terminal the service goes on until Ctrl-C."""
        print(f"\n{story}\n\n  {self.dashboard}{path}", flush=True)
        if not sys.stdin.isatty() or not sys.stdout.isatty() or "--once" in sys.argv:
            print()
            say("The showcase has ended and its dashboard is closed. At a terminal, without --once, it stays open.")
            return
        print(f"  sign in with the key {PERSON_KEY}\n", flush=True)
        print("Ctrl-C ends it and removes everything.", flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            print()


def say(text: str, indent: str = "") -> None:
    """Print a paragraph in lines that fit into a terminal of 80 columns; further lines are indented by two more."""
    paragraph = textwrap.TextWrapper(79, initial_indent=indent, subsequent_indent=indent + "  ")
    paragraph.break_on_hyphens = paragraph.break_long_words = False
    print(paragraph.fill(text), flush=True)


@contextmanager
def running(answer: Answer | None = None, **settings: str) -> Iterator[Showcase]:
    """Start a service with these settings.

    `answer` is the scripted model, None without models. With OPENAI_API_KEY in the environment real models are called.
    """
    is_scripted = answer is not None and not os.environ.get("OPENAI_API_KEY")
    with tempfile.TemporaryDirectory() as folder, _scripted_model(answer) as model_url:
        environ = {name: value for name, value in os.environ.items() if not name.startswith(("SERVICE_", "MCP_"))}
        environ |= {f"SERVICE_{name}_PORT": "0" for name in ("GATEWAY", "DASHBOARD", "NOTES", "MCP")}
        environ |= {"SERVICE_API_KEY_DESK": f"{DESK_KEY}:agent:read,write", "SERVICE_RATE_LIMIT_PER_MINUTE": "0"}
        environ |= {"SERVICE_API_KEY_PERSON": f"{PERSON_KEY}:admin:read,write,delete,admin"}
        environ |= {"SERVICE_API_KEY_ASSISTANT": f"{ASSISTANT_KEY}:agent:read,write,admin"}
        environ |= {"SERVICE_EMBEDDING_MODEL": "none", "SERVICE_LLM_FIND_OLLAMA": "0"}
        environ |= {"SERVICE_LOG_LEVEL": "warning"}
        if is_scripted:
            print("No OPENAI_API_KEY is set: a scripted model answers, at the prices set here.\n", flush=True)
            environ |= {"OPENAI_API_KEY": "scripted", "OPENAI_BASE_URL": f"{model_url}/v1"}
        data_dir = Path(folder) / "data"
        command = [sys.executable, "-m", "stentor", "serve", "--json", "--data-dir", str(data_dir)]
        service = subprocess.Popen(command, env={**environ, **settings}, stdout=subprocess.PIPE, text=True)
        try:
            assert service.stdout is not None
            ready = json.loads(service.stdout.readline() or "{}")
            if "gateway" not in ready:
                sys.exit("The service did not start; its messages are above.")
            base = f"{ready['gateway']}/api/v1"
            clients = [
                httpx.Client(base_url=base, headers={"X-API-Key": key}, timeout=60, trust_env=False)
                for key in (DESK_KEY, PERSON_KEY, ASSISTANT_KEY)
            ]
            yield Showcase(ready["gateway"], ready["dashboard"], data_dir, *clients, is_scripted)
        finally:
            service.terminate()
            service.wait()


@contextmanager
def _scripted_model(answer: Answer | None) -> Iterator[str]:
    """Serve the part of OpenAI's API that the gateway calls."""

    class Handler(QuietHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            prompt = "\n".join(str(message["content"]) for message in body["messages"])
            assert answer is not None
            text = answer(body["model"], prompt)
            tokens = {"prompt_tokens": len(prompt) // 4, "completion_tokens": len(text) // 4}
            tokens["total_tokens"] = sum(tokens.values())
            head = {"id": "chatcmpl-1", "created": 1, "model": body["model"]}
            choice: dict[str, Any] = {"index": 0, "finish_reason": "stop"}
            said = {"role": "assistant", "content": text}
            if body.get("stream"):
                head |= {"object": "chat.completion.chunk"}
                events = [{**head, "choices": [{**choice, "delta": said}]}, {**head, "choices": [], "usage": tokens}]
                content = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
            else:
                head |= {"object": "chat.completion", "usage": tokens}
                content = json.dumps({**head, "choices": [{**choice, "message": said}]})
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream" if body.get("stream") else "application/json")
            self.send_header("Content-Length", str(len(content.encode())))
            self.end_headers()
            self.wfile.write(content.encode())

    with serving(Handler) as address:
        yield address


class QuietHandler(BaseHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


class QuietServer(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        # A client that was killed while it waited for its response is part of the story.
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def serving(handler: type[QuietHandler]) -> Iterator[str]:
    """Serve requests in a thread; yield the address."""
    server = QuietServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
