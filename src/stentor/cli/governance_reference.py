"""How commands find the webhook, the update, the checkpoint and the agent that the user refers to."""

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
"""The newest records among which a part of an id is searched; the API lists no more at a time."""
_UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


class Labelled(Protocol):
    @property
    def labels(self) -> dict[str, str]:
        """Return a text for people by the id of each record."""
        ...


async def with_part_of_id(
    api: ServiceClient,
    path: str,
    kind: type[Labelled],
    ref: str,
    call: Callable[[str], Awaitable[T]],
) -> T:
    """Call with the id of the only record that `ref` refers to, or else with `ref` itself.

    Raises CommandFailed if several do.
    """
    # A whole id needs no list. An empty text would match every record.
    if _UUID.fullmatch(ref) or not ref:
        return await call(ref)
    try:
        listed = (await api.get(path, kind, limit=MAX_COMPARED)).value.labels
    except RequestFailed:  # no permission to list
        return await call(ref)
    labels = {record_id: label for record_id, label in listed.items() if ids.matches_part(record_id, ref)}
    if len(labels) > 1:
        raise ambiguous_error(ref, labels)
    return await call(next(iter(labels), ref))


def on_part_of_id(
    path: str, kind: type[Labelled], ref: str, call: Callable[[ServiceClient, str], Awaitable[T]]
) -> Callable[[ServiceClient], Awaitable[T]]:
    """Return the call with the path of the record that the user refers to, as `with_part_of_id` finds it."""
    return lambda api: with_part_of_id(api, path, kind, ref, lambda found: call(api, f"{path}/{quote_segment(found)}"))


async def find_agent(api: ServiceClient, ref: str) -> str:
    """Return the id of an agent by its name, its id, or a part of the id. Raises CommandFailed."""
    return ref if _UUID.fullmatch(ref) else await api.find_id(AgentList, ref, must_exist=True)
