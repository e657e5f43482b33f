"""The pages of who may call: keys, and the people who sign in with the provider.

A key is made, limited, rotated and revoked; people are signed out, blocked and unblocked. A secret is displayed
only in the response to the form that created it.
"""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from stentor.auth.principal import ROLE_PERMISSIONS
from stentor.core.clock import DAY, format_iso
from stentor.core.jsontext import JsonObject
from stentor.surfaces.dashboard.gateway import GatewayError, quote_segment
from stentor.surfaces.dashboard.site.forms import find_changed, int_or_text, read_shown
from stentor.surfaces.dashboard.site.page import PageHandler, PageRequest

ROLE_MEANINGS = {
    "viewer": "reads tasks, models and provenance",
    "operator": "reads, submits, cancels, retries and deletes",
    "approver": "reads, proposes updates, decides on tasks and updates",
    "admin": "may do everything",
    "agent": "a program: works as the agents that are registered with this key's name",
}
EXPIRY_CHOICES = ((0, "never"), (7, "in a week"), (30, "in 30 days"), (90, "in 90 days"), (365, "in a year"))
"""Days from now, with labels."""
KEEP = "keep"
CHANGEABLE = ("role", "description", "team", "budgets", "models", "memory")
EMPTY_FORM = {
    "name": "",
    "role": "viewer",
    "description": "",
    "team": "",
    "budgets": "",
    "models": "",
    "memory": "",
    "days": "90",
}
FORM_ERRORS = (400, 409)
"""Statuses of errors that a form displays."""


async def render_list(
    page: PageRequest, problem: GatewayError | None = None, form_values: JsonObject | None = None
) -> Response:
    """Render the list; after a rejected form with the error and the submitted values."""
    listed = (await page.call("keys.list"))["keys"]
    keys = [key | {"exception": _describe_exception(key)} for key in listed]
    return page.render(
        "keys.html",
        problem.status if problem else 200,
        keys=[key for key in keys if key["status"] != "revoked"],
        revoked=[key for key in keys if key["status"] == "revoked"],
        problem=problem,
        form_values=EMPTY_FORM | (form_values or {}),
        **_choices(listed),
    )


def _describe_exception(key: JsonObject) -> str:
    """Return what a key may do if its permissions differ from those of its role; otherwise empty."""
    permissions, role = key["permissions"], key["role"]
    if role == "admin":
        return "" if "admin" in permissions else f"limited to {', '.join(permissions)}"
    if set(permissions) == set(ROLE_PERMISSIONS[role]):
        return ""
    return "admin" if "admin" in permissions else ", ".join(permissions)


async def create_key(page: PageRequest) -> Response:
    """Create a key and display it, once, on the page that this redirects to: a reload must not create another."""
    form = await page.read_form()
    body = {"name": form.get("name", ""), "role": form.get("role", "")} | _limits(page, form)
    try:
        made = await page.call("keys.create", body=body)
    except GatewayError as error:
        return await render_list(page, error.require_status(*FORM_ERRORS), form)
    return page.redirect_once(_path(made["name"]), {"secret": made["key"]})


async def show_key(page: PageRequest) -> Response:
    key = await page.call("keys.get", name=page.path_param("name"))
    return await _render_key(page, key, secret=page.take_result().get("secret", ""))


async def _render_key(
    page: PageRequest,
    key: JsonObject,
    problem: GatewayError | None = None,
    secret: str = "",
    form: dict[str, str] | None = None,
) -> Response:
    """Render a key; after a rejected `form` with its values, and with what it had shown."""
    return page.render(
        "key.html",
        problem.status if problem else 200,
        key=key,
        base=_path(key["name"]),
        problem=problem,
        secret=secret,
        keep=KEEP,
        shown=read_shown(form) if form else {name: key[name] for name in CHANGEABLE},
        form_values=key | {"days": KEEP} | (form or {}),
        **_choices((await page.call("keys.list"))["keys"]),
    )


async def change_key(page: PageRequest) -> Response:
    name, form = page.path_param("name"), await page.read_form()
    key = await page.call("keys.get", name=name)
    # A role that is sent again would reset the permissions to those of the role.
    body = find_changed(_limits(page, form) | {"role": form.get("role", "")}, key | read_shown(form))
    try:
        await page.call("keys.change", name=name, body=body)
    except GatewayError as error:
        return await _render_key(page, key, error.require_status(*FORM_ERRORS), form=form)
    return page.redirect(_path(name), "saved")


async def rotate_key(page: PageRequest) -> Response:
    """Give the key a new secret and display it, once."""
    made = await page.call("keys.rotate", name=page.path_param("name"))
    return page.redirect_once(_path(made["name"]), {"secret": made["key"]})


async def revoke_key(page: PageRequest) -> Response:
    await page.call("keys.revoke", name=page.path_param("name"))
    return page.redirect("/keys", "revoked")


def _limits(page: PageRequest, form: dict[str, str]) -> JsonObject:
    budgets, models = (
        [part.strip() for part in form.get(name, "").split(",") if part.strip()] for name in ("budgets", "models")
    )
    body: JsonObject = {
        "description": form.get("description", ""),
        "memory": form.get("memory", ""),
        "team": form.get("team", "").strip(),
        "budgets": budgets,
        "models": models,
    }
    days = int_or_text(form.get("days", "0"))
    if days != KEEP:
        # A text that is not a number goes to the gateway, which rejects it with a message.
        body["expires_at"] = _days_from_now(page, days) if isinstance(days, int) else days
    return body


def _days_from_now(page: PageRequest, days: int) -> str | None:
    return format_iso(page.site.now() + min(days, 36_500) * DAY) if days else None


def _choices(keys: list[JsonObject]) -> dict[str, Any]:
    teams = sorted({key["team"] for key in keys if key["team"]})
    return {"roles": ROLE_MEANINGS, "expiries": EXPIRY_CHOICES, "teams": teams}


def _path(name: str) -> str:
    return f"/keys/{quote_segment(name)}"


async def list_people(page: PageRequest) -> Response:
    listed = await page.call("people.list")
    return page.render("people.html", people=listed["people"], provider=listed["provider"])


def _change_person(operation: str, notice: str) -> PageHandler:
    async def change(page: PageRequest) -> Response:
        await page.call(operation, name=page.path_param("name"))
        return page.redirect("/people", notice)

    return change


ROUTES = [
    ("GET", "/keys", render_list),
    ("POST", "/keys", create_key),
    ("GET", "/keys/{name}", show_key),
    ("POST", "/keys/{name}", change_key),
    ("POST", "/keys/{name}/rotate", rotate_key),
    ("POST", "/keys/{name}/revoke", revoke_key),
    ("GET", "/people", list_people),
    ("POST", "/people/{name}/sign-out", _change_person("people.sign_out_all", "signed-out")),
    ("POST", "/people/{name}/block", _change_person("people.block", "blocked")),
    ("POST", "/people/{name}/unblock", _change_person("people.unblock", "unblocked")),
]
