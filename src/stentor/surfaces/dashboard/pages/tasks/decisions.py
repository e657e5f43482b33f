"""What tasks ask people: the list of open questions and unknown effects, and the forms that decide them."""

from __future__ import annotations

from starlette.responses import Response

from stentor.core import jsontext
from stentor.core.errors import InvalidRequest
from stentor.domains.steps import model
from stentor.domains.steps.wait_operations import MAX_LISTED
from stentor.surfaces.dashboard.gateway import quote_segment
from stentor.surfaces.dashboard.site.page import PageRequest

CHOICES = (model.HAPPENED, model.NOT_HAPPENED)


async def list_decisions(page: PageRequest, typed: dict[str, str] | None = None, status: int = 200) -> Response:
    """List what people have to decide; `typed` is a form that was refused, with its task and the problem.

    Raises InvalidRequest with that problem if the step is not listed any more.
    """
    listed = await page.call("decisions.list", limit=MAX_LISTED, cursor=page.query_param("cursor"))
    while typed and not any(
        (step["task_id"], step["key"]) == (typed["task_id"], typed["step"]) for step in listed["steps"]
    ):
        if listed["next_cursor"] is None:
            raise InvalidRequest(typed["problem"])
        listed = await page.call("decisions.list", limit=MAX_LISTED, cursor=listed["next_cursor"])
    return page.render(
        "decisions.html",
        status,
        block="live",
        decisions=listed["steps"],
        following=listed["next_cursor"],
        cursor=page.query_param("cursor"),
        choices=CHOICES,
        typed=typed,
    )


async def answer_question(page: PageRequest) -> Response:
    form = await page.read_form()
    # An option is sent as JSON: browsers change line breaks, and `read_form` removes spaces.
    value = jsontext.decode_or_none(form["option"].encode()) if "option" in form else form.get("value", "")
    if value == "":
        raise InvalidRequest("The answer is empty.")
    return await _decide(page, "waits.answer", {"value": value}, "answered")


async def resolve_effect(page: PageRequest) -> Response:
    form = await page.read_form()
    text = form.get("value", "").strip()
    body: dict[str, object] = {"happened": form.get("happened") == "yes", "reason": form.get("reason", "")}
    if body["happened"]:
        # None is a value too: an effect that happened may have returned nothing.
        try:
            body["value"] = _parse_value(text) if text else None
        except InvalidRequest as error:
            typed = {**form, "step": await page.read_field("step"), "task_id": page.path_param("task_id")}
            return await list_decisions(page, {**typed, "problem": error.message}, error.status)
    return await _decide(page, "effects.resolve", body, "recorded")


def _parse_value(text: str) -> object:
    """Return the JSON, or the text itself where nothing else can be meant. Raises InvalidRequest."""
    try:
        return jsontext.decode(text.encode())
    except InvalidRequest as error:
        if text[0] not in '{["':
            return text
        reason = error.message.removeprefix("The body is not valid JSON: ")
        raise InvalidRequest(f"The result looks like JSON but is not valid: {reason}") from None


async def _decide(page: PageRequest, operation: str, body: dict[str, object], notice: str) -> Response:
    task_id, key = page.path_param("task_id"), await page.read_field("step")
    await page.call(operation, task_id=task_id, key=key, body=body)
    return page.redirect(f"/tasks/{quote_segment(task_id)}", notice)


ROUTES = [
    ("GET", "/decisions", list_decisions),
    ("POST", "/tasks/{task_id}/answer", answer_question),
    ("POST", "/tasks/{task_id}/resolve", resolve_effect),
]
