"""The demo's third part: an agent as a model, asked as any OpenAI client asks."""

from __future__ import annotations

import json
from typing import Any

import httpx
from rich.console import Group
from rich.panel import Panel
from rich.text import Text

from stentor.cli.output import CommandFailed

MODEL = "agent:answer"
QUESTION = "What does a receipt say, and how long is it good?"
_DATA = "data: "


def talk(api: httpx.Client) -> dict[str, Any]:
    """Stream a chat completion of the best agent that answers. Raises CommandFailed."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": QUESTION}], "stream": True}
    with api.stream("POST", str(api.base_url.join("/v1/chat/completions")), json=body) as answer:
        if not answer.is_success:
            raise CommandFailed(f"{MODEL} answered {answer.status_code}: {answer.read().decode()}")
        chunks = [line[len(_DATA) :] for line in answer.iter_lines() if line.startswith(_DATA)]
    read = [json.loads(chunk) for chunk in chunks if chunk != "[DONE]"]
    if "[DONE]" not in chunks or any("error" in chunk for chunk in read):
        raise CommandFailed(f"The stream of {MODEL} broke off: {chunks[-1]}")
    said = "".join(choice["delta"].get("content") or "" for chunk in read for choice in chunk["choices"])
    return {"question": QUESTION, "model": read[0]["model"], "answer": said, **read[0]["stentor"]}


def show(told: dict[str, Any]) -> Panel:
    asked = f'client.chat.completions.create(model="{told["model"]}", ...)'
    who = f"{told['agent_name']}, in task {told['task_id']}"
    parts = [Text(asked, style="cyan"), Text(told["question"], style="bold"), Text(told["answer"].replace("\n", " "))]
    return Panel(Group(*parts, Text(who, style="dim")), title="An agent as a model", title_align="left")
