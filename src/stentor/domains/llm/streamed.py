"""What the deltas of a stream make: a reply, and a text that may be JSON. No I/O."""

from __future__ import annotations

import msgspec

from stentor.core import jsontext
from stentor.domains.llm.model import ChatReply, FinishReason, ReplyDelta, TokenUsage, ToolCall
from stentor.domains.llm.token_estimates import estimate_media_tokens

MAX_JSON_CHECKS = 20
"""How many times a text may fail the check for valid JSON while it is streamed; each check reads all of it."""


class StreamedText:
    """A text while it is streamed, such as the arguments of a tool call."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._failed_checks = 0

    def append(self, text: str) -> None:
        self._parts.append(text)

    @property
    def text(self) -> str:
        return "".join(self._parts)

    @property
    def is_json(self) -> bool:
        """Whether the text is valid JSON. After MAX_JSON_CHECKS that failed it is False, whatever follows."""
        if self._failed_checks == MAX_JSON_CHECKS:
            return False
        is_valid = jsontext.decode_or_none(self.text.encode()) is not None
        self._failed_checks += not is_valid
        return is_valid


class ReplyBuilder:
    """Accumulates the deltas of a stream, for its usage and for the note about reasoning."""

    def __init__(self) -> None:
        self._content: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[int, ToolCall] = {}
        self._arguments: dict[int, list[str]] = {}
        self._finish: FinishReason = "stop"
        self._usage: TokenUsage | None = None
        self._id = ""
        self._is_refusal = False
        self._media_tokens = 0

    def add(self, delta: ReplyDelta) -> None:
        self._content.append(delta.content)
        self._reasoning.append(delta.reasoning)
        self._finish = delta.finish or self._finish
        self._usage = delta.usage or self._usage
        self._id = delta.id or self._id
        self._is_refusal = self._is_refusal or delta.is_refusal
        if delta.extra:
            self._media_tokens += estimate_media_tokens(delta.extra)
        for part in delta.tool_calls:
            call = self._calls.get(part.index, ToolCall("", "", ""))
            self._calls[part.index] = ToolCall(
                # The first fragment has id and name; some servers repeat them in every fragment.
                call.id or part.id,
                call.name or part.name,
                "",
                call.signature or part.signature,
            )
            # Joined at the end: each fragment would copy all those before it.
            self._arguments.setdefault(part.index, []).append(part.arguments)

    def build(self, model: str) -> ChatReply:
        calls = tuple(
            msgspec.structs.replace(self._calls[index], arguments="".join(self._arguments[index]))
            for index in sorted(self._calls)
        )
        content, reasoning = "".join(self._content), "".join(self._reasoning)
        return ChatReply(
            model,
            content,
            self._finish,
            reasoning,
            calls,
            self._usage,
            self._id,
            is_refusal=self._is_refusal,
            media_tokens=self._media_tokens,
        )
