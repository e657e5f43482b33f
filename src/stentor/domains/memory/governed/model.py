"""The arguments and results of the governed memory's four tools. Source: second contract, "Governed memory server".

The descriptions are published in the tools' schemas.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from stentor.core.jsontext import JsonObject
from stentor.domains.memory.validity.model import Exclusion

MAX_CONTENT = 4_000_000
"""In characters."""
Namespace = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=512,
        description="Folder of the memory, such as `team/decisions`; `vault/Projects` is one of the vault, "
        "`vault:archive/2025` one of the vault with that name.",
    ),
]
Key = Annotated[str, Meta(min_length=1, max_length=200, description="Name of the record; it has no slash.")]
SearchMode = Literal["keyword", "semantic", "hybrid"]
Disposition = Literal["created", "updated", "replayed"]
Sha256Hex = Annotated[str, Meta(min_length=64, max_length=64, pattern="^[0-9a-f]*$")]
CallKey = Annotated[str, Meta(min_length=1, max_length=255, pattern=r"^[^\x00]*$")]


class WriteAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    namespace: Namespace
    key: Key
    content: Annotated[str, Meta(max_length=MAX_CONTENT, description="The whole text, in Markdown.")]
    idempotency_key: Annotated[
        CallKey | None, Meta(description="A repeated call with the same key returns the first response again.")
    ] = None
    base_hash: Annotated[
        Sha256Hex | None, Meta(description="The content_sha256 that was read; any other state is a conflict.")
    ] = None
    metadata: Annotated[JsonObject | None, Meta(description="The complete frontmatter; null leaves it unchanged.")] = (
        None
    )


class ReadAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    namespace: Namespace
    key: Key


class SearchAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    namespace: Namespace
    query: Annotated[str, Meta(min_length=1, max_length=10_000, description="What to search for, in plain words.")]
    mode: Annotated[SearchMode, Meta(description="Keyword, semantic or hybrid search.")] = "hybrid"
    limit: Annotated[int, Meta(ge=1, le=100, description="Results per page.")] = 10
    cursor: Annotated[str | None, Meta(description="next_cursor of the previous page.")] = None
    as_of: Annotated[
        Annotated[str, Meta(max_length=40)] | None,
        Meta(
            description="Only what was valid at this date (its end, UTC) or ISO time, such as 2026-02-28 for what was "
            "valid before March; null: what is valid now."
        ),
    ] = None
    include_invalid: Annotated[bool, Meta(description="Also records that are invalid, each with the reason.")] = False


class StatusAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    namespace: Namespace
    record_id: Annotated[str | None, Meta(description="A record of the namespace; null for the namespace only.")] = None


class WrittenRecord(msgspec.Struct, frozen=True):
    """The result of a write.

    `content_sha256` covers the content without frontmatter; a later write passes it as `base_hash`. `path` is the path
    of the note in the vault, for citations.
    """

    record_id: str
    namespace: str
    key: str
    version: int
    content_sha256: str
    disposition: Disposition
    provenance_id: str
    path: str = ""


class ReadRecord(msgspec.Struct, frozen=True):
    """`invalid` is why searches leave the record out; it is absent for a valid one."""

    record_id: str
    namespace: str
    key: str
    content: str
    metadata: JsonObject
    version: int
    content_sha256: str
    provenance_id: str
    path: str
    disposition: None = None
    invalid: Exclusion | msgspec.UnsetType = msgspec.UNSET


class FoundRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A search result. `version` is null for a state that was never read or written through this server.

    `weak`: nothing is nearer to the query than made-up words are. Hybrid search marks only notes without a word of it.
    """

    record_id: str
    path: str
    key: str
    title: str
    excerpt: str
    score: float
    version: int | None
    content_sha256: str
    invalid: Exclusion | None = None
    weak: bool = False


class FoundRecords(msgspec.Struct, frozen=True, omit_defaults=True):
    """A page of search results. `incomplete`: the index is being built, so records may be missing."""

    namespace: str
    query: str
    mode: SearchMode
    results: list[FoundRecord]
    total: int
    next_cursor: str | None
    provenance_id: str
    incomplete: bool = False


class RecordStatus(msgspec.Struct, frozen=True):
    """The state of one record. `indexed`: keyword search finds it; `embedded`: semantic search does too."""

    record_id: str
    version: int | None
    content_sha256: str
    size: int
    modified_at: str
    indexed: bool
    embedded: bool


class MemoryStatus(msgspec.Struct, frozen=True):
    """The figures of a namespace; `size` in bytes. `semantic` is why semantic search is unavailable, or null."""

    namespace: str
    records: int
    size: int
    embedded: int
    last_change: str | None
    semantic: str | None
    record: RecordStatus | None
    provenance_id: str
