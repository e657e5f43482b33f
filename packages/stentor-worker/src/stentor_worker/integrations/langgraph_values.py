"""The sessions that hold the threads of LangGraph: their keys, and requests for many values at once.

The service's side: docs/sessions.md. Why the keys are as they are: docs/decisions/0057-langgraph.md.
"""

from __future__ import annotations

import base64
import hashlib
import string
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any
from urllib.parse import quote, urlencode

from stentor_worker.http.client import Client, ServiceError, create_if_missing, segment

MAX_PART = 200
"""Characters of one part of a key; a longer part is replaced by its hash. A key has at most 1,024."""
MAX_SESSION_ID = 255
MAX_QUERY = 6_000
"""Maximum length of the keys in one URL, percent-encoded."""
MAX_KEYS = 100
MAX_BATCH = 1_000
BATCH_BYTES = 4_000_000
"""Bytes of values in one request, unless a single one has more. In base64 they are 5.4 MB."""
_SAFE = " " + string.punctuation.translate({ord(character): None for character in "/%#"})


class CheckpointError(ServiceError):
    """The service refused a request of the checkpointer, or is unreachable. The text says what to do."""


class Threads:
    """The values of threads: each thread is a session of its own, which is made with its first value.

    Values are bytes. Thread-safe. Every method raises CheckpointError.
    """

    def __init__(self, client: Client, prefix: str, tries: int) -> None:
        self._client, self._prefix, self._tries = client, prefix, tries

    def set(self, thread: str, values: Mapping[str, bytes], *, if_absent: bool = False) -> None:
        """Set values in this order, in one transaction unless they are too many or too long for one request."""
        for batch in _batches(values):
            encoded = {key: base64.b64encode(value).decode() for key, value in batch.items()}
            body = {"bytes": encoded, "if_absent": if_absent}
            send = partial(self._call, "PUT", thread, "/values", body)
            create_if_missing(send, partial(self._create, thread))

    def read(self, thread: str, keys: Iterable[str]) -> dict[str, bytes]:
        """Return the values of these keys; those that do not exist are left out."""
        values: dict[str, bytes] = {}
        for batch in _split_keys(keys):
            values |= self._read(thread, batch)
        return values

    def scan(self, thread: str, prefix: str, before: str | None = None, page: int = 100) -> Iterator[tuple[str, bytes]]:
        """Yield the values whose key begins with `prefix` and sorts before `before`, the last key first."""
        query: dict[str, Any] = {"prefix": prefix, "order": "key_descending", "limit": page}
        query |= {} if before is None else {"before": before}
        for values in _pages(partial(self._get, thread), "/values", query):
            yield from _decode(values).items()

    def remove(self, thread: str, keys: Iterable[str], prefixes: Iterable[str] = ()) -> None:
        """Remove values by their key or its beginning."""
        for field, wanted in (("keys", keys), ("prefixes", prefixes)):
            listed = list(dict.fromkeys(wanted))
            for start in range(0, len(listed), MAX_BATCH):
                self._call("POST", thread, "/clear", {field: listed[start : start + MAX_BATCH]})

    def delete(self, thread: str) -> None:
        """Delete the session of a thread; with a key that may not, remove its values. Without a session, do nothing."""
        try:
            self._call("DELETE", thread, "")
        except CheckpointError as error:
            if error.status == 403:
                # Emptying needs only the permission to write.
                self._call("POST", thread, "/clear", {"values": ""})
            elif not error.is_missing:
                raise

    def __iter__(self) -> Iterator[str]:
        """Yield the threads that the key may use, the last changed first."""
        for page in _pages(lambda path: self._request("GET", path, None, None), "/sessions", {"limit": 1_000}):
            for session in page["sessions"]:
                thread = session["metadata"].get("thread_id")
                # Compared, because sessions of other programs, or of another prefix, may have such metadata too.
                if isinstance(thread, str) and self._session_id(thread) == session["session_id"]:
                    yield thread

    def _read(self, thread: str, keys: list[str]) -> dict[str, bytes]:
        """Read some keys, in two halves if they are too long together."""
        try:
            return _decode(self._get(thread, "/values?" + urlencode([("key", key) for key in keys])))
        except CheckpointError as error:
            # The service counts an address in its own way: shorter lists may pass where this one did not.
            if error.status != 400 or len(keys) == 1:
                raise
        half = len(keys) // 2
        return self._read(thread, keys[:half]) | self._read(thread, keys[half:])

    def _get(self, thread: str, path: str) -> dict[str, Any]:
        """Return a page of values, an empty one for a thread without a session."""
        try:
            page: dict[str, Any] = self._call("GET", thread, path)
        except CheckpointError as error:
            if not error.is_missing:
                raise
            return {"values": []}
        return page

    def _create(self, thread: str) -> None:
        body = {"id": self._session_id(thread), "metadata": {"thread_id": thread}}
        self._request("POST", "/sessions", body, thread)

    def _call(self, method: str, thread: str, path: str, body: Any = None) -> Any:
        return self._request(method, f"/sessions/{segment(self._session_id(thread))}{path}", body, thread)

    def _request(self, method: str, path: str, body: Any, thread: str | None) -> Any:
        try:
            return self._client.call(method, path, body, tries=self._tries)
        except ServiceError as error:
            raise CheckpointError(
                error.status, error.code, _explain(error, thread), is_unknown_route=error.is_unknown_route
            ) from error

    def _session_id(self, thread: str) -> str:
        """Return the prefix and the thread's id, or its hash where a session cannot have it."""
        plain = self._prefix + thread
        # A thread that begins with # is hashed too: otherwise it could have the id of another one's hash.
        if plain.isprintable() and len(plain) <= MAX_SESSION_ID and not thread.startswith("#"):
            return plain
        return f"{self._prefix}#{_hash(thread)}"


def make_key(*parts: str) -> str:
    """Return the key of these parts; two keys are the same if all their parts are."""
    return "/".join(map(_escape, parts))


def _escape(part: str) -> str:
    escaped = quote(part, safe=_SAFE, errors="surrogatepass")
    # No escaped part begins with #, so a hash never equals one.
    return escaped if len(escaped) <= MAX_PART else f"#{_hash(part)}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _batches(values: Mapping[str, bytes]) -> list[dict[str, bytes]]:
    """Return values in batches for one request each, filled from the end: so the last values stay together."""
    batches: list[list[tuple[str, bytes]]] = []
    size = 0
    for key, value in reversed(list(values.items())):
        # A value that is too long is sent alone, so that the service says what is wrong.
        if not batches or len(batches[-1]) == MAX_BATCH or size + len(value) > BATCH_BYTES:
            batches.append([])
            size = 0
        batches[-1].append((key, value))
        size += len(value)
    return [dict(reversed(batch)) for batch in reversed(batches)]


def _split_keys(keys: Iterable[str]) -> Iterator[list[str]]:
    """Yield the keys in lists of at most MAX_KEYS keys and about MAX_QUERY characters."""
    batch: list[str] = []
    size = 0
    for key in keys:
        length = len(quote(key)) + len("&key=")
        if batch and (len(batch) == MAX_KEYS or size + length > MAX_QUERY):
            yield batch
            batch, size = [], 0
        batch.append(key)
        size += length
    if batch:
        yield batch


def _pages(get: Callable[[str], dict[str, Any]], path: str, query: dict[str, Any]) -> Iterator[dict[str, Any]]:
    cursor: str | None = None
    while True:
        page = get(f"{path}?{urlencode(query if cursor is None else query | {'cursor': cursor})}")
        yield page
        cursor = page.get("next_cursor")
        if cursor is None:
            return


def _decode(page: Mapping[str, Any]) -> dict[str, bytes]:
    return {value["key"]: base64.b64decode(value["value"]) for value in page["values"]}


def _explain(error: ServiceError, thread: str | None) -> str:
    of_thread = "the threads" if thread is None else f"the thread {thread!r}"
    if error.status == 401:
        return f"Stentor does not know the key of the checkpointer: give it a key of this service. ({error.message})"
    if error.status == 403:
        return f"The key of the checkpointer needs the permissions read and write for {of_thread}. ({error.message})"
    if error.status == 409:
        return (
            f"The session of {of_thread} was made with another key: use that key, or another prefix. ({error.message})"
        )
    if error.status == 413:
        return (
            f"A value in the state of {of_thread} is larger than the service takes in one request: keep it elsewhere "
            f"and its address in the state, or raise SERVICE_MAX_BODY_MB. ({error.message})"
        )
    return f"Stentor could not do what the checkpointer asked for {of_thread}: {error.message}"
