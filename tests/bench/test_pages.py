"""Which pages the bench of the dashboard asks for."""

from __future__ import annotations

import re

from bench.dashboard import pages

from stentor.surfaces.dashboard.pages import app

IDS = {
    name: [f"{name}-{n}" for n in range(3)]
    for name in (
        *("agent_id", "task_id", "cursor", "update_id", "checkpoint_id", "rollback_id", "message_id"),
        *("webhook_id", "delivery_id"),
    )
}


def test_every_page_that_needs_no_id_is_measured() -> None:
    plain = {path for method, path, _ in app.ROUTES if method == "GET" and "{" not in path}
    measured = {address.partition("?")[0] for address in pages.draws({"task_id": ["t"]})}
    assert plain - measured == {"/live"}


def test_a_page_whose_id_is_not_known_is_left_out() -> None:
    found, left_out = pages.addresses({"task_id"})
    assert "/tasks/{task_id}" in found
    assert "/agents/{agent_id}" in left_out
    assert not set(found) & set(left_out)


def test_addresses_are_filled_with_what_is_known() -> None:
    drawn = {address: draw() for address, draw in pages.draws(IDS).items()}
    assert not [path for path in drawn.values() if re.search(r"[{}]", path)]
    assert drawn["/agents/{agent_id}"] in {f"/agents/{one}" for one in IDS["agent_id"]}
    assert re.fullmatch(r"/memory/note\?path=note-\d+\.md", drawn["/memory/note?path={note}"])
