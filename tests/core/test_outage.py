"""What the log says of an outage: enough, and no flood."""

from __future__ import annotations

import pytest

from stentor.core.db.database import REMINDER_SECONDS, OutageLog


def test_it_tells_the_beginning_now_and_then_and_the_end(caplog: pytest.LogCaptureFixture) -> None:
    now = 100.0
    outage = OutageLog("write", lambda: now)
    outage.record_success()
    for _ in range(1000):
        outage.record_failure("disk full")
    now += REMINDER_SECONDS
    for _ in range(1000):
        outage.record_failure("disk still full")
    now += 5
    outage.record_success()
    outage.record_success()
    assert caplog.messages == [
        "database: unavailable operation=write error=disk full",
        "database: still unavailable operation=write seconds=30 failures=1001 error=disk still full",
        "database: recovered operation=write seconds=35.0 failures=2000",
    ]


def test_a_second_outage_is_told_like_the_first(caplog: pytest.LogCaptureFixture) -> None:
    outage = OutageLog("read", lambda: 0.0)
    for reason in ("a", "b"):
        outage.record_failure(reason)
        outage.record_success()
    assert len(caplog.messages) == 4
    assert "failures=1" in caplog.messages[-1]
