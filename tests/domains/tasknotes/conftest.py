"""A kernel whose tasks are mirrored, and the vault's folder behind it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from stentor.domains.tasknotes.mirror import TaskNoteMirror
from stentor_vault.notes import frontmatter
from tests.conftest import MakeWorld, World
from tests.patience import soon


@dataclass
class Tasks:
    """The tasks of a world and their notes."""

    world: World
    root: Path

    @property
    def mirror(self) -> TaskNoteMirror:
        notes = self.world.kernel.task_notes
        assert notes is not None
        assert notes.mirror is not None
        return notes.mirror

    @property
    def files(self) -> list[Path]:
        return sorted(path for path in self.root.glob("Tasks/[0-9]*/*/*.md"))

    def texts(self) -> list[str]:
        return [path.read_text() for path in self.files]

    def records(self) -> dict[str, dict[str, Any]]:
        """The frontmatter of every note, by task id."""
        read = [frontmatter.read(text) for text in self.texts()]
        return {record["task_id"]: record for record in read}

    def statuses(self) -> dict[str, str]:
        return {task_id: record["status"] for task_id, record in self.records().items()}

    def text_of(self, task_id: str) -> str:
        (found,) = [text for text in self.texts() if frontmatter.read(text)["task_id"] == task_id]
        return found

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until it holds; fails with the notes as they are."""
        await soon(holds, lambda: f"the notes are {self.statuses()}")

    async def until_status(self, task_id: str, status: str) -> None:
        await self.until(lambda: self.statuses().get(task_id) == status)


@pytest.fixture
async def tasks(make_world: MakeWorld, tmp_path: Path) -> Tasks:
    return Tasks(await make_world(SERVICE_MEMORY="1"), tmp_path / "vault")
