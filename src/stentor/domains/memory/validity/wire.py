"""Requests and responses of invalidations and restores."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints

from stentor.core.errors import InvalidRequest
from stentor.domains.memory.validity.model import TargetKind
from stentor.domains.memory.validity.service import InvalidationTarget, VaultExclusion
from stentor.domains.memory.vaults import DEFAULT_VAULT
from stentor.domains.memory.wire import CauseOut, ExclusionOut, VaultName
from stentor.web.routes import RequestModel, example_config
from stentor.web.wire import ResponseModel, Timestamp


class TargetIn(RequestModel):
    """What is invalid: exactly one of a note, a claim and a source."""

    note: Annotated[str, StringConstraints(min_length=1, max_length=4096)] | None = None
    claim: Annotated[str, StringConstraints(min_length=1, max_length=4096)] | None = None
    source: Annotated[str, StringConstraints(min_length=1, max_length=2000)] | None = None
    vault: VaultName = DEFAULT_VAULT

    def to_target(self) -> InvalidationTarget:
        """Raises InvalidRequest unless exactly one is given."""
        kinds: tuple[TargetKind, ...] = ("note", "claim", "source")
        given = [InvalidationTarget(kind, text) for kind in kinds if (text := getattr(self, kind)) is not None]
        if len(given) != 1:
            raise InvalidRequest("note, claim, source: name exactly one of them.")
        if "\0" in given[0].text:
            raise InvalidRequest(f"{given[0].kind}: must not contain the character NUL.")
        return given[0]


MarkReason = Annotated[
    str, StringConstraints(strip_whitespace=True, min_length=1, max_length=500, pattern=r"^[^\x00-\x1f\x7f]*$")
]


class InvalidateIn(TargetIn):
    model_config = example_config(source="https://example.com/prices", reason="the vendor's page was wrong")

    reason: MarkReason


class RestoreIn(TargetIn):
    model_config = example_config(source="https://example.com/prices", reason="the vendor confirmed it")

    reason: MarkReason | None = None


class InvalidNoteOut(ExclusionOut):
    """A note that is or was invalid, with its cause and the chain that leads to it."""

    path: str
    vault: str

    @classmethod
    def of_note(cls, note: VaultExclusion) -> InvalidNoteOut:
        return cls.of(note.exclusion, vault=note.vault)


class InvalidatedOut(ResponseModel):
    """The notes that left all searches, at most 500 of `total`; a claim's own note stays."""

    left: list[InvalidNoteOut]
    total: int


class RestoredOut(ResponseModel):
    """The notes that searches find again, at most 500 of `total`, each with the reason for its exclusion.

    A note that is derived from something else that is invalid is not among them.
    """

    returned: list[InvalidNoteOut]
    total: int


class InvalidSourceOut(ResponseModel):
    source: str
    reason: str
    by: Annotated[str, Field(validation_alias="invalidated_by")]
    at: Annotated[Timestamp, Field(validation_alias="invalidated_at")]


class InvalidListOut(ResponseModel):
    """The sources that are invalid, in all vaults, and a page of the invalid notes of one vault, by path.

    `claims` are the invalid passages of that vault, the first 500: their own notes are searchable without them.
    """

    sources: list[InvalidSourceOut]
    claims: list[CauseOut]
    notes: list[InvalidNoteOut]
    total: int
    next_cursor: str | None
