"""The page of the people who sign in with the provider: their roles and sessions, sign out, block and unblock."""

from __future__ import annotations

from starlette.responses import Response

from stentor.surfaces.dashboard.site.page import PageHandler, PageRequest


async def list_people(page: PageRequest) -> Response:
    listed = await page.call("people.list")
    return page.render("people.html", people=listed["people"], provider=listed["provider"])


def _change(operation: str, notice: str) -> PageHandler:
    async def change(page: PageRequest) -> Response:
        await page.call(operation, name=page.path_param("name"))
        return page.redirect("/people", notice)

    return change


ROUTES = [
    ("GET", "/people", list_people),
    ("POST", "/people/{name}/sign-out", _change("people.sign_out_all", "signed-out")),
    ("POST", "/people/{name}/block", _change("people.block", "blocked")),
    ("POST", "/people/{name}/unblock", _change("people.unblock", "unblocked")),
]
