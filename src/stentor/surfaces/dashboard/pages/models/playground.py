"""The playground: a conversation with up to four models, groups or agents, side by side.

The browser holds the conversations, in hidden fields. With JavaScript each side is asked by a request of its own, which
can be stopped, and nothing is stored here; without it one request asks all of them, waits, and redirects to a page that
the session keeps, so that a reload sends no new request.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
from starlette.responses import RedirectResponse, Response

from stentor.core import jsontext
from stentor.core.errors import StentorError
from stentor.core.jsontext import JsonObject
from stentor.domains.registry import queries as registry_queries
from stentor.surfaces.dashboard.gateway import GatewayError
from stentor.surfaces.dashboard.site.page import HTMX_HEADER, PageRequest
from stentor.web.cancel_on_disconnect import cancel_on_disconnect

PATH = "/models/playground"
MAX_TARGETS = 4
OPTION_FIELDS = ("system", "max_tokens", "temperature")
FIELDS = (*OPTION_FIELDS, "prompt")


class PlaygroundTurn(msgspec.Struct, frozen=True):
    """A prompt and its answer, or the `error` that came instead; an agent has a `task`, a model's answer a `call`."""

    prompt: str
    answer: str = ""
    error: str = ""
    duration_ms: float = 0
    input_tokens: int = 0
    output_tokens: int = 0
    dollars: float | None = None
    model: str = ""
    finish: str = "stop"
    call: str = ""
    task: str = ""


class PlaygroundSide(msgspec.Struct, frozen=True):
    """The conversation with one model. `pending` is the prompt whose answer the browser asks for."""

    number: int
    target: str
    turns: list[PlaygroundTurn] = []
    pending: str | None = None

    @property
    def history(self) -> str:
        """What the browser sends back with the next prompt."""
        return jsontext.dump([self.target, msgspec.to_builtins(self.turns)])

    @property
    def dollars(self) -> float:
        return sum(turn.dollars or 0 for turn in self.turns)


async def show_playground(page: PageRequest) -> Response:
    if kept := page.session.kept.get((PATH, page.query_param("conversation"))):
        return await _render(page, kept["targets"], kept["form"], kept["sides"])
    targets = [page.query_param("model")] if page.query_param("model") else []
    return await _render(page, targets, dict.fromkeys(FIELDS, ""), [])


async def ask(page: PageRequest) -> Response:
    """Start a turn with every model: the browser asks for each answer, or is redirected to all of them."""
    form = await page.read_form()
    given = {name: form.get(name, "") for name in FIELDS}
    targets = [form.get(f"model{n}", "") for n in range(MAX_TARGETS)]
    sides = [
        read_side(n, target, form.get(f"history{n}", ""))
        for n, target in enumerate(targets)
        # The same model twice would give two sides that the browser cannot tell apart.
        if target and target not in targets[:n]
    ]
    if page.request.headers.get(HTMX_HEADER):
        sides = [msgspec.structs.replace(side, pending=given["prompt"]) for side in sides]
        return await _render(page, targets, given | {"prompt": ""}, sides)
    sides = list(await asyncio.gather(*(_take_turn(page, side, given) for side in sides)))
    # The prompt stays if nobody answered it.
    is_answered = any(not side.turns[-1].error for side in sides)
    kept = {"targets": targets, "form": given | ({"prompt": ""} if is_answered else {}), "sides": sides}
    return RedirectResponse(f"{PATH}?conversation={page.session.keep(PATH, kept)}", 303)


async def answer(page: PageRequest) -> Response:
    """Return a side with its next answer. The call is cancelled when the browser stops waiting."""
    form = await page.read_form()
    given = {name: form.get(name, "") for name in FIELDS}
    number = next((n for n in range(MAX_TARGETS) if form.get("number") == str(n)), 0)
    side = read_side(number, form.get("target", ""), form.get("history", ""))
    side = await cancel_on_disconnect(page.request, _take_turn(page, side, given))
    return page.render("playground-side.html", side=side, form=given)


def read_side(number: int, target: str, history: str) -> PlaygroundSide:
    """Return the conversation in a field of the form; an empty one if it is with another model, or damaged."""
    try:
        before, turns = msgspec.convert(jsontext.decode_or_none(history.encode()), tuple[str, list[PlaygroundTurn]])
    except (msgspec.ValidationError, UnicodeEncodeError):
        return PlaygroundSide(number, target)
    return PlaygroundSide(number, target, turns if before == target else [])


async def _take_turn(page: PageRequest, side: PlaygroundSide, given: dict[str, str]) -> PlaygroundSide:
    """Return the conversation with the model's answer to the prompt, or with its error."""
    prompt, started = given["prompt"], time.perf_counter()
    try:
        reply = await page.call("llm.chat", body=build_body(side, given))
    except (GatewayError, StentorError) as error:
        details = error.details if isinstance(error, GatewayError) and isinstance(error.details, dict) else {}
        duration_ms = (time.perf_counter() - started) * 1000
        turn = PlaygroundTurn(
            prompt, error=error.message, duration_ms=duration_ms, task=str(details.get("task_id") or "")
        )
        return msgspec.structs.replace(side, turns=[*side.turns, turn])
    duration_ms = (time.perf_counter() - started) * 1000
    # An agent's answer is a task, and has no call of its own.
    task = reply.get("task_id") or ""
    call = None if task else await page.find("llm.call", call_id=reply["provenance_id"])
    turn = PlaygroundTurn(
        prompt,
        reply["content"],
        duration_ms=duration_ms,
        input_tokens=reply["usage"]["input_tokens"],
        output_tokens=reply["usage"]["output_tokens"],
        dollars=None if call is None else call["cost_usd"],
        model=reply["model"],
        finish=reply["finish_reason"],
        call="" if task else reply["provenance_id"],
        task=task,
    )
    return msgspec.structs.replace(side, turns=[*side.turns, turn])


def build_body(side: PlaygroundSide, given: dict[str, str]) -> JsonObject:
    """Return the body of the request; numbers that are none are left to the gateway, which says what is wrong."""
    messages = [{"role": "system", "content": given["system"]}] if given["system"] else []
    for turn in side.turns:
        # A turn that failed is left out: the model never saw an answer to it.
        if turn.answer:
            messages += [{"role": "user", "content": turn.prompt}, {"role": "assistant", "content": turn.answer}]
    messages.append({"role": "user", "content": given["prompt"]})
    options = {name: _number(given[name]) for name in ("max_tokens", "temperature") if given[name]}
    return {"model": side.target, "messages": messages, "options": options}


def _number(text: str) -> Any:
    try:
        return int(text) if text.isdigit() else float(text)
    except ValueError:
        return text


async def _render(
    page: PageRequest, targets: list[str], given: dict[str, str], sides: list[PlaygroundSide]
) -> Response:
    models, capabilities = await asyncio.gather(
        page.call("llm.models"), page.read(registry_queries.list_active_capabilities)
    )
    known = ["auto", *(model["id"] for model in models), *(f"agent:{name}" for name in capabilities)]
    return page.render(
        "playground.html",
        block="playground",
        known=known,
        has_models=bool(models),
        example=f"agent:{capabilities[0]}" if capabilities and not models else "auto",
        targets=[*targets, *[""] * MAX_TARGETS][:MAX_TARGETS],
        form=given,
        sides=sides,
    )


ROUTES = [
    ("GET", PATH, show_playground),
    ("POST", PATH, ask),
    ("POST", f"{PATH}/answer", answer),
]
