"""Records: documents of the vault by namespace and key. Pure but for the SQL of their versions.

Source: docs/decisions, "Notes, memory server, dashboard".
"""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from stentor.auth.authority.context import NAMED_VAULT_PREFIX, VAULT_NAMESPACE
from stentor.core.db import Sql, Tx
from stentor.core.errors import InvalidRequest
from stentor.domains.memory.vaults import DEFAULT_VAULT
from stentor.domains.notes import paths

RECORDS_ROOT = "Memory"
NOTE_SUFFIX = ".md"
MAX_OFFSET = 10_000
SearchMode = Literal["keyword", "semantic", "hybrid"]
Disposition = Literal["created", "updated", "replayed"]
NonEmptyStr = Annotated[str, Meta(min_length=1)]
Sha256Hex = Annotated[str, Meta(min_length=64, max_length=64, pattern="^[0-9a-f]*$")]
"""In hex."""

_SEEN = Sql("select version, raw_hash from memory_records where path = :path")
_SEE = Sql(
    """insert into memory_records (path, version, raw_hash) values (:path, :version, :raw_hash)
    on conflict (path) do update set version = excluded.version, raw_hash = excluded.raw_hash"""
)


class RecordAddress(msgspec.Struct, frozen=True):
    """Where a document is kept. `record_id` is `<namespace>/<key>`; a key has no slash, so that it is unambiguous.

    The namespaces below `vault` are the folders of the vault, those below `vault:<name>` of a named one; all others
    are folders below `Memory`. `path` is in its vault.
    """

    namespace: str
    key: str

    @property
    def record_id(self) -> str:
        return f"{self.namespace}/{self.key}"

    @property
    def vault(self) -> str:
        return vault_of_namespace(self.namespace)

    @property
    def path(self) -> str:
        folder = folder_of_namespace(self.namespace)
        return f"{folder}/{self.key}{NOTE_SUFFIX}" if folder else f"{self.key}{NOTE_SUFFIX}"


def resolve_record(namespace: str, key: str) -> RecordAddress:
    """Raises InvalidRequest, which says whether the namespace or the key is wrong."""
    if not key or "/" in key:
        raise InvalidRequest("key: is the name of one record, without a slash; the namespace is a field of its own.")
    if is_vault_namespace(namespace):
        key = key.removesuffix(NOTE_SUFFIX)  # people name a note of the vault by its file
    return record_at_path(paths.normalize_path(RecordAddress(namespace, key).path), vault_of_namespace(namespace))


def parse_record_id(record_id: str) -> RecordAddress:
    """Raises InvalidRequest."""
    namespace, _, key = record_id.rpartition("/")
    if not namespace:
        raise InvalidRequest("record_id: has the form <namespace>/<key>.")
    return resolve_record(namespace, key)


def record_at_path(path: str, vault: str = DEFAULT_VAULT) -> RecordAddress:
    """The one record that a note of the vault is, whichever way it was asked for."""
    folder, _, name = path.rpartition("/")
    return RecordAddress(namespace_of_folder(folder, vault), name.removesuffix(NOTE_SUFFIX))


def normalize_namespace(text: str) -> str:
    """In NFC. Raises InvalidRequest."""
    if not text:
        raise InvalidRequest("namespace: is empty.")
    folder = folder_of_namespace(text)
    return namespace_of_folder(paths.normalize_path(folder) if folder else "", vault_of_namespace(text))


def is_vault_namespace(namespace: str) -> bool:
    """Whether it is a vault, or a folder of one."""
    first = namespace.partition("/")[0]
    return first == VAULT_NAMESPACE or first.startswith(NAMED_VAULT_PREFIX)


def vault_of_namespace(namespace: str) -> str:
    """The name of the vault that its notes lie in."""
    first = namespace.partition("/")[0]
    return first.removeprefix(NAMED_VAULT_PREFIX) if first.startswith(NAMED_VAULT_PREFIX) else DEFAULT_VAULT


def folder_of_namespace(namespace: str) -> str:
    """Of its vault; the empty text is the root."""
    return namespace.partition("/")[2] if is_vault_namespace(namespace) else f"{RECORDS_ROOT}/{namespace}"


def namespace_of_folder(folder: str, vault: str = DEFAULT_VAULT) -> str:
    """The one namespace of a folder, by which access to it is decided."""
    below = folder.removeprefix(f"{RECORDS_ROOT}/")
    if vault == DEFAULT_VAULT and below != folder and not is_vault_namespace(below):
        return below
    root = VAULT_NAMESPACE if vault == DEFAULT_VAULT else NAMED_VAULT_PREFIX + vault
    return f"{root}/{folder}" if folder else root


def record_versions(tx: Tx, path: str, *states: str) -> int:
    """The record went through these states (hashes of its file); answers the number of the last one.

    A state that is the one before it is no new version; one that a person made is counted when it is first seen.
    """
    row = tx.row(_SEEN, path=path)
    version, known = (int(row[0]), str(row[1])) if row else (0, "")
    before = version
    for state in states:
        if state and state != known:
            version, known = version + 1, state
    if version != before:
        tx.run(_SEE, path=path, version=version, raw_hash=known)
    return version


def find_version(tx: Tx, path: str, state: str) -> int | None:
    """The number of a state that is the last one seen; None when the record is in another."""
    row = tx.row(_SEEN, path=path)
    return int(row[0]) if row and row[1] == state else None


def encode_cursor(offset: int, asked: list[Any]) -> str:
    """Where the next page of this search begins; opaque for the caller."""
    return base64.urlsafe_b64encode(msgspec.json.encode([offset, asked])).decode().rstrip("=")


def decode_cursor(cursor: str | None, asked: list[Any]) -> int:
    """Raises InvalidRequest for a cursor that is none, or of another search."""
    if cursor is None:
        return 0
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        offset, of = msgspec.json.decode(raw, type=tuple[int, list[Any]])
    except (binascii.Error, ValueError, msgspec.DecodeError):
        raise InvalidRequest("cursor: is none that this server gave.") from None
    if of != asked or not 0 < offset <= MAX_OFFSET:
        raise InvalidRequest("cursor: belongs to another search; repeat the namespace, query and mode with it.")
    return offset
