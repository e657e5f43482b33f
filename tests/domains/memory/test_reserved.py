"""Agents do not write where a note acts with more authority than theirs. BOSS has the role agent and admin."""

from __future__ import annotations

import json

import pytest

from tests.domains.memory.conftest import Notes
from tests.patience import soon
from tests.requirements import requirement

TASK = "---\ntype: deploy\nrequired_capabilities: [deploy]\n---\nGo.\n"


@requirement("memory.agents-write-no-tasks")
@pytest.mark.parametrize(
    "path",
    [
        *("Tasks/Inbox/sly.md", "tasks/Inbox/sly.md", "TASKS/x.md", "Memory/other/x.md", "memory/a.md"),
        *("Ta\u200bsks/Inbox/sly.md", "\u2060Tasks/x.md", "TASKS\u200d/x.md", "Memory\u200c /x.md", "\uff34asks/x.md"),
        *("Ta\u034fsks/Inbox/sly.md", "Tasks\ufe0f/x.md", "Memory\u3164/x.md", "Memory\U000e0100/x.md"),
    ],
)
@pytest.mark.parametrize("operation", ["write", "update", "delete"])
async def test_an_agents_key_writes_to_no_reserved_folder(notes: Notes, path: str, operation: str) -> None:
    content = None if operation == "delete" else TASK
    answer = await notes.write(path, content, operation, client="BOSS")
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "FORBIDDEN")
    assert not (notes.root / path).exists()
    assert (await notes.write("Notes/mine.md", client="BOSS")).status_code == 200
    assert (await notes.write("Tasks/Inbox/person.txt.md")).status_code == 200, "a person may"


@requirement("memory.agents-write-no-tasks")
@pytest.mark.parametrize("action", ["create", "update", "delete"])
async def test_a_message_of_an_agents_key_writes_there_no_more(notes: Notes, action: str) -> None:
    body = {"path": "Tasks/Inbox/sly.md"} | ({} if action == "delete" else {"content": TASK})
    header = {"mode": "direct", "context": "x", "priority": "normal", "actionType": action, "targetZone": "memory"}
    http = notes.world.clients["BOSS"]
    message = {"header": header, "payload": {"content": json.dumps(body)}}
    answer = await http.post("/api/v1/atp/send", json=message)
    assert answer.status_code == 202, answer.text
    path = f"/api/v1/atp/response/{answer.json()['messageId']}"

    async def known() -> dict[str, object] | None:
        found = await http.get(path)
        return dict(found.json()["data"]) if found.status_code == 200 else None

    response = await soon(known)
    assert response["response"]["error"]["code"] == "FORBIDDEN"
    assert not (notes.root / "Tasks/Inbox/sly.md").exists()
