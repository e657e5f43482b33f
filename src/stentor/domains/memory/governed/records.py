"""Addresses, version numbers and search cursors of records: notes of the vault by namespace and key.

Pure except for the SQL of the version numbers. Source: docs/decisions, "Notes, memory server, dashboard".
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

import msgspec

from stentor.auth.authority.context import NAMED_VAULT_PREFIX, VAULT_NAMESPACE
from stentor.core.db import Tx
from stentor.core.errors import InvalidRequest
from stentor.domains.memory import store
from stentor.domains.memory.vaults import DEFAULT_VAULT
from stentor_vault.notes import paths

RECORDS_ROOT = "Memory"
NOTE_SUFFIX = ".md"
MAX_OFFSET = 10_000


class RecordAddress(msgspec.Struct, frozen=True):
    """The address of a record. `record_id` is `<namespace>/<key>`, unambiguous because a key has no slash.

    The namespaces below `vault` are the folders of the default vault, those below `vault:<name>` of a named one; all
    others are folders below `Memory` in the default vault. `path` is relative to the vault. A key may have the suffix
    of the file; that of `a.md.md` needs it.
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
        name = self.key if self.key.endswith(NOTE_SUFFIX) else f"{self.key}{NOTE_SUFFIX}"
        return f"{folder}/{name}" if folder else name


def resolve_record(namespace: str, key: str) -> RecordAddress:
    """Return the normalized address. Raises InvalidRequest, which names the wrong field."""
    if not key or "/" in key:
        raise InvalidRequest("key: must be the name of one record, without a slash; the namespace is a separate field.")
    _check_spelling(namespace)
    path = paths.normalize_path(RecordAddress(namespace, key).path)
    return record_at_path(path, vault_of_namespace(namespace))


def parse_record_id(record_id: str) -> RecordAddress:
    """Return the address in a record id. Raises InvalidRequest."""
    namespace, _, key = record_id.rpartition("/")
    if not namespace:
        raise InvalidRequest("record_id: must have the form <namespace>/<key>.")
    return resolve_record(namespace, key)


def record_at_path(path: str, vault: str) -> RecordAddress:
    """Return the canonical address of a note, which may have been requested under several namespaces."""
    folder, _, name = path.rpartition("/")
    key = name.removesuffix(NOTE_SUFFIX)
    return RecordAddress(namespace_of_folder(folder, vault), name if key.endswith(NOTE_SUFFIX) else key)


def normalize_namespace(text: str) -> str:
    """Return the canonical namespace, in Unicode form NFC. Raises InvalidRequest."""
    if not text:
        raise InvalidRequest("namespace: is empty.")
    _check_spelling(text)
    folder = folder_of_namespace(text)
    return namespace_of_folder(paths.normalize_path(folder) if folder else "", vault_of_namespace(text))


def _check_spelling(namespace: str) -> None:
    """Raise InvalidRequest for a namespace that only looks like one of a named vault."""
    first = namespace.partition("/")[0]
    if not is_vault_namespace(namespace) and first.casefold().startswith(NAMED_VAULT_PREFIX):
        raise InvalidRequest(f"namespace: {first!r} must begin with {NAMED_VAULT_PREFIX!r}, in lower case.")


def is_vault_namespace(namespace: str) -> bool:
    """Return whether a namespace is a vault or a folder of one."""
    first = namespace.partition("/")[0]
    return first == VAULT_NAMESPACE or first.startswith(NAMED_VAULT_PREFIX)


def vault_of_namespace(namespace: str) -> str:
    """Return the name of the vault that contains the namespace's notes."""
    first = namespace.partition("/")[0]
    return first.removeprefix(NAMED_VAULT_PREFIX) if first.startswith(NAMED_VAULT_PREFIX) else DEFAULT_VAULT


def folder_of_namespace(namespace: str) -> str:
    """Return the namespace's folder in its vault; the empty string is the root."""
    return namespace.partition("/")[2] if is_vault_namespace(namespace) else f"{RECORDS_ROOT}/{namespace}"


def namespace_of_folder(folder: str, vault: str = DEFAULT_VAULT) -> str:
    """Return the canonical namespace of a folder.

    Each folder has exactly one, so that its notes cannot be reached under a second name with other access rules.
    """
    below = folder.removeprefix(f"{RECORDS_ROOT}/")
    # The folder `Memory/vault/x` must not get the namespace `vault/x`, which is that of the folder `x`.
    if vault == DEFAULT_VAULT and below != folder and not is_vault_namespace(below):
        return below
    root = VAULT_NAMESPACE if vault == DEFAULT_VAULT else NAMED_VAULT_PREFIX + vault
    return f"{root}/{folder}" if folder else root


def record_versions(tx: Tx, path: str, *file_hashes: str) -> int:
    """Record the states (file hashes) that a record went through; return the version number of the last one.

    A state equal to the previous one is not a new version. A change from outside counts when it is first recorded.
    """
    version, last_hash = store.find_record_version(tx, path) or (0, "")
    stored_version = version
    for file_hash in file_hashes:
        # An empty hash stands for no file, which is not a state of the record.
        if file_hash and file_hash != last_hash:
            version, last_hash = version + 1, file_hash
    if version != stored_version:
        store.save_record_version(tx, path, version, last_hash)
    return version


def find_version(tx: Tx, path: str, file_hash: str) -> int | None:
    """Return the version number if the last recorded state has this file hash, else None."""
    version, last_hash = store.find_record_version(tx, path) or (None, "")
    return version if last_hash == file_hash else None


def encode_cursor(offset: int, search_key: list[Any]) -> str:
    """Return an opaque cursor for the next page of a search."""
    return base64.urlsafe_b64encode(msgspec.json.encode([offset, search_key])).decode().rstrip("=")


def decode_cursor(cursor: str | None, search_key: list[Any]) -> int:
    """Return the offset in a cursor, 0 without one. Raises InvalidRequest for an invalid one or another search's."""
    if cursor is None:
        return 0
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), altchars=b"-_", validate=True)
        offset, cursor_key = msgspec.json.decode(raw, type=tuple[int, list[Any]])
    except (binascii.Error, ValueError, msgspec.DecodeError, RecursionError):
        raise InvalidRequest("cursor: was not issued by this server; pass next_cursor of the previous page.") from None
    # The cursor is not signed, so its offset may be any number.
    if cursor_key != search_key or not 0 < offset <= MAX_OFFSET:
        raise InvalidRequest("cursor: belongs to another search; repeat the namespace, query and mode with it.")
    return offset
