"""Answers of /v1/responses: messages and calls of functions as items, whole or as the events in which they grow. Pure;
times in seconds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from stentor.domains.llm.model import Delta, Finish, Reply, ToolDelta, Usage
from stentor.domains.llm.openai.answers import ours
from stentor.domains.llm.openai.items import call_id
from stentor.domains.llm.openai.responses import ResponseIn
from stentor.domains.llm.service import Choice, Work

Event = dict[str, Any]


class _Item:
    """One item of the output while it grows. `call` is the index of the call, None for a message."""

    def __init__(self, id_: str, at: int, call: int | None = None, known: str = "", name: str = "") -> None:
        self.id, self.at, self.call = id_, at, call
        self._call_id, self._name = known, name
        self._pieces: list[str] = []
        self.is_open = True

    def add(self, piece: str) -> None:
        self._pieces.append(piece)

    @property
    def text(self) -> str:
        """What was said, or the arguments of the call so far."""
        return "".join(self._pieces)

    @property
    def is_whole(self) -> bool:
        """Whether nothing can follow: a message ends where a call begins, arguments where their JSON does."""
        if self.call is None:
            return True
        try:
            json.loads(self.text)
        except (ValueError, RecursionError):
            return False
        return True

    def shown(self, status: str) -> Event:
        if self.call is not None:
            said = {"call_id": self._call_id, "name": self._name, "arguments": self.text}
            return {"id": self.id, "type": "function_call", "status": status, **said}
        content = [] if status == "in_progress" else [_part(self.text)]
        return {"id": self.id, "type": "message", "role": "assistant", "status": status, "content": content}


class Responding:
    """One response. `begun`, `piece` and `ended` give the events that a client reads while it grows; `whole` is the
    response itself.
    """

    def __init__(
        self,
        asked: ResponseIn,
        provenance_id: str,
        model: str,
        clock: Callable[[], float],
        about: Work | Choice | None = None,
    ) -> None:
        self._asked = asked
        self._id = provenance_id
        self._model = model
        self._clock = clock
        self._created = int(clock())
        self._about = about
        self._items: list[_Item] = []
        self._number = 0

    def whole(self, reply: Reply, usage: Usage) -> Event:
        """The response to an answer that came at once."""
        if reply.content:
            self._opened(None).add(reply.content)
        for at, call in enumerate(reply.tool_calls):
            part = ToolDelta(at, call.id, call.name, signature=call.signature)
            self._opened(part).add(call.arguments or "{}")
        return self._final(reply.finish, usage)

    @property
    def said(self) -> dict[str, str]:
        """The texts by the ids under which a client may refer to them."""
        return {item.id: item.text for item in self._items if item.call is None}

    def begun(self) -> Iterator[Event]:
        for kind in ("response.created", "response.in_progress"):
            yield self._event(kind, response=self._response("in_progress", [], None))

    def piece(self, delta: Delta) -> Iterator[Event]:
        """The events of a part of the stream. An item is closed when the next one begins and it is whole: some
        providers send the parts of several calls in turns.
        """
        if delta.content:
            item = next((one for one in self._items if one.call is None and one.is_open), None)
            if item is None:
                yield from self._closed(None)
                item = self._opened(None)
                yield from self._added(item)
            item.add(delta.content)
            yield self._part_event(item, "response.output_text.delta", delta=delta.content, logprobs=[])
        for part in delta.tool_calls:
            yield from self._called(part)

    def ended(self, finish: Finish, usage: Usage) -> Iterator[Event]:
        if not self._items:
            yield from self._added(self._opened(None))
        yield from self._closed(finish)
        final = self._final(finish, usage)
        yield self._event(f"response.{final['status']}", response=final)

    def failed(self, code: str, message: str) -> Event:
        return self._event("error", code=code.lower(), message=message, param=None)

    def _called(self, part: ToolDelta) -> Iterator[Event]:
        item = next((one for one in self._items if one.call == part.index), None)
        if item is None:
            yield from self._closed(None)
            item = self._opened(part)
            yield from self._added(item)
        if part.arguments:
            item.add(part.arguments)
            yield self._item_event(item, "response.function_call_arguments.delta", delta=part.arguments)

    def _opened(self, part: ToolDelta | None) -> _Item:
        at = len(self._items)
        if part is None:
            item = _Item(f"msg_{self._id}" + (f"_{at}" if at else ""), at)
        else:
            known = call_id(part.id or f"call_{self._id}_{part.index}", part.signature)
            item = _Item(f"fc_{self._id}_{at}", at, part.index, known, part.name)
        self._items.append(item)
        return item

    def _added(self, item: _Item) -> Iterator[Event]:
        yield self._event("response.output_item.added", output_index=item.at, item=item.shown("in_progress"))
        if item.call is None:
            yield self._part_event(item, "response.content_part.added", part=_part(""))

    def _closed(self, finish: Finish | None) -> Iterator[Event]:
        """The last events of the items that are whole; of all of them at the end, when there is a finish."""
        for item in self._items:
            if item.is_open and (finish is not None or item.is_whole):
                yield from self._done(item, finish)

    def _done(self, item: _Item, finish: Finish | None) -> Iterator[Event]:
        item.is_open = False
        if item.call is None:
            yield self._part_event(item, "response.output_text.done", text=item.text, logprobs=[])
            yield self._part_event(item, "response.content_part.done", part=_part(item.text))
        else:
            if not item.text:
                item.add("{}")  # clients read JSON, also where the model gave no arguments
                yield self._item_event(item, "response.function_call_arguments.delta", delta="{}")
            done = {"name": item.shown("completed")["name"], "arguments": item.text}
            yield self._item_event(item, "response.function_call_arguments.done", **done)
        shown = item.shown(self._status(item, finish))
        yield self._event("response.output_item.done", output_index=item.at, item=shown)

    def _final(self, finish: Finish, usage: Usage) -> Event:
        if not self._items:
            self._opened(None)
        cut = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(finish)
        output = [item.shown(self._status(item, finish)) for item in self._items]
        status = "incomplete" if cut else "completed"
        return self._response(status, output, _usage(usage), {"reason": cut} if cut else None)

    def _status(self, item: _Item, finish: Finish | None) -> str:
        """Only what the model was saying when it was cut off is incomplete."""
        cut = finish in ("length", "content_filter") and item is self._items[-1]
        return "incomplete" if cut else "completed"

    def _response(self, status: str, output: list[Any], usage: Event | None, cut: Event | None = None) -> Event:
        return {
            "id": f"resp_{self._id}",
            "object": "response",
            "created_at": self._created,
            "completed_at": int(self._clock()) if status == "completed" else None,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": cut,
            "model": self._model,
            "output": output,
            "previous_response_id": None,
            "usage": usage,
            **self._asked.described,
            **ours(self._about),
        }

    def _item_event(self, item: _Item, kind: str, **fields: Any) -> Event:
        return self._event(kind, item_id=item.id, output_index=item.at, **fields)

    def _part_event(self, item: _Item, kind: str, **fields: Any) -> Event:
        return self._item_event(item, kind, content_index=0, **fields)

    def _event(self, kind: str, **fields: Any) -> Event:
        self._number += 1
        return {"type": kind, "sequence_number": self._number - 1, **fields}


def _part(text: str) -> Event:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage(usage: Usage) -> Event:
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }
