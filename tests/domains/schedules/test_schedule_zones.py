"""Schedules where clocks change, and in time zones that the system no longer has: through the scheduler."""

from __future__ import annotations

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from stentor.bootstrap.parts.tasks import open_schedules
from stentor.core.clock import SECOND, micros_from_datetime
from stentor.core.db import Sql
from tests.conftest import World
from tests.domains.schedules.test_schedules import PATH, change, create, later, read, runs
from tests.requirements import requirement

MINUTE, HOUR = 60, 3600
ROME, LORD_HOWE, NUUK = "Europe/Rome", "Australia/Lord_Howe", "America/Nuuk"


def set_clock(world: World, zone: str, text: str) -> None:
    """Let time pass until then, by the clocks of the zone."""
    moment = micros_from_datetime(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)))
    world.clock.advance(seconds=(moment - world.clock.now()) / SECOND)


def local(text: str, zone: str) -> str:
    return datetime.fromisoformat(text).astimezone(ZoneInfo(zone)).strftime("%d %H:%M %z")


@requirement("schedules.times", "schedules.once")
@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize(
    ("zone", "begin", "cron", "times"),
    [
        # The hour from 2 to 3 does not exist on the 28th, and comes twice on the 31st of October.
        (ROME, "2027-03-27T01:00", "30 2 * * *", ["27 02:30 +0100", "28 03:00 +0200", "29 02:30 +0200"]),
        (ROME, "2027-10-30T01:00", "30 2 * * *", ["30 02:30 +0200", "31 02:30 +0200", "01 02:30 +0100"]),
        # Clocks move by half an hour: 2:00 to 2:30 does not exist on the 3rd of October.
        (LORD_HOWE, "2027-10-02T01:00", "15 2 * * *", ["02 02:15 +1030", "03 02:30 +1100", "04 02:15 +1100"]),
        # 1:30 to 2:00 comes twice on the 4th of April.
        (LORD_HOWE, "2027-04-03T01:00", "45 1 * * *", ["03 01:45 +1100", "04 01:45 +1100", "05 01:45 +1030"]),
        # The hour before midnight does not exist on the 27th.
        (NUUK, "2027-03-26T20:00", "30 23 * * *", ["26 23:30 -0200", "28 00:00 -0100", "28 23:30 -0100"]),
    ],
)
async def test_a_daily_task_is_submitted_once_a_day_where_clocks_change(
    world: World, zone: str, begin: str, cron: str, times: list[str], is_restarted: bool
) -> None:
    await world.register()
    set_clock(world, zone, begin)
    await create(world, cron=cron, timezone=zone)
    for _ in range(54 * 4):
        world.clock.advance(seconds=15 * MINUTE)
        schedules = world.kernel.schedules
        if is_restarted:
            schedules = open_schedules(
                world.kernel.infra, world.kernel.tasks.submission, world.kernel.agents.routing.is_active
            )
        await schedules.scheduler.tick()
    done = list(reversed(await runs(world)))
    assert [local(run["due_at"], zone) for run in done] == times
    assert {run["outcome"] for run in done} == {"submitted"}


@requirement("schedules.times", "schedules.missed")
@pytest.mark.parametrize(
    ("zone", "begin"),
    [
        (ROME, "2027-03-28T00:30"),
        (ROME, "2027-10-31T00:30"),
        (LORD_HOWE, "2027-10-03T00:30"),
        (LORD_HOWE, "2027-04-04T00:30"),
    ],
)
async def test_of_the_runs_that_were_missed_while_clocks_changed_each_is_made_up_for_once(
    world: World, zone: str, begin: str
) -> None:
    await world.register()
    set_clock(world, zone, begin)
    first = (await create(world, cron="*/15 * * * *", timezone=zone, missed="all"))["next_at"]
    await later(world, 6 * HOUR)
    due = [datetime.fromisoformat(run["due_at"]) for run in reversed(await runs(world))]
    assert due == [datetime.fromisoformat(first) + timedelta(minutes=15 * n) for n in range(24)]


@requirement("schedules.times")
async def test_a_schedule_in_a_zone_that_the_system_no_longer_has_is_paused_says_why_and_hides_no_other(
    world: World,
) -> None:
    await world.register()
    await create(world, "lost", timezone=ROME)
    await create(world, "other")
    # As after an update of the system, which has the zone under another name.
    renamed = Sql("update schedules set timezone = 'Europe/Atlantis' where name = 'lost'")
    await world.kernel.infra.db.write(lambda tx: tx.run(renamed))
    for _ in range(2):
        listed = (await world.admin.get(PATH)).json()
        assert [row["name"] for row in listed["schedules"]] == ["lost", "other"]
        lost = await read(world, "lost")
        assert (
            lost["description"]
            == "No times: timezone: 'Europe/Atlantis' is not a time zone; expected one such as Europe/Rome or UTC"
        )
        assert lost["next_times"] == []
        await later(world, MINUTE)
    assert len(await runs(world, "other")) == 2
    assert lost["paused_reason"].startswith("Its next run cannot be computed: timezone: 'Europe/Atlantis' is not")
    assert "timezone" in (await change(world, "lost", status=400, paused=False))["error"]["message"]
    assert (await change(world, "lost", missed="skip"))["paused"] is True
    mended = await change(world, "lost", timezone="Europe/Rome")
    assert (mended["paused"], mended["paused_reason"], mended["next_at"] is None) == (False, None, False)
    await change(world, "lost", paused=True)
    assert (await change(world, "lost", timezone="UTC"))["paused"] is True
    assert (await world.admin.delete(f"{PATH}/lost")).status_code == 200
