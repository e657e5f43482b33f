"""Forms that register an agent, edit its tier, key and scores at once, and propose a change of anything else."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from stentor.core.formats.json_diff import diff_lines
from stentor.core.jsontext import JsonObject
from stentor.core.security.redaction import MASK
from stentor.surfaces.dashboard.gateway import GatewayError, quote_segment
from stentor.surfaces.dashboard.pages.agents.agents import list_allowed
from stentor.surfaces.dashboard.presenters import agent_view, whitelist_form
from stentor.surfaces.dashboard.presenters.agent_view import present_prompt, url_origin
from stentor.surfaces.dashboard.presenters.whitelist_form import split_words
from stentor.surfaces.dashboard.site.forms import find_changed, read_shown
from stentor.surfaces.dashboard.site.page import PageRequest

KINDS = {
    "worker": ("Worker", "A program of yours that connects to this service and asks for tasks."),
    "llm": ("Model", "A language model with a prompt, called by this service, with the tools of its allow-list."),
    "http": ("Web service", "This service sends each task as a request to your endpoint."),
}
EMPTY_FORM = dict.fromkeys(("name", "capabilities", "endpoint", "model", "prompt", "description", "key_name"), "") | {
    "kind": "worker",
    "repeat": "send",
    "tier": "monitored",
    **whitelist_form.read_fields(whitelist_form.EMPTY_WHITELIST),
}
MASKED_MESSAGE = f"The prompt has {MASK} where a secret stands. Remove the secret, or change the prompt over the API."

WHITELIST_CHANGED_MESSAGE = "Somebody else changed the allow-list since you opened this page. Open it again."


async def show_new_agent(page: PageRequest) -> Response:
    await page.call("agents.list", limit=1)  # checks the permission
    return _render_new(page)


def _render_new(
    page: PageRequest, form: dict[str, str] | None = None, problem: str = "", status: int = 200
) -> Response:
    form = EMPTY_FORM | (form or {})
    return page.render(
        "agent-new.html",
        status,
        form=form,
        rows=whitelist_form.count_rows(form),
        problem=problem,
        kinds=KINDS,
        tiers=agent_view.TIERS,
    )


async def create_agent(page: PageRequest) -> Response:
    form = EMPTY_FORM | {name: value for name, value in (await page.read_form()).items() if name in EMPTY_FORM}
    body = {
        "name": form.get("name", "").strip(),
        "capabilities": split_words(form.get("capabilities", "")),
        "trust_tier": form.get("tier", ""),
        "runtime": _runtime(form),
        "key_name": form["key_name"].strip() or None,
        "sandbox_whitelist": whitelist_form.build_whitelist(EMPTY_FORM, form, whitelist_form.EMPTY_WHITELIST),
    }
    try:
        made = await page.call("agents.register", body=body)
    except GatewayError as error:
        # What the user can correct is shown in the form with everything that was typed; anything else is an error page.
        return _render_new(page, form, error.require_status(400, 409).message, error.status)
    return page.redirect(f"/agents/{quote_segment(made['agent_id'])}", "registered")


def _runtime(form: dict[str, str]) -> JsonObject:
    runtime: JsonObject = {"kind": form.get("kind", "")}
    if runtime["kind"] == "http":
        runtime["endpoint"] = form.get("endpoint", "").strip()
        runtime["options"] = {} if form["repeat"] == "send" else {"repeat": form["repeat"]}
    if runtime["kind"] == "llm":
        given = {"model": form.get("model", "").strip(), "system_prompt": form.get("prompt", "")}
        runtime["options"] = {name: value for name, value in given.items() if value}
    return runtime


async def show_edit(page: PageRequest) -> Response:
    agent = await page.call("agents.get", agent_id=page.path_param("agent_id"))
    return await _render_edit(page, agent, _values(agent))


def _values(agent: JsonObject) -> dict[str, Any]:
    shown = read_values(agent)
    return shown | {"description": "", "shown": shown}


def _settings(agent: JsonObject) -> dict[str, Any]:
    shown = read_settings(agent)
    return shown | {"shown": shown}


async def _render_edit(
    page: PageRequest,
    agent: JsonObject,
    form: dict[str, Any],
    problem: str = "",
    status: int = 200,
    settings: dict[str, Any] | None = None,
    refusal: str = "",
) -> Response:
    runtime = agent["runtime"]
    origin = url_origin(runtime["endpoint"]) if runtime.get("endpoint") else ""
    return page.render(
        "agent-edit.html",
        status,
        agent=agent,
        form=form,
        rows=whitelist_form.count_rows(form),
        problem=problem,
        kind=runtime["kind"],
        origin=origin,
        settings=settings or _settings(agent),
        refusal=refusal,
        tiers=agent_view.TIERS,
        scores=agent_view.SCORES,
        may_set="scores" in await list_allowed(page, agent["agent_id"]),
    )


async def apply_settings(page: PageRequest) -> Response:
    """Set what the first form changes at once, and show the agent."""
    agent = await page.call("agents.get", agent_id=page.path_param("agent_id"))
    form = await page.read_form()
    before = _shown(form, read_settings(agent))
    after = before | find_changed({name: form[name] for name in before if name in form}, before)
    reason = form.get("reason", "").strip()
    body = build_settings(before, after)

    async def refuse(message: str, status: int) -> Response:
        settings = after | {"reason": reason, "shown": before}
        return await _render_edit(page, agent, _values(agent), "", status, settings, message)

    if not body:
        return await refuse("Nothing is changed.", 400)
    try:
        await page.call("agents.edit", agent_id=agent["agent_id"], body=body | {"reason": reason})
    except GatewayError as error:
        return await refuse(error.require_status(400, 403).message, error.status)
    return page.redirect(f"/agents/{quote_segment(agent['agent_id'])}", "edited")


def _shown(form: dict[str, str], current: dict[str, str]) -> dict[str, str]:
    """Return the fields as the page of the form showed them, so that what changed since is not a change of the form."""
    return current | {name: text for name, text in read_shown(form).items() if name in current and type(text) is str}


def read_settings(agent: JsonObject) -> dict[str, str]:
    """Return the fields of the form that applies at once, as they are now."""
    scores = {name: f"{agent[f'{name}_score']:g}" for name in agent_view.SCORES}
    return {"tier": agent["trust_tier"], "key_name": agent["key_name"] or "", **scores}


def build_settings(before: dict[str, str], after: dict[str, str]) -> JsonObject:
    """Return the body of `agents.edit` with the fields that differ.

    A score that is not a number stays a text, which the gateway rejects with a message.
    """
    changed = {name: value for name, value in after.items() if value != before[name]}
    body: JsonObject = {f"{name}_score": _number(changed[name]) for name in agent_view.SCORES if name in changed}
    body |= {"trust_tier": changed["tier"]} if "tier" in changed else {}
    return body | ({"key_name": changed["key_name"] or None} if "key_name" in changed else {})


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


async def propose_change(page: PageRequest) -> Response:
    """Propose what the form changes, as a patch of the agent's record, and show the proposal."""
    agent = await page.call("agents.get", agent_id=page.path_param("agent_id"))
    form = await page.read_form()
    current = read_values(agent)
    before = _shown(form, current)
    sent = {name: form[name].replace("\r\n", "\n") for name in before if name in form}
    after = before | find_changed(sent, before)
    description = form.get("description", "").strip()
    values = after | {"description": description, "shown": before}
    if problem := _find_problem(before, after, description):
        return await _render_edit(page, agent, values, problem, 400)
    # The rows of its tools are told apart by their numbers.
    if _is_other_whitelist(before, after) and _is_other_whitelist(before, current):
        return await _render_edit(page, agent, values, WHITELIST_CHANGED_MESSAGE, 409)
    body = {
        "agent_id": agent["agent_id"],
        "update_type": "agent",
        "description": description,
        "changes": describe_changes(agent["name"], before, after, agent["sandbox_whitelist"]),
    }
    try:
        update = await page.call("updates.propose", body=body)
    except GatewayError as error:
        return await _render_edit(page, agent, values, error.require_status(400, 409).message, error.status)
    notice = "proposed-unserved" if update.get("notice") else "proposed"
    return page.redirect(f"/governance/updates/{quote_segment(update['update_id'])}", notice)


def _is_other_whitelist(one: dict[str, str], other: dict[str, str]) -> bool:
    return any(one[name] != other[name] for name in one if whitelist_form.is_field(name))


def _find_problem(before: dict[str, str], after: dict[str, str], description: str) -> str:
    if before == after:
        return "Nothing is changed."
    # The mask would be stored in the place of the secret.
    if before["prompt"] != after["prompt"] and MASK in after["prompt"]:
        return MASKED_MESSAGE
    return "" if description else "Say what changes and why: reviewers need it to decide."


def read_values(agent: JsonObject) -> dict[str, str]:
    """Return the fields of the form as they are now, with secrets masked or left out."""
    runtime = agent["runtime"]
    options = runtime.get("options") or {}
    return {
        "capabilities": ", ".join(agent["capabilities"]),
        # Its path may hold a secret, so it is not shown; an empty field leaves it as it is.
        "endpoint": "",
        "repeat": str(options.get("repeat") or "send") if runtime["kind"] == "http" else "",
        "model": str(options.get("model") or ""),
        "prompt": (present_prompt(runtime) or "").replace("\r\n", "\n"),
        **whitelist_form.read_fields(agent["sandbox_whitelist"]),
    }


def describe_changes(name: str, before: dict[str, str], after: dict[str, str], whitelist: JsonObject) -> JsonObject:
    """Return the body of a proposal's `changes`: the patch of the record, and how many lines of it change."""
    lines_before, lines_after = (_record_lines(values) for values in (before, after))
    # Not difflib.ndiff, which compares each line with each other by its characters: minutes for a reworded prompt.
    marks = [mark for mark, _ in diff_lines(lines_before, lines_after)]
    return {
        "agent_patch": build_patch(before, after, whitelist),
        "files_modified": [f"agents/{name}"],
        "lines_added": marks.count("+"),
        "lines_deleted": marks.count("-"),
        "lines_total": max(len(lines_before), 1),
        **dict.fromkeys(("breaking", "new_dependencies", "touches_policy"), False),
    }


def build_patch(before: dict[str, str], after: dict[str, str], whitelist: JsonObject) -> JsonObject:
    """Return a JSON merge patch (RFC 7386) with the fields that differ; an emptied field is removed.

    `whitelist` is the allow-list before, whose unchanged tools stay as they are.
    """
    changed = {name for name in before if before[name] != after[name]}
    patch: JsonObject = {}
    if "capabilities" in changed:
        patch["capabilities"] = split_words(after["capabilities"])
    if any(map(whitelist_form.is_field, changed)):
        patch["sandbox_whitelist"] = whitelist_form.build_whitelist(before, after, whitelist)
    options = {
        option: after[name] or None
        for name, option in (("repeat", "repeat"), ("model", "model"), ("prompt", "system_prompt"))
        if name in changed
    }
    runtime: JsonObject = {"endpoint": after["endpoint"].strip()} if "endpoint" in changed else {}
    runtime |= {"options": options} if options else {}
    return patch | ({"runtime": runtime} if runtime else {})


def _record_lines(values: dict[str, str]) -> list[str]:
    lines = {name: value.split("\n") for name, value in values.items() if value}
    lines["capabilities"] = split_words(values["capabilities"])  # as the reviewer's diff has them
    return [f"{name} {line}" for name, texts in lines.items() for line in texts]


ROUTES = [
    ("GET", "/agents/new", show_new_agent),
    ("POST", "/agents/new", create_agent),
    ("GET", "/agents/{agent_id}/edit", show_edit),
    ("POST", "/agents/{agent_id}/edit", propose_change),
    ("POST", "/agents/{agent_id}/settings", apply_settings),
]
