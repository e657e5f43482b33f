"""Answers of /v1/responses: messages and calls of functions as items, whole or as the events in which they grow. Pure;
times in seconds.

What models said a short while ago, for clients that refer to it by its id instead of sending it again.

Vercel's `@ai-sdk/openai` does so unless it is told `store: false`. Kept in the memory of this process alone and never
written: another process, or this one an hour later, does not know the id, and the request is refused.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

from stentor.domains.llm.model import ChatReply, FinishReason, ReplyDelta, TokenUsage, ToolCallDelta
from stentor.domains.llm.openai_api.completions import stentor_extension
from stentor.domains.llm.openai_api.responses_input import encode_call_id
from stentor.domains.llm.openai_api.responses_request import ResponseIn
from stentor.domains.llm.service import AgentTaskRef, ModelChoice

ResponseEvent = dict[str, Any]


class _OutputItem:
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

    def shown(self, status: str) -> ResponseEvent:
        if self.call is not None:
            said = {"call_id": self._call_id, "name": self._name, "arguments": self.text}
            return {"id": self.id, "type": "function_call", "status": status, **said}
        content = [] if status == "in_progress" else [_text_part(self.text)]
        return {"id": self.id, "type": "message", "role": "assistant", "status": status, "content": content}


class ResponseBuilder:
    """One response. `begun`, `piece` and `ended` give the events that a client reads while it grows; `whole` is the
    response itself.
    """

    def __init__(
        self,
        asked: ResponseIn,
        provenance_id: str,
        model: str,
        clock: Callable[[], float],
        about: AgentTaskRef | ModelChoice | None = None,
    ) -> None:
        self._asked = asked
        self._id = provenance_id
        self._model = model
        self._clock = clock
        self._created = int(clock())
        self._about = about
        self._items: list[_OutputItem] = []
        self._number = 0

    def build(self, reply: ChatReply, usage: TokenUsage) -> ResponseEvent:
        """The response to an answer that came at once."""
        if reply.content:
            self._opened(None).add(reply.content)
        for at, call in enumerate(reply.tool_calls):
            part = ToolCallDelta(at, call.id, call.name, signature=call.signature)
            self._opened(part).add(call.arguments or "{}")
        return self._final(reply.finish, usage)

    @property
    def texts_by_id(self) -> dict[str, str]:
        """The texts by the ids under which a client may refer to them."""
        return {item.id: item.text for item in self._items if item.call is None}

    def start_events(self) -> Iterator[ResponseEvent]:
        for kind in ("response.created", "response.in_progress"):
            yield self._event(kind, response=self._response("in_progress", [], None))

    def delta_events(self, delta: ReplyDelta) -> Iterator[ResponseEvent]:
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

    def end_events(self, finish: FinishReason, usage: TokenUsage) -> Iterator[ResponseEvent]:
        if not self._items:
            yield from self._added(self._opened(None))
        yield from self._closed(finish)
        final = self._final(finish, usage)
        yield self._event(f"response.{final['status']}", response=final)

    def error_event(self, code: str, message: str) -> ResponseEvent:
        return self._event("error", code=code.lower(), message=message, param=None)

    def _called(self, part: ToolCallDelta) -> Iterator[ResponseEvent]:
        item = next((one for one in self._items if one.call == part.index), None)
        if item is None:
            yield from self._closed(None)
            item = self._opened(part)
            yield from self._added(item)
        if part.arguments:
            item.add(part.arguments)
            yield self._item_event(item, "response.function_call_arguments.delta", delta=part.arguments)

    def _opened(self, part: ToolCallDelta | None) -> _OutputItem:
        at = len(self._items)
        if part is None:
            item = _OutputItem(f"msg_{self._id}" + (f"_{at}" if at else ""), at)
        else:
            known = encode_call_id(part.id or f"call_{self._id}_{part.index}", part.signature)
            item = _OutputItem(f"fc_{self._id}_{at}", at, part.index, known, part.name)
        self._items.append(item)
        return item

    def _added(self, item: _OutputItem) -> Iterator[ResponseEvent]:
        yield self._event("response.output_item.added", output_index=item.at, item=item.shown("in_progress"))
        if item.call is None:
            yield self._part_event(item, "response.content_part.added", part=_text_part(""))

    def _closed(self, finish: FinishReason | None) -> Iterator[ResponseEvent]:
        """The last events of the items that are whole; of all of them at the end, when there is a finish."""
        for item in self._items:
            if item.is_open and (finish is not None or item.is_whole):
                yield from self._done(item, finish)

    def _done(self, item: _OutputItem, finish: FinishReason | None) -> Iterator[ResponseEvent]:
        item.is_open = False
        if item.call is None:
            yield self._part_event(item, "response.output_text.done", text=item.text, logprobs=[])
            yield self._part_event(item, "response.content_part.done", part=_text_part(item.text))
        else:
            if not item.text:
                item.add("{}")  # clients read JSON, also where the model gave no arguments
                yield self._item_event(item, "response.function_call_arguments.delta", delta="{}")
            done = {"name": item.shown("completed")["name"], "arguments": item.text}
            yield self._item_event(item, "response.function_call_arguments.done", **done)
        shown = item.shown(self._status(item, finish))
        yield self._event("response.output_item.done", output_index=item.at, item=shown)

    def _final(self, finish: FinishReason, usage: TokenUsage) -> ResponseEvent:
        if not self._items:
            self._opened(None)
        cut = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(finish)
        output = [item.shown(self._status(item, finish)) for item in self._items]
        status = "incomplete" if cut else "completed"
        return self._response(status, output, _usage_object(usage), {"reason": cut} if cut else None)

    def _status(self, item: _OutputItem, finish: FinishReason | None) -> str:
        """Only what the model was saying when it was cut off is incomplete."""
        cut = finish in ("length", "content_filter") and item is self._items[-1]
        return "incomplete" if cut else "completed"

    def _response(
        self, status: str, output: list[Any], usage: ResponseEvent | None, cut: ResponseEvent | None = None
    ) -> ResponseEvent:
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
            **self._asked.echoed_fields,
            **stentor_extension(self._about),
        }

    def _item_event(self, item: _OutputItem, kind: str, **fields: Any) -> ResponseEvent:
        return self._event(kind, item_id=item.id, output_index=item.at, **fields)

    def _part_event(self, item: _OutputItem, kind: str, **fields: Any) -> ResponseEvent:
        return self._item_event(item, kind, content_index=0, **fields)

    def _event(self, kind: str, **fields: Any) -> ResponseEvent:
        self._number += 1
        return {"type": kind, "sequence_number": self._number - 1, **fields}


def _text_part(text: str) -> ResponseEvent:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage_object(usage: TokenUsage) -> ResponseEvent:
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }


MAX_CACHED_CHARACTERS = 8_000_000
CACHE_SECONDS = 3600.0


class ResponseTextCache:
    """Texts by owner and id; the oldest go first when there are too many characters.

    An owner is a key of a tenant: ids stand in the run log, where other keys read them.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, max_characters: int = MAX_CACHED_CHARACTERS
    ) -> None:
        self._clock = clock
        self._most = max_characters
        self._size = 0
        self._kept: dict[tuple[str, str], tuple[float, str]] = {}

    def put(self, owner: str, id_: str, text: str) -> None:
        """An id is kept once: it names one answer."""
        self._kept[owner, id_] = (self._clock(), text)
        self._size += len(text)
        while self._size > self._most or self._is_old(next(iter(self._kept.values()), None)):
            _, gone = self._kept.pop(next(iter(self._kept)))
            self._size -= len(gone)

    def get(self, owner: str, id_: str) -> str | None:
        """None for what is not known, not any more, or another key's."""
        found = self._kept.get((owner, id_))
        return None if found is None or self._is_old(found) else found[1]

    def _is_old(self, kept: tuple[float, str] | None) -> bool:
        return kept is not None and self._clock() - kept[0] > CACHE_SECONDS
