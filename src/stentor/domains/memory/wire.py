"""Requests and responses of the memory bus."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from stentor.core.clock import micros_from_datetime
from stentor.core.errors import InvalidRequest
from stentor.core.jsontext import JsonObject
from stentor.domains.memory.index.model import SEARCH_FIELDS, SearchField, SearchFilters
from stentor.domains.memory.model import VersionCause, WriteDraft
from stentor.domains.memory.vaults import DEFAULT_VAULT
from stentor.web.routes import RequestModel, example_config
from stentor.web.wire import EntityTag, Name, OmittedWhenNone, ResponseModel, Time, Timestamp, UuidText
from stentor_vault.server.entity_tags import InvalidEntityTags, parse_entity_tags

Term = Annotated[str, StringConstraints(min_length=1, max_length=1000)]
FiniteNumber = Annotated[float, Field(allow_inf_nan=False)]
Vector = Annotated[list[FiniteNumber], Field(min_length=1, max_length=8192)]
VersionName = Annotated[
    str, StringConstraints(strip_whitespace=True, min_length=1, max_length=100, pattern=r"^[^\x00-\x1f]*$")
]
VaultName = Annotated[Name, Field(description="The vault, by its name in SERVICE_VAULTS.")]
IncludeInvalid = Annotated[bool, Field(description="Also the notes that are invalid, each with the reason.")]
AsOf = Annotated[
    str | None,
    Field(
        max_length=40,
        description="The notes that were valid at this time: ISO 8601, UTC without a zone; a date is its end. "
        "Without it: those that are valid now.",
        examples=["2026-02-28"],
    ),
]


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


class DocumentIn(RequestModel):
    path: Annotated[str, StringConstraints(max_length=4096)]
    content: str | None = None
    frontmatter: JsonObject | None = None


class WriteMetadata(RequestModel):
    source_agent: UuidText | None = None
    priority: Literal["high", "normal", "low"] = "normal"
    conflict_resolution: Literal["last_write_wins", "abort", "merge"] = "last_write_wins"
    base_hash: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")] | None = None


class WriteIn(RequestModel):
    model_config = example_config(
        operation="write",
        vault="default",
        document={
            "path": "Projects/stentor.md",
            "content": "# Stentor\n\nRoutes tasks to agents.\n",
            "frontmatter": {"tags": ["project"], "created_at": "2026-11-20T21:45:00Z"},
        },
        metadata={"priority": "normal", "conflict_resolution": "abort"},
    )

    operation: Literal["write", "update", "delete"]
    vault: VaultName = DEFAULT_VAULT
    document: DocumentIn
    metadata: WriteMetadata = WriteMetadata()

    def to_draft(self, if_match: str | None, if_none_match: str | None) -> WriteDraft:
        """Return the write with the conditions of these headers. Raises InvalidRequest for invalid entity tags."""
        meta, document = self.metadata, self.document
        return WriteDraft(
            self.operation,
            document.path,
            document.content,
            document.frontmatter,
            meta.source_agent,
            meta.priority,
            meta.conflict_resolution,
            meta.base_hash,
            None if if_match is None else _tags("If-Match", if_match),
            if_none_match=frozenset() if if_none_match is None else _tags("If-None-Match", if_none_match),
        )


def _tags(header: str, text: str) -> frozenset[str]:
    """Weak ones too, because a proxy that compresses a response makes its tag weak."""
    try:
        return parse_entity_tags(text, weak=True)
    except InvalidEntityTags as error:
        raise InvalidRequest(f"{header}: {error}.") from None


class WrittenOut(ResponseModel):
    """`returned` are the notes that searches find again because the deleted note kept them out, the first 500."""

    status: Literal["success", "conflict"]
    write_id: str
    timestamp: Annotated[Timestamp, Field(validation_alias="written_at")]
    latency_ms: float
    content_hash: str
    sync_pending: bool
    estimated_sync_completion: Timestamp
    merged: bool
    conflict_copy: str | None
    etag: EntityTag
    returned: list[str] | None = OmittedWhenNone


class ListedOut(ResponseModel):
    """A document without its text; `size` in bytes."""

    path: str
    title: str
    tags: list[str]
    size: int
    modified_at: Timestamp


class ListOut(ResponseModel):
    """A page of documents; `folders` and `tags` have the number of documents of the whole vault."""

    documents: list[ListedOut]
    folders: dict[str, int]
    tags: dict[str, int]
    next_cursor: str | None


class BacklinksOut(ResponseModel):
    path: str
    backlinks: list[str]


class NeighbourOut(ResponseModel):
    """`distance` is the number of links to the document that was asked about; a missing one has no title."""

    path: str
    title: str
    distance: int
    tags: list[str]


class LinkOut(ResponseModel):
    source: str
    target: str


class NeighbourhoodOut(ResponseModel):
    """The nearest documents first; `omitted` is the number of documents that were found beyond the limit."""

    path: str
    documents: list[NeighbourOut]
    links: list[LinkOut]
    omitted: int


class DocumentOut(ResponseModel):
    path: str
    content: str
    frontmatter: JsonObject
    frontmatter_problem: str | None = OmittedWhenNone


class ReadOut(ResponseModel):
    status: Literal["success", "not_found"]
    document: DocumentOut | None
    latency_ms: float
    etag: EntityTag = None
    invalid: ExclusionOut | None = OmittedWhenNone


class KeywordIn(RequestModel):
    model_config = example_config(terms=["deployment"], fields=["title", "content"], match_mode="any", limit=20)

    terms: Annotated[list[Term], Field(min_length=1, max_length=64)]
    fields: Annotated[list[SearchField], Field(min_length=1, fail_fast=True)] = list(SEARCH_FIELDS)
    match_mode: Literal["all", "any"] = "any"
    limit: Annotated[int, Field(ge=1, le=1000)] = 20
    as_of: AsOf = None
    include_invalid: IncludeInvalid = False
    vault: VaultName = DEFAULT_VAULT


class KeywordMatch(ResponseModel):
    path: str
    vault: str
    title: str
    excerpt: str
    relevance_score: float
    invalid: ExclusionOut | None = OmittedWhenNone


class KeywordOut(ResponseModel):
    """`incomplete` is true while the index is being built: notes may be missing."""

    matches: list[KeywordMatch]
    total_matches: int
    search_latency_ms: float
    incomplete: bool | None = OmittedWhenNone


class FiltersIn(RequestModel):
    hebbian_weight_min: FiniteNumber | None = None
    created_after: Time | None = None

    def to_filters(self) -> SearchFilters:
        after = None if self.created_after is None else micros_from_datetime(self.created_after)
        return SearchFilters(self.hebbian_weight_min, after)


class SemanticIn(RequestModel):
    model_config = example_config(
        query="how tasks find their agent", top_k=5, filters={"created_after": "2026-01-01T00:00:00Z"}
    )

    query: Annotated[str, StringConstraints(max_length=10_000)] = ""
    embedding: Vector | None = None
    top_k: Annotated[int, Field(ge=1, le=1000)] = 10
    filters: FiltersIn = FiltersIn()
    as_of: AsOf = None
    include_invalid: IncludeInvalid = False
    vault: VaultName = DEFAULT_VAULT


class SemanticMatchOut(ResponseModel):
    """`weak` is true if no note is nearer to the query than made-up words are; with the packaged model only."""

    path: str
    vault: str
    content_preview: str
    excerpt: str
    similarity_score: float
    source_level: Literal["document", "section"]
    hebbian_weights: JsonObject
    invalid: ExclusionOut | None = OmittedWhenNone
    weak: bool | None = OmittedWhenNone


class SemanticOut(ResponseModel):
    """`incomplete` is true while the index is being built: notes may be missing."""

    matches: list[SemanticMatchOut]
    total_matches: int
    search_latency_ms: float
    incomplete: bool | None = OmittedWhenNone


class HybridIn(RequestModel):
    model_config = example_config(query="how tasks find their agent", limit=5)

    query: Annotated[str, StringConstraints(min_length=1, max_length=10_000)]
    limit: Annotated[int, Field(ge=1, le=200)] = 20
    filters: FiltersIn = FiltersIn()
    as_of: AsOf = None
    include_invalid: IncludeInvalid = False
    vault: VaultName = DEFAULT_VAULT


class HybridMatchOut(ResponseModel):
    """`weak` is true if it has no word of the query, and no note is nearer to the query than made-up words are."""

    path: str
    vault: str
    title: str
    excerpt: str
    score: float
    keyword_score: float
    similarity_score: float
    invalid: ExclusionOut | None = OmittedWhenNone
    weak: bool | None = OmittedWhenNone


class HybridOut(ResponseModel):
    """`incomplete` is true while the index is being built: notes may be missing."""

    matches: list[HybridMatchOut]
    total_matches: int
    search_latency_ms: float
    incomplete: bool | None = OmittedWhenNone


class VersionOut(ResponseModel):
    """`version` is the SHA-256 of the file's bytes; `origin` says whether the bus wrote it or found it.

    `cause` says how it came about: "found" was there before the service, "edited" is an edit on disk, "restored" a
    write of what an earlier version was. `first_at` is when a version that came back was stored first. A version with
    a `name` is kept however many follow it. `by` is the key that wrote it, and `agent_id` its agent, both null if that
    is unknown, as for an edit on disk.
    """

    version: Annotated[str, Field(validation_alias="content_hash")]
    size: int
    origin: Literal["bus", "vault"]
    created_at: Timestamp
    current: bool
    name: str | None
    cause: VersionCause
    first_at: Timestamp | None
    by: str | None
    agent_id: str | None


class VersionNameIn(RequestModel):
    model_config = example_config(path="Projects/stentor.md", name="before the rewrite")

    path: Annotated[str, StringConstraints(max_length=4096)]
    name: VersionName | None
    vault: VaultName = DEFAULT_VAULT


class VersionNameOut(ResponseModel):
    path: str
    version: str
    name: str | None


class VersionsOut(ResponseModel):
    """`current` is the state of the note as it is, which may be one that is not kept yet; null when it is gone."""

    path: str
    current: str | None
    versions: list[VersionOut]


class VersionDocumentOut(ResponseModel):
    path: str
    version: str
    document: DocumentOut


class BatchIn(RequestModel):
    model_config = example_config(after="", limit=500)

    after: Annotated[str, StringConstraints(max_length=4096, pattern=r"^[^\x00]*$")] = ""
    limit: Annotated[int, Field(ge=1, le=5000)] = 500
    vault: VaultName = DEFAULT_VAULT


class BatchOut(ResponseModel):
    """`next` is what the next call gives as `after`; null at the end. `what` says which notes `done` counts."""

    done: int
    total: int
    next: str | None
    what: Literal["notes", "tasks"]


class DifferenceOut(ResponseModel):
    path: str
    problem: Literal["missing", "stale", "gone", "invalid_name", "not_utf8", "too_large", "unwritten", "altered"]


class VerifyOut(BatchOut):
    differences: list[DifferenceOut]


class PartOut(ResponseModel):
    status: Literal["healthy", "degraded", "unhealthy"]
    latency_ms: float
    sync_lag_ms: float
    detail: str


class StatsOut(ResponseModel):
    total_documents: int | None
    total_size_mb: float | None
    cache_hit_ratio: float | None
    last_sync: Timestamp | None


class HealthOut(ResponseModel):
    """`vaults` are the names of all vaults; the rest is of the one that was asked about."""

    vaults: list[str]
    status: Literal["healthy", "degraded", "unhealthy"]
    components: dict[str, PartOut]
    stats: StatsOut
