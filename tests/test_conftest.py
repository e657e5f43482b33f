"""What `tests/conftest.py` changes for all tests."""

from __future__ import annotations

import gc
import logging

import httpx
import pytest

from tests.conftest import OwnLogs
from tests.patience import PATIENCE_SECONDS


class Unread:
    """Like a task whose failure nobody has read."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        logging.getLogger("asyncio").error("Task exception was never retrieved")


def test_the_garbage_of_an_earlier_test_is_in_no_log(
    request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    Unread()  # by an earlier test
    OwnLogs().pytest_runtest_setup(request.node)
    assert caplog.messages == ["Task exception was never retrieved"]
    caplog.clear()
    gc.collect()
    assert caplog.messages == []


def test_no_short_timeout_of_a_client_decides_a_test() -> None:
    with httpx.Client() as client:
        assert client.timeout == httpx.Timeout(PATIENCE_SECONDS)
