"""What the log says of an outage: enough, and no flood."""

from __future__ import annotations

import pytest

from stentor.core.db.outage import REMIND_SECONDS, Outage


def test_it_tells_the_beginning_now_and_then_and_the_end(caplog: pytest.LogCaptureFixture) -> None:
    now = 100.0
    outage = Outage("written", lambda: now)
    outage.worked()
    for _ in range(1000):
        outage.failed("disk full")
    now += REMIND_SECONDS
    for _ in range(1000):
        outage.failed("disk still full")
    now += 5
    outage.worked()
    outage.worked()
    assert caplog.messages == [
        "the database cannot be written: disk full",
        "for 30 s the database cannot be written (1001 tries): disk still full",
        "the database can be written again after 35.0 s (2000 tries failed)",
    ]


def test_a_second_outage_is_told_like_the_first(caplog: pytest.LogCaptureFixture) -> None:
    outage = Outage("read", lambda: 0.0)
    for reason in ("a", "b"):
        outage.failed(reason)
        outage.worked()
    assert len(caplog.messages) == 4
    assert "(1 tries failed)" in caplog.messages[-1]
