"""The audit page, and that signing in is recorded."""

from __future__ import annotations

import re

import httpx
import pytest

from tests.requirements import requirement
from tests.surfaces.dashboard.signed_in import Site


@requirement("audit.page", "audit.sign-ins")
async def test_a_sign_in_and_changes_are_on_the_page_with_who_did_it(site: Site) -> None:
    agent = await site.world.register("ann")
    await site.world.do(agent)
    page = await site.read("/audit")
    assert "admin signed in to the dashboard." in page
    assert f'href="/agents/{agent}"' in page
    assert "Agent ann registered" in page
    only = await site.part("/audit", category="sign-ins")
    assert "signed in" in only
    assert "registered" not in only
    assert "Nothing yet" in await site.read("/audit", key="OTHER", category="refusals")
    await site.read("/audit", 403, key="WRITER")
    event = re.search(r'href="(/provenance/[^"]+)"', page)
    assert event
    await site.read(event[1])


@requirement("audit.page")
async def test_the_page_goes_on_where_it_ends(site: Site) -> None:
    for n in range(52):
        await site.world.register(f"a{n:02}", capabilities=[f"c{n}"])
    page = await site.part("/audit", category="changes")
    following = re.search(r'hx-get="/audit\?([^"]+)"', page)
    assert following
    params = httpx.QueryParams(following[1].replace("&amp;", "&"))
    rest = await site.part("/audit", **dict(params))
    assert "Agent a01 registered" in rest  # not the name alone, which may be a part of an id
    assert "Agent a40 registered" not in rest


@requirement("audit.sign-ins")
async def test_a_sign_in_that_cannot_be_recorded_keeps_nobody_out(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    site.world.runlog.broken = True
    await site.read("/tasks", key="READER")
    assert "sign_in: not recorded" in caplog.text
