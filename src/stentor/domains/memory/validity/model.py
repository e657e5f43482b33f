"""Why a note is excluded from searches: its cause, and the chain of derivations that leads to the cause. Pure."""

from __future__ import annotations

from typing import Literal

import msgspec

from stentor.domains.memory.validity.frontmatter_keys import Mark, split_path

TargetKind = Literal["note", "claim", "source"]


class Cause(Mark, frozen=True):
    """What is invalid: a note, a claim in one (`path#heading`, `path^id`) or a source, with why, who and when."""

    kind: TargetKind = "note"
    target: str = ""

    @property
    def path(self) -> str:
        """The path of the note, empty for a source."""
        if self.kind == "source":
            return ""
        return split_path(self.target)[0] if self.kind == "claim" else self.target


class ChainLink(msgspec.Struct, frozen=True):
    """A note of a chain of derivations, and the entry of its `derived_from` that leads to the next one."""

    path: str
    derived_from: str


class Exclusion(msgspec.Struct, frozen=True):
    """Why a note is excluded: `chain` leads from it to the cause, and is empty for a note that is marked itself."""

    path: str
    cause: Cause
    chain: tuple[ChainLink, ...] = ()
