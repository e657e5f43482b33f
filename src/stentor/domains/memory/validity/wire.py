"""What searches and reads say about the validity of notes, and what a search is asked for."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from stentor.web.wire import ResponseModel


class CauseOut(ResponseModel):
    """What is invalid: a note, a claim (`path#heading`, `path^id`) or a source, with why, who and when if known."""

    kind: Literal["note", "claim", "source"]
    target: str
    reason: str | None
    by: str | None
    at: str | None


class ChainLinkOut(ResponseModel):
    """A note, and the entry of its `derived_from` that leads to the next note of the chain or to the cause."""

    path: str
    derived_from: str


class ExclusionOut(ResponseModel):
    """Why a note is invalid; `chain` is how it was derived from the cause, empty for a note that is marked itself."""

    cause: CauseOut
    chain: list[ChainLinkOut]


IncludeInvalid = Annotated[bool, Field(description="Also the notes that are invalid, each with why.")]
AsOf = Annotated[
    str | None,
    Field(
        max_length=40,
        description="The notes that held at this time: ISO 8601, UTC without a zone; a date is the end of that day. "
        "Without it: those that hold now.",
        examples=["2026-02-28"],
    ),
]
