"""The examples in docs/notes.md."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.surfaces.notestore.note_store import TOOLS, NoteStore

PAGE = Path(__file__).parents[3] / "docs" / "notes.md"
EXAMPLE = re.compile(r"^### (\w+)\n.*?```json\n(.*?)```\n\n```json\n(.*?)```", re.MULTILINE | re.DOTALL)


def test_documented_examples_match_the_responses(store: NoteStore) -> None:
    examples = EXAMPLE.findall(PAGE.read_text())
    assert sorted(tool for tool, _, _ in examples) == sorted(TOOLS)
    for tool, body, response in examples:
        assert store.call(tool, **json.loads(body)).json() == json.loads(response), tool
