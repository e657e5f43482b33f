"""What the log says of an outage: enough, and no flood."""

from __future__ import annotations

import pytest

from stentor.core.db.database import REMINDER_SECONDS, OutageLog


def test_it_tells_the_beginning_now_and_then_and_the_end(caplog: pytest.LogCaptureFixture) -> None:
    now = 100.0
    outage = OutageLog("written", lambda: now)
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
        "the database cannot be written: disk full",
        "for 30 s the database cannot be written (1001 tries): disk still full",
        "the database can be written again after 35.0 s (2000 tries failed)",
    ]


def test_a_second_outage_is_told_like_the_first(caplog: pytest.LogCaptureFixture) -> None:
    outage = OutageLog("read", lambda: 0.0)
    for reason in ("a", "b"):
        outage.record_failure(reason)
        outage.record_success()
    assert len(caplog.messages) == 4
    assert "(1 tries failed)" in caplog.messages[-1]
