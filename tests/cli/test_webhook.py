"""`stentor webhook ...` beside a running service."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from tests.cli.program import Program
from tests.faults.test_webhooks import receiving
from tests.ports import free_port
from tests.requirements import requirement


@requirement("webhooks.manage")
def test_a_webhook_is_added_tested_rotated_replayed_and_removed(serve: Callable[..., Any]) -> None:
    service = serve(SERVICE_OUTBOUND_ALLOW="127.0.0.1")
    program = Program(service.data_dir, {"SERVICE_CLIENT_KEY": service.key, **service.state})
    port = str(free_port())
    url = f"http://127.0.0.1:{port}"
    made = program("webhook", "add", url, "--event", "agent.*", "--description", "for tests", "--json").json
    hook, secret = made["id"], made["secret"]
    assert "0" in program("webhook", "list").out.split()
    assert program("webhook", "test", hook).code == 1, "nobody answers yet"
    assert "1, last" in program("webhook", "list").out
    with receiving(int(port)):
        program("agent", "register", "ann")
        log: list[dict[str, Any]] = []
        until = time.monotonic() + 60
        while not [d for d in log if d["status"] == "delivered"]:
            assert time.monotonic() < until
            log = program("webhook", "deliveries", hook, "--event", "agent.registered", "--json").json["deliveries"]
        replayed = program("webhook", "replay", hook[-12:], "--delivery", log[0]["id"][-12:])
        assert (replayed.code, replayed.out) == (0, "Queued deliveries: 1.\n")
        since = program("webhook", "replay", hook, "--since", "2020-01-01T00:00:00Z", "--scope", "all", "--json")
        assert since.json["queued"] >= 1
        assert log[0]["id"][-12:] in program("webhook", "deliveries", hook[:23]).out
    assert program("webhook", "replay", hook).code == 2
    assert hook[-12:] in program("webhook", "list").out
    listed = program("webhook", "list").out
    assert "for tests" in listed
    assert secret not in listed
    turned = program("webhook", "rotate", hook, "--overlap", "0")
    assert "whsec_" in turned.out
    assert secret not in turned.out
    assert program("webhook", "disable", hook).out == f"Webhook {hook} is disabled.\n"
    assert program("webhook", "enable", hook).out == f"Webhook {hook} is enabled.\n"
    assert program("webhook", "remove", hook).out == f"Deleted webhook {hook}.\n"
    gone = program("webhook", "test", hook)
    assert (gone.code, "No webhook has this id. To list them: stentor webhook list" in gone.err) == (3, True)
    for words in (("schedule", "runs"), ("keys", "revoke"), ("provenance", "show")):
        assert "To list them: stentor " in program(*words, "nope").err
    wrong = program("webhook", "add", url, "--event", "task.done")
    assert wrong.code == 3
    assert "task.completed" in wrong.err
