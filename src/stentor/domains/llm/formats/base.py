"""What the API formats share: their interface, the quirks of servers, and strict decoding of responses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from stentor.core import jsontext
from stentor.core.errors import InvalidRequest, ProviderError
from stentor.core.jsontext import JsonObject
from stentor.domains.llm.model import (
    ChatReply,
    ChatRequest,
    EmbeddingInput,
    EmbeddingReply,
    LlmMessage,
    ProviderRequest,
    ReplyDelta,
    TokenUsage,
)

FormatName = Literal["openai", "anthropic", "gemini"]
_STATUSES = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "timeout_error": 504,
    "overloaded_error": 529,
}
"""HTTP statuses by the error types of OpenAI and Anthropic."""
T = TypeVar("T")


class ProviderQuirks(msgspec.Struct, frozen=True):
    """Differences between servers of one format.

    `max_tokens` is the name of the field for the token limit; `stream_usage`: the server accepts `stream_options`;
    `key_header` is the header of the API key where it is not the format's own; `wants_reasoning`: a model that reasons
    must get its reasoning back with its messages; `short_call_ids`: ids of tool calls must be nine letters or digits;
    `seed` is the name of the field for the seed; `user_after_tool`: a message of the user may follow a tool's result.
    """

    max_tokens: str = "max_tokens"
    stream_usage: bool = True
    key_header: str = ""
    wants_reasoning: bool = False
    short_call_ids: bool = False
    seed: str = "seed"
    user_after_tool: bool = True


class StreamReader(Protocol):
    """Parser of the events of one stream. Raises ProviderError for an event that is not of the format."""

    def read(self, event: str, data: bytes) -> list[ReplyDelta]: ...


def incomplete_reply_fault(reason: str, usage: TokenUsage | None) -> ProviderError:
    """Return the error for a reply that the provider ended early, with the usage that it reported."""
    return unusable_reply_fault(f"The provider ended the reply early ({reason}).", usage)


def unusable_reply_fault(message: str, usage: TokenUsage | None) -> ProviderError:
    """Return the error of a reply that cannot be used, with the usage that the provider reported."""
    fault = ProviderError(message)
    fault.usage = usage
    return fault


def reported_fault(error: Any) -> ProviderError:
    """Return the error for a response with status 200 whose body is an error.

    Its `upstream_status` is the status in the body, or the one that belongs to the error's type.
    """
    fault = ProviderError("The provider reported an error.")
    named = error if isinstance(error, dict) else {}
    code = named.get("code")
    is_status = isinstance(code, int) and 400 <= code <= 599
    fault.upstream_status = code if is_status else _STATUSES.get(str(named.get("type")), 500)
    return fault


class ProviderFormat(Protocol):
    """API format of a provider. Every parser raises ProviderError for a response that is not of the format."""

    MODELS_PATH: str
    MAX_EMBEDDING_INPUTS: int
    """Inputs of one request for embeddings; more are sent in several."""

    def build_headers(self, key: str, quirks: ProviderQuirks) -> dict[str, str]: ...
    def build_chat_request(self, request: ChatRequest, quirks: ProviderQuirks, *, stream: bool) -> ProviderRequest: ...
    def parse_reply(self, body: bytes, model: str) -> ChatReply: ...
    @property
    def stream_reader(self) -> Callable[[], StreamReader]:
        """A factory of readers: a class or a function. Read-only, so that a module's class qualifies too."""
        ...

    def build_embedding_request(
        self, model: str, inputs: Sequence[EmbeddingInput], dimensions: int | None
    ) -> ProviderRequest:
        """Build the request. Raises InvalidRequest for input that the format does not support."""
        ...

    def parse_embeddings(self, body: bytes, model: str) -> EmbeddingReply: ...
    def parse_models(self, body: bytes) -> list[str]: ...


@cache
def _decoder(type_: Any, parse_float: Callable[[str], Any]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(type_, float_hook=parse_float)


def decode_response(body: bytes, type_: type[T], parse_float: Callable[[str], Any] = jsontext.parse_float) -> T:
    """Decode the JSON of a response. Raises ProviderError, whose message has none of the content."""
    cache_key: Any = type_
    try:
        # Before the decoder: deep nesting would otherwise only end at the recursion limit.
        jsontext.check_shape(body)
        response: T = _decoder(cache_key, parse_float).decode(body)
    except (InvalidRequest, msgspec.MsgspecError, UnicodeError, RecursionError):
        raise ProviderError("The provider's response does not match its API format.") from None
    return response


def _parse_count(text: str) -> int | None:
    number = float(text)
    return int(number) if number.is_integer() else None


NO_USAGE = msgspec.Raw(b"null")
_usage_decoder = msgspec.json.Decoder(float_hook=_parse_count)


def read_counts(usage: msgspec.Raw) -> dict[str, int]:
    """Return the whole numbers in the usage of a reply, those of an object in it as `object.name`.

    Leaves out everything else: a reply that was paid for must not be lost for a wrong count, which is estimated.
    """
    try:
        document = _usage_decoder.decode(usage)
    except (msgspec.DecodeError, UnicodeError):
        return {}
    counts: dict[str, int] = {}
    for name, value in document.items() if isinstance(document, dict) else ():
        if isinstance(value, dict):
            counts |= {f"{name}.{part}": count for part, count in value.items() if type(count) is int}
        elif type(value) is int:
            counts[name] = value
    return counts


def convert_vector(numbers: list[Any]) -> list[float]:
    """Convert a decoded embedding to floats. Raises ProviderError for a value that is not a number.

    Embeddings are decoded as `list[Any]` and converted here, because a decoder of `list[float]` ignores its
    `float_hook`.
    """
    try:
        return msgspec.convert(numbers, list[float])
    except msgspec.ValidationError:
        raise ProviderError("The provider's response does not match its API format.") from None


def require_texts(embedder: str, inputs: Sequence[EmbeddingInput]) -> list[str]:
    """Return the inputs for an embedder that accepts only strings. Raises InvalidRequest for token ids."""
    texts = [item for item in inputs if isinstance(item, str)]
    if len(texts) != len(inputs):
        fields = {"input": "must be a string or a list of strings"}
        raise InvalidRequest(f"{embedder} embeds text only. Send strings instead of token ids.", {"fields": fields})
    return texts


def require_json_schema(provider: str, request: ChatRequest) -> JsonObject | None:
    """Return the schema that the reply must match, None without one.

    Raises InvalidRequest for a type of `response_format` that only some OpenAI-compatible servers know (grammars).
    """
    if request.format_type not in ("text", "json_object", "json_schema"):
        fields = {"response_format.type": "must be text, json_object or json_schema"}
        raise InvalidRequest(f"{provider} does not support this type of response_format.", {"fields": fields})
    return request.json_schema


def decode_arguments(text: str) -> JsonObject:
    """Decode the arguments of a tool call, for formats that send an object; invalid JSON becomes a string in one."""
    # Strictly: a number out of range and an unpaired surrogate cannot be sent on.
    value = jsontext.decode_or_none(text.encode()) if text else {}
    return value if isinstance(value, dict) else {"arguments": text}


def split_system(messages: Sequence[LlmMessage]) -> tuple[list[LlmMessage], Sequence[LlmMessage]]:
    """Return the system messages and the other messages, for formats that send them separately.

    If all are system messages, the last one becomes a user message, which these formats require.
    """
    system = [message for message in messages if message.role == "system"]
    others = [message for message in messages if message.role != "system"]
    if system and not others:
        others = [msgspec.structs.replace(system.pop(), role="user")]
    return system, others


def join_texts(messages: Sequence[LlmMessage]) -> str:
    return "\n\n".join(message.text for message in messages)


def omit_none(**fields: Any) -> JsonObject:
    return {name: value for name, value in fields.items() if value is not None}
