"""What a test reads in `caplog` was logged by itself; `tests/conftest.py` says how."""

from __future__ import annotations

import gc
import logging

import pytest


class Unread:
    """Like a task whose failure nobody has read."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        logging.getLogger("asyncio").error("Task exception was never retrieved")


def test_the_garbage_of_an_earlier_test_is_in_no_log(request: pytest.FixtureRequest) -> None:
    Unread()  # by an earlier test
    caplog = request.getfixturevalue("caplog")
    gc.collect()
    assert caplog.messages == []
