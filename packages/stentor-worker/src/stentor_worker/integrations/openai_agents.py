"""Sessions of OpenAI's Agents SDK that Stentor keeps: `pip install stentor-worker[openai-agents]`."""

from __future__ import annotations

import asyncio
import json
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, TypeVar

from stentor_worker.http.client import Client, ServiceError, create_if_missing, segment

if TYPE_CHECKING:
    from agents import SessionSettings, TResponseInputItem

T = TypeVar("T")
TRIES = 10
"""Attempts of a request, over about half a minute."""
PAGE = MAX_ITEMS = 1_000
MAX_BATCH_BYTES = 900_000
"""Less than the smallest limit that a service may have for the body of a request. A larger item is sent on its own."""


class StentorSession:
    """A session of Stentor as the SDK's `Session`: `Runner.run(agent, text, session=StentorSession("4711", url, key))`.

    The service creates it when the first items are added. Programs with the same `session_id` share it. `ca_file` is
    that of `Worker`; `session_settings` may limit how many items a run gets. The methods raise ServiceError.
    """

    def __init__(
        self,
        session_id: str,
        url: str,
        key: str,
        *,
        ca_file: str | None = None,
        session_settings: SessionSettings | None = None,
    ) -> None:
        if session_id in ("", ".", ".."):
            raise ValueError(f"session_id must identify the session, such as a user or thread id; got {session_id!r}.")
        self.session_id = session_id
        self.session_settings = session_settings
        self._client = _client(url, key, ca_file)
        self._path = f"/sessions/{segment(session_id)}"

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Return the last `limit` items, oldest first; all of them without a limit."""
        if limit is None and self.session_settings is not None:
            limit = self.session_settings.limit
        return await asyncio.to_thread(self._read, limit)

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Append items, each once. More than 1,000, or than 900 kB, are appended in several requests."""
        await _to_end(partial(self._append, items))

    async def pop_item(self) -> TResponseInputItem | None:
        """Remove the last item and return it; None for a session without items."""
        return await _to_end(self._pop)

    async def clear_session(self) -> None:
        """Remove all items. Values that a program keeps in the session stay."""
        await _to_end(self._clear)

    def _read(self, limit: int | None) -> list[Any]:
        pages: list[list[Any]] = []
        left, before = limit, ""
        while left is None or left > 0:
            count = PAGE if left is None else min(PAGE, left)
            try:
                page = self._client.call("GET", f"{self._path}/items?newest=true&limit={count}{before}", tries=TRIES)
            except ServiceError as error:
                if error.is_missing:
                    break
                raise
            items = page["items"]
            pages.append([item["value"] for item in items])
            # A page may have fewer items than requested if they are long; only an empty page, or one with all items, is
            # the last.
            if not items or len(items) == page["item_count"]:
                break
            left = None if left is None else left - len(items)
            before = f"&before={items[0]['position']}"
        return [value for page in reversed(pages) for value in page]

    def _append(self, items: Iterable[Any]) -> None:
        for batch in _batches(items):
            # The key is made once for all tries, so a request whose response was lost does not append twice.
            add = partial(self._post, "/items", {"items": batch}, str(uuid.uuid4()))
            create_if_missing(add, self._create)

    def _create(self) -> None:
        self._client.call("POST", "/sessions", {"id": self.session_id}, tries=TRIES)

    def _pop(self) -> Any:
        try:
            popped = self._post("/pop", None, str(uuid.uuid4()))["item"]
        except ServiceError as error:
            if error.is_missing:
                return None
            raise
        return None if popped is None else popped["value"]

    def _clear(self) -> None:
        try:
            self._post("/clear", {"items": True})
        except ServiceError as error:
            if not error.is_missing:
                raise

    def _post(self, subpath: str, body: Any, idempotency_key: str | None = None) -> Any:
        return self._client.call("POST", self._path + subpath, body, tries=TRIES, idempotency_key=idempotency_key)


@lru_cache(maxsize=16)
def _client(url: str, key: str, ca_file: str | None) -> Client:
    """Return a client whose connections all sessions share: a program has one session for each conversation."""
    return Client(url, key, threading.Event(), ca_file)


def _batches(items: Iterable[Any]) -> Iterator[list[dict[str, Any]]]:
    """Group items so that each batch may be sent in one request. Raises ValueError for one that is not JSON."""
    batch: list[dict[str, Any]] = []
    size = 0
    for item in items:
        try:
            length = len(json.dumps(item, ensure_ascii=False, allow_nan=False).encode()) + len('{"value": },')
        except (TypeError, ValueError) as error:
            raise ValueError(f"An item of a session must be JSON: {error}") from None
        if batch and (len(batch) == MAX_ITEMS or size + length > MAX_BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append({"value": item})
        size += length
    if batch:
        yield batch


async def _to_end(function: Callable[[], T]) -> T:
    """Run it in a thread to its end although the caller is cancelled in the meantime: the SDK must know the outcome."""
    running = asyncio.ensure_future(asyncio.to_thread(function))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        # The caller may be cancelled several times; each one only interrupts the wait.
        while not running.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait([running])
        raise
