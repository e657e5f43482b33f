"""What the four tools take and answer. Source: second contract, "Governed memory server"."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from stentor.domains.memory.governed.records import Disposition, NonEmptyStr, SearchMode, Sha256Hex

MAX_CONTENT = 4_000_000
"""Characters."""
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


class WriteAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    namespace: Namespace
    key: Key
    content: Annotated[str, Meta(max_length=MAX_CONTENT, description="The whole text, in Markdown.")]
    idempotency_key: Annotated[
        NonEmptyStr | None, Meta(description="Repeat it with the same call, and the first answer comes again.")
    ] = None
    base_hash: Annotated[
        Sha256Hex | None, Meta(description="The content_sha256 that was read; another state is a conflict.")
    ] = None
    metadata: Annotated[
        dict[str, Any] | None, Meta(description="The frontmatter, all of it; null leaves it as it is.")
    ] = None


class ReadAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    namespace: Namespace
    key: Key


class SearchAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    namespace: Namespace
    query: Annotated[str, Meta(min_length=1, max_length=10_000, description="What to look for, in plain words.")]
    mode: Annotated[SearchMode, Meta(description="By word, by meaning, or by both.")] = "hybrid"
    limit: Annotated[int, Meta(ge=1, le=100, description="Results of one page.")] = 10
    cursor: Annotated[str | None, Meta(description="next_cursor of the page before.")] = None


class StatusAsked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    namespace: Namespace
    record_id: Annotated[str | None, Meta(description="One record of the namespace; null for the namespace.")] = None


class WrittenRecord(msgspec.Struct, frozen=True):
    """`content_sha256` is that of the content alone, and what a `base_hash` of a later write names. `path` is that of
    the note in the vault, for citations.
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
    record_id: str
    namespace: str
    key: str
    content: str
    metadata: dict[str, Any]
    version: int
    content_sha256: str
    provenance_id: str
    path: str
    disposition: None = None


class FoundRecord(msgspec.Struct, frozen=True):
    """`version` is null for a state that nobody has read or written through this server yet."""

    record_id: str
    path: str
    key: str
    title: str
    excerpt: str
    score: float
    version: int | None
    content_sha256: str


class FoundRecords(msgspec.Struct, frozen=True):
    namespace: str
    query: str
    mode: SearchMode
    results: list[FoundRecord]
    total: int
    next_cursor: str | None
    provenance_id: str


class RecordStatus(msgspec.Struct, frozen=True):
    """`indexed`: it is found by word; `embedded`: by meaning too."""

    record_id: str
    version: int | None
    content_sha256: str
    size: int
    modified_at: str
    indexed: bool
    embedded: bool


class MemoryStatus(msgspec.Struct, frozen=True):
    """`size` in bytes. `semantic` says why there is no search by meaning, or is null."""

    namespace: str
    records: int
    size: int
    embedded: int
    last_change: str | None
    semantic: str | None
    record: RecordStatus | None
    provenance_id: str
