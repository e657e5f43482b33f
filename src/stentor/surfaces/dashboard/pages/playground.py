"""The playground: one prompt to up to four models, groups or agents, with their answers side by side."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from starlette.responses import Response

from stentor.core.errors import StentorError
from stentor.core.jsontext import JsonObject
from stentor.domains.registry import queries as registry_queries
from stentor.surfaces.dashboard.gateway import GatewayError
from stentor.surfaces.dashboard.site.page import PageRequest

MAX_TARGETS = 4
FIELDS = ("system", "prompt", "max_tokens", "temperature")


async def show_playground(page: PageRequest) -> Response:
    targets = [page.query_param("model")] if page.query_param("model") else []
    return await _render(page, targets, dict.fromkeys(FIELDS, ""), [])


async def ask(page: PageRequest) -> Response:
    """Ask all models at once, and wait for all of them: each answer or error stands for itself."""
    form = await page.read_form()
    given = {name: form.get(name, "") for name in FIELDS}
    targets = [form.get(f"model{n}", "").strip() for n in range(MAX_TARGETS)]
    chosen = list(dict.fromkeys(target for target in targets if target))
    answers = await asyncio.gather(*(_ask(page, target, given) for target in chosen))
    return await _render(page, targets, given, list(answers))


async def _ask(page: PageRequest, target: str, given: dict[str, str]) -> JsonObject:
    """Return the answer of a model with what it cost, or its error."""
    started = time.perf_counter()
    try:
        reply = await page.call("llm.chat", body=build_body(target, given))
    except (GatewayError, StentorError) as error:
        return {"target": target, "error": error.message, "duration_ms": (time.perf_counter() - started) * 1000}
    duration_ms = (time.perf_counter() - started) * 1000
    # An agent's answer is a task, and has no call of its own.
    call = await page.find("llm.call", call_id=reply["provenance_id"]) if not reply.get("task_id") else None
    return {"target": target, "error": None, "duration_ms": duration_ms, "reply": reply, "call": call}


def build_body(target: str, given: dict[str, str]) -> JsonObject:
    """Return the body of the request; numbers that are none are left to the gateway, which says what is wrong."""
    messages = [{"role": "user", "content": given["prompt"]}]
    if given["system"].strip():
        messages.insert(0, {"role": "system", "content": given["system"]})
    options = {name: _number(given[name]) for name in ("max_tokens", "temperature") if given[name].strip()}
    return {"model": target, "messages": messages, "options": options}


def _number(text: str) -> Any:
    try:
        return int(text) if text.strip().isdigit() else float(text)
    except ValueError:
        return text


async def _render(page: PageRequest, targets: list[str], given: dict[str, str], answers: list[JsonObject]) -> Response:
    models, capabilities = await asyncio.gather(
        page.call("llm.models"), page.read(registry_queries.list_active_capabilities)
    )
    known = ["auto", *(model["id"] for model in models), *(f"agent:{name}" for name in capabilities)]
    return page.render(
        "playground.html",
        block="answers",
        known=known,
        targets=[*targets, *[""] * MAX_TARGETS][:MAX_TARGETS],
        form=given,
        answers=answers,
    )


ROUTES = [("GET", "/models/playground", show_playground), ("POST", "/models/playground", ask)]
