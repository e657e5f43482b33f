"""Finds the webhook, update, checkpoint or agent that an argument of a command refers to."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from stentor.cli.agents import AgentList
from stentor.cli.client.client import RequestFailed, ServiceClient, quote_segment
from stentor.cli.references import ambiguous_error
from stentor.core import ids

T = TypeVar("T")
MAX_COMPARED = 1000
"""A part of an id is searched in this many of the newest records: the API lists no more at a time."""
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


class Labelled(Protocol):
    @property
    def labels(self) -> dict[str, str]:
        """Return a text for people by the id of each record."""
        ...


async def resolve_id(api: ServiceClient, path: str, kind: type[Labelled], ref: str) -> str:
    """Return the id of the only record whose id has `ref` as a part; `ref` itself if there is none.

    Raises CommandFailed if there are several.
    """
    # A complete id needs no list. An empty text would match every record.
    if _UUID.fullmatch(ref) or not ref:
        return ref
    try:
        listed = (await api.get(path, kind, limit=MAX_COMPARED)).value.labels
    except RequestFailed:  # no permission to list
        return ref
    labels = {record_id: label for record_id, label in listed.items() if ids.matches_part(record_id, ref)}
    if len(labels) > 1:
        raise ambiguous_error(ref, labels)
    return next(iter(labels), ref)


def on_record(
    path: str, kind: type[Labelled], ref: str, call: Callable[[ServiceClient, str], Awaitable[T]]
) -> Callable[[ServiceClient], Awaitable[T]]:
    """Return a function that finds the record that `ref` refers to and runs `call` with the record's path."""

    async def work(api: ServiceClient) -> T:
        record_id = await resolve_id(api, path, kind, ref)
        return await call(api, f"{path}/{quote_segment(record_id)}")

    return work


async def find_agent(api: ServiceClient, ref: str) -> str:
    """Return the id of an agent by its name, its id, or a part of the id. Raises CommandFailed."""
    return ref if _UUID.fullmatch(ref) else await api.find_id(AgentList, ref, must_exist=True)
