"""The wire formats that providers speak: pure translations, each a module that fits the port `Format`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from stentor.core import jsontext
from stentor.core.errors import InvalidRequest, ProviderError
from stentor.domains.llm.model import (
    ChatReply,
    ChatRequest,
    EmbeddingInput,
    EmbeddingReply,
    ProviderRequest,
    ReplyDelta,
)

FormatName = Literal["openai", "anthropic", "gemini"]
FORMATS: tuple[FormatName, ...] = ("openai", "anthropic", "gemini")
T = TypeVar("T")


class ProviderQuirks(msgspec.Struct, frozen=True):
    """Where servers of one format differ: the name of the token limit, the stream's usage, the header of the key."""

    max_tokens: str = "max_tokens"
    stream_usage: bool = True
    key_header: str = ""


class StreamReader(Protocol):
    """Reads one stream. Raises ProviderError for what is no part of one."""

    def read(self, event: str, data: bytes) -> list[ReplyDelta]: ...


class ProviderFormat(Protocol):
    """Whatever reads an answer raises ProviderError when it is none."""

    MODELS_PATH: str

    def build_headers(self, key: str, quirks: ProviderQuirks) -> dict[str, str]: ...
    def build_chat_request(self, request: ChatRequest, quirks: ProviderQuirks, *, stream: bool) -> ProviderRequest: ...
    def parse_reply(self, body: bytes, model: str) -> ChatReply: ...
    def stream_reader(self) -> StreamReader: ...
    def build_embedding_request(
        self, model: str, inputs: Sequence[EmbeddingInput], dimensions: int | None
    ) -> ProviderRequest:
        """Raises InvalidRequest for what the format has no word for."""
        ...

    def parse_embeddings(self, body: bytes, model: str) -> EmbeddingReply: ...
    def parse_models(self, body: bytes) -> list[str]: ...


@cache
def get_format(name: FormatName) -> ProviderFormat:
    from stentor.domains.llm.formats import anthropic, gemini, openai

    known: dict[FormatName, ProviderFormat] = {"openai": openai, "anthropic": anthropic, "gemini": gemini}
    return known[name]


@cache
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind, float_hook=jsontext.parse_float)


def decode_response(body: bytes, kind: type[T]) -> T:
    """The JSON of an answer in its shape. Raises ProviderError without any of the content."""
    shape: Any = kind
    try:
        jsontext.check_shape(body)
        found: T = _decoder(shape).decode(body)
    except (InvalidRequest, msgspec.MsgspecError, UnicodeError, RecursionError):
        raise ProviderError("The provider's answer does not have the form of its API.") from None
    return found


def convert_vector(numbers: list[Any]) -> list[float]:
    """An embedding that was decoded without its type, which would leave out the decoder's own reading of numbers.

    Raises ProviderError for what is no number.
    """
    try:
        return msgspec.convert(numbers, list[float])
    except msgspec.ValidationError:
        raise ProviderError("The provider's answer does not have the form of its API.") from None


def require_texts(who: str, inputs: Sequence[EmbeddingInput]) -> list[str]:
    """The inputs of one that reads no tokens. Raises InvalidRequest where there are some."""
    found = [given for given in inputs if isinstance(given, str)]
    if len(found) != len(inputs):
        fields = {"input": "must be a text or a list of texts"}
        raise InvalidRequest(f"{who} embeds texts only: send them instead of their tokens.", {"fields": fields})
    return found


def decode_arguments(text: str) -> Any:
    """A call's arguments as the object that other formats want; what a model garbled goes as text."""
    try:
        value = json.loads(text or "{}")
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else {"arguments": text}


def omit_none(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
