"""Refused sign-ins are in the audit, and cannot fill the run log."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import httpx
import pytest

from stentor.surfaces.dashboard.site.refused_sign_ins import MAX_ADDRESSES, OTHERS, RefusedSignIns
from tests.conftest import KEYS
from tests.patience import soon
from tests.requirements import requirement
from tests.surfaces.dashboard.board import LOCAL
from tests.surfaces.dashboard.signed_in import Site


class Minutes:
    """A minute ends when the test says so; `sleeping` is set while one runs."""

    def __init__(self) -> None:
        self.sleeping, self._ends = asyncio.Event(), asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        assert seconds == 60
        self.sleeping.set()
        await self._ends.wait()
        self._ends.clear()

    async def end(self) -> None:
        await self.sleeping.wait()
        self.sleeping.clear()
        self._ends.set()
        await asyncio.sleep(0)


class Recorder:
    def __init__(self) -> None:
        self.events: list[dict[str, int]] = []
        self.broken = False

    async def __call__(self, refusals: Mapping[str, int]) -> None:
        if self.broken:
            raise OSError("disk full")
        self.events.append(dict(refusals))


@requirement("audit.refused-sign-ins")
async def test_the_first_refusal_is_recorded_at_once_and_the_others_once_a_minute() -> None:
    minutes, recorder = Minutes(), Recorder()
    refused = RefusedSignIns(recorder, minutes.sleep)
    refused.add("192.0.2.1")
    await minutes.sleeping.wait()
    assert recorder.events == [{"192.0.2.1": 1}]
    for n in range(1_000):
        refused.add(f"198.51.100.{n}")
        refused.add("198.51.100.0")
    await asyncio.sleep(0)
    assert len(recorder.events) == 1
    await minutes.end()
    await minutes.sleeping.wait()
    assert len(recorder.events) == 2
    counts = recorder.events[1]
    assert len(counts) == MAX_ADDRESSES + 1
    assert sum(counts.values()) == 2_000
    assert (counts["198.51.100.0"], counts[OTHERS]) == (1_001, 1_000 - MAX_ADDRESSES)
    await minutes.end()  # a quiet minute ends it
    refused.add("")
    await soon(lambda: recorder.events[2:] or None)
    assert recorder.events[2] == {"an unknown address": 1}
    refused.add("192.0.2.1")
    await refused.close()
    assert recorder.events[3] == {"192.0.2.1": 1}, "what is left at the end is recorded"


@requirement("audit.refused-sign-ins")
async def test_refusals_that_cannot_be_recorded_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    recorder = Recorder()
    recorder.broken = True
    refused = RefusedSignIns(recorder)
    refused.add("192.0.2.1")
    await refused.close()
    assert "sign_in: refused count=1 addresses=192.0.2.1" in caplog.text


@requirement("audit.refused-sign-ins")
async def test_refused_sign_ins_are_on_the_audit_page_and_only_of_this_tenant(site: Site) -> None:
    await site.browser()
    for address in ("192.0.2.7", "192.0.2.8"):
        transport = httpx.ASGITransport(site.board.http._transport.app, client=(address, 1))  # pyrefly: ignore[missing-attribute] - private
        async with httpx.AsyncClient(transport=transport, base_url=LOCAL) as stranger:
            for key in ("wrong-key-31", KEYS["BOB"].split(":")[0]):
                assert (await stranger.post("/sign-in", data={"key": key})).status_code in (401, 403)

    async def recorded() -> Any:
        page = await site.read("/audit", category="sign-ins")
        return page if " to the dashboard refused, from 192.0.2.7" in page else None

    page = await soon(recorded)
    assert page.count(" refused, from ") == 1, "one event a minute"
    assert "wrong-key-31" not in page
    assert " refused, from " in await site.read("/audit", category="refusals")
    assert " refused, from " not in await site.read("/audit", key="OTHER")
