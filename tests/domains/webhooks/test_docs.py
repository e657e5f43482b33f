"""docs/webhooks.md agrees with the code: event names, retry delays, and the signature example."""

from __future__ import annotations

import base64
import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook

from stentor.domains.webhooks import model, sender
from tests.requirements import requirement

PAGE = (Path(__file__).parents[3] / "docs" / "webhooks.md").read_text()


def test_docs_list_exactly_the_existing_events() -> None:
    kinds = "|".join({name.partition(".")[0] for name in model.EVENTS})
    assert set(re.findall(rf"`((?:{kinds})\.[a-z_]+)`", PAGE)) == set(model.EVENTS)


@requirement("webhooks.retries")
def test_retry_delays_match_the_standard_and_the_docs() -> None:
    seconds = [5, 5 * 60, 30 * 60, *(hours * 3600 for hours in (2, 5, 10, 14, 20, 24))]
    assert [wait // 1_000_000 for wait in model.RETRY_DELAYS_US] == seconds
    assert "5 s, 5 min, 30 min, 2 h, 5 h, 10 h, 14 h, 20 h and 24 h" in PAGE


@requirement("webhooks.signed-headers")
def test_python_example_in_the_docs_verifies_our_signature(capsys: pytest.CaptureFixture[str]) -> None:
    secret = sender.new_secret()
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    scope: dict[str, Any] = {}
    exec(code.replace("whsec_...", secret), scope)
    body = b'{"event":"task.completed","data":{"task_id":"t"}}'
    scope["handle"](sender.signature_headers("m", int(time.time()), body, [secret]), body)
    assert capsys.readouterr().out == "task.completed {'task_id': 't'}\n"


@requirement("webhooks.signed-headers")
@given(body=st.text(max_size=200), message=st.uuids(), seed=st.binary(min_size=24, max_size=64))
def test_signature_matches_the_official_library(body: str, message: Any, seed: bytes) -> None:
    secret = "whsec_" + base64.b64encode(seed).decode()
    now = int(time.time())
    ours = sender.signature_headers(str(message), now, body.encode(), [secret])
    official = Webhook(secret).sign(str(message), datetime.fromtimestamp(now, UTC), body)
    assert ours["webhook-signature"] == official
