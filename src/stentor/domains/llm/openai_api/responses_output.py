"""Build the output of /v1/responses as a whole or as stream events; cache recent texts by item id.

Requests are in `responses_request` and `responses_input`. Times are Unix seconds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from stentor.core.jsontext import JsonObject
from stentor.domains.llm.model import (
    ChatReply,
    FinishReason,
    ReplyDelta,
    TokenUsage,
    ToolCallDelta,
    encode_call_id,
)
from stentor.domains.llm.openai_api.chat_output import stentor_extension
from stentor.domains.llm.openai_api.responses_request import ResponseIn
from stentor.domains.llm.results import AgentTaskRef, ModelChoice
from stentor.domains.llm.streamed import StreamedText

MAX_CACHED_CHARACTERS = 8_000_000
CACHE_SECONDS = 3600.0


class ResponseBuilder:
    """Builder of one response: `build` returns it as a whole, the `*_events` methods stream it."""

    def __init__(
        self,
        request: ResponseIn,
        provenance_id: str,
        model: str,
        clock: Callable[[], float],
        origin: AgentTaskRef | ModelChoice | None = None,
    ) -> None:
        self._request = request
        self._namespaced = request.namespaced
        self._id = provenance_id
        self._model = model
        self._clock = clock
        self._created = int(clock())
        self._origin = origin
        self._items: list[_OutputItem] = []
        self._sequence_number = 0

    def build(self, reply: ChatReply, usage: TokenUsage) -> JsonObject:
        """Build the response for a complete reply."""
        if reply.content:
            self._open_item(None, is_refusal=reply.is_refusal).append(reply.content)
        for index, call in enumerate(reply.tool_calls):
            delta = ToolCallDelta(index, call.id, call.name, signature=call.signature)
            self._open_item(delta).append(call.arguments or "{}")
        return self._final_response(reply.finish, usage)

    @property
    def texts_by_id(self) -> dict[str, str]:
        """The texts of the messages by item id, by which a later request may refer to them."""
        return {item.id: item.text for item in self._items if item.call_index is None}

    def start_events(self) -> Iterator[JsonObject]:
        for kind in ("response.created", "response.in_progress"):
            yield self._event(kind, response=self._response("in_progress", [], None))

    def delta_events(self, delta: ReplyDelta) -> Iterator[JsonObject]:
        """Yield the events for a delta of the stream.

        A new item closes the earlier ones only if they are complete: some providers interleave the deltas of calls.
        """
        if delta.content:
            item = next((item for item in self._items if item.call_index is None and item.is_open), None)
            if item is None:
                yield from self._close_items(None)
                item = self._open_item(None, is_refusal=delta.is_refusal)
                yield from self._added_events(item)
            item.append(delta.content)
            if item.is_refusal:
                yield self._part_event(item, "response.refusal.delta", delta=delta.content)
            else:
                yield self._part_event(item, "response.output_text.delta", delta=delta.content, logprobs=[])
        for call in delta.tool_calls:
            yield from self._call_events(call)

    def end_events(self, finish: FinishReason, usage: TokenUsage) -> Iterator[JsonObject]:
        if not self._items:
            yield from self._added_events(self._open_item(None))
        yield from self._close_items(finish)
        final = self._final_response(finish, usage)
        yield self._event(f"response.{final['status']}", response=final)

    def error_event(self, code: str, message: str) -> JsonObject:
        return self._event("error", code=code.lower(), message=message, param=None)

    def _call_events(self, call: ToolCallDelta) -> Iterator[JsonObject]:
        item = next((item for item in self._items if item.call_index == call.index), None)
        if item is None:
            yield from self._close_items(None)
            item = self._open_item(call)
            yield from self._added_events(item)
        if call.arguments:
            item.append(call.arguments)
            yield self._item_event(item, "response.function_call_arguments.delta", delta=call.arguments)

    def _open_item(self, call: ToolCallDelta | None, *, is_refusal: bool = False) -> _OutputItem:
        index = len(self._items)
        if call is None:
            id_ = f"msg_{self._id}" + (f"_{index}" if index else "")
            item = _OutputItem(id_, index, is_refusal=is_refusal)
        else:
            call_id = encode_call_id(call.id or f"call_{self._id}_{call.index}", call.signature)
            namespace, name = self._namespaced.get(call.name, ("", call.name))
            item = _OutputItem(f"fc_{self._id}_{index}", index, call.index, call_id, name, namespace)
        self._items.append(item)
        return item

    def _added_events(self, item: _OutputItem) -> Iterator[JsonObject]:
        yield self._event("response.output_item.added", output_index=item.index, item=item.to_json("in_progress"))
        if item.call_index is None:
            yield self._part_event(item, "response.content_part.added", part=item.part(""))

    def _close_items(self, finish: FinishReason | None) -> Iterator[JsonObject]:
        """Close the open items that are complete, or all of them at the end of the stream (`finish` is set)."""
        for item in self._items:
            if item.is_open and (finish is not None or item.is_complete):
                yield from self._close_item(item, finish)

    def _close_item(self, item: _OutputItem, finish: FinishReason | None) -> Iterator[JsonObject]:
        item.is_open = False
        if item.call_index is None:
            if item.is_refusal:
                yield self._part_event(item, "response.refusal.done", refusal=item.text)
            else:
                yield self._part_event(item, "response.output_text.done", text=item.text, logprobs=[])
            yield self._part_event(item, "response.content_part.done", part=item.part(item.text))
        else:
            if not item.text:
                item.append("{}")  # clients parse the arguments as JSON, even if the model sent none
                yield self._item_event(item, "response.function_call_arguments.delta", delta="{}")
            done = {"name": item.to_json("completed")["name"], "arguments": item.text}
            yield self._item_event(item, "response.function_call_arguments.done", **done)
        item_json = item.to_json(self._item_status(item, finish))
        yield self._event("response.output_item.done", output_index=item.index, item=item_json)

    def _final_response(self, finish: FinishReason, usage: TokenUsage) -> JsonObject:
        if not self._items:
            self._open_item(None)
        reason = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(finish)
        output = [item.to_json(self._item_status(item, finish)) for item in self._items]
        status = "incomplete" if reason else "completed"
        return self._response(status, output, _usage_object(usage), {"reason": reason} if reason else None)

    def _item_status(self, item: _OutputItem, finish: FinishReason | None) -> str:
        """Return the status of an item; only the last one of a truncated reply is incomplete."""
        is_truncated = finish in ("length", "content_filter") and item is self._items[-1]
        return "incomplete" if is_truncated else "completed"

    def _response(
        self,
        status: str,
        output: list[Any],
        usage: JsonObject | None,
        incomplete_details: JsonObject | None = None,
    ) -> JsonObject:
        return {
            "id": f"resp_{self._id}",
            "object": "response",
            "created_at": self._created,
            "completed_at": int(self._clock()) if status == "completed" else None,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": incomplete_details,
            "model": self._model,
            "output": output,
            "previous_response_id": None,
            "usage": usage,
            **self._request.echoed_fields,
            **stentor_extension(self._origin),
        }

    def _item_event(self, item: _OutputItem, kind: str, **fields: Any) -> JsonObject:
        return self._event(kind, item_id=item.id, output_index=item.index, **fields)

    def _part_event(self, item: _OutputItem, kind: str, **fields: Any) -> JsonObject:
        return self._item_event(item, kind, content_index=0, **fields)

    def _event(self, kind: str, **fields: Any) -> JsonObject:
        number, self._sequence_number = self._sequence_number, self._sequence_number + 1
        return {"type": kind, "sequence_number": number, **fields}


class ResponseTextCache:
    """Recent texts of models, for clients that refer to an item by id instead of sending it again.

    Vercel's `@ai-sdk/openai` does so unless `store` is false. The cache is in the memory of this process only: another
    process does not know the id and rejects the request. The oldest texts are evicted first. An owner is a key of a
    tenant, because other keys of the tenant can read the ids in the run log.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, max_characters: int = MAX_CACHED_CHARACTERS
    ) -> None:
        self._clock = clock
        self._max_characters = max_characters
        self._characters = 0
        self._texts: dict[tuple[str, str], tuple[float, str]] = {}

    def put(self, owner: str, id_: str, text: str) -> None:
        """Add a text. An id is added only once, because it belongs to one reply."""
        self._texts[owner, id_] = (self._clock(), text)
        self._characters += len(text)
        # A dict keeps the order of insertion, so its first entry is the oldest.
        while self._characters > self._max_characters or self._is_expired(next(iter(self._texts.values()), None)):
            _, evicted = self._texts.pop(next(iter(self._texts)))
            self._characters -= len(evicted)

    def get(self, owner: str, id_: str) -> str | None:
        """Return the text, None if it is unknown, expired or of another owner."""
        entry = self._texts.get((owner, id_))
        return None if entry is None or self._is_expired(entry) else entry[1]

    def _is_expired(self, entry: tuple[float, str] | None) -> bool:
        return entry is not None and self._clock() - entry[0] > CACHE_SECONDS


class _OutputItem:
    """One item of the output while it is streamed. `call_index` is None for a message."""

    def __init__(
        self,
        id_: str,
        index: int,
        call_index: int | None = None,
        call_id: str = "",
        name: str = "",
        namespace: str = "",
        *,
        is_refusal: bool = False,
    ) -> None:
        self.id, self.index, self.call_index, self.is_refusal = id_, index, call_index, is_refusal
        self._call_id, self._name, self._namespace = call_id, name, namespace
        self._text = StreamedText()
        self.is_open = True

    def append(self, text: str) -> None:
        self._text.append(text)

    @property
    def text(self) -> str:
        """The text of the message, or the arguments of the call, so far."""
        return self._text.text

    @property
    def is_complete(self) -> bool:
        """Whether the next item ends this one: a message always, a call once its arguments are valid JSON."""
        return self.call_index is None or self._text.is_json

    def to_json(self, status: str) -> JsonObject:
        if self.call_index is not None:
            call = {"call_id": self._call_id, "name": self._name, "arguments": self.text}
            if self._namespace:
                call["namespace"] = self._namespace
            return {"id": self.id, "type": "function_call", "status": status, **call}
        content = [] if status == "in_progress" else [self.part(self.text)]
        return {"id": self.id, "type": "message", "role": "assistant", "status": status, "content": content}

    def part(self, text: str) -> JsonObject:
        """Return the content part of a message with this text."""
        if self.is_refusal:
            return {"type": "refusal", "refusal": text}
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _usage_object(usage: TokenUsage) -> JsonObject:
    return {
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    }
