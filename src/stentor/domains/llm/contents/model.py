"""What is kept of a request or a response: its text, redacted, without images, and not longer than a limit. No I/O.

`Content` takes the bytes that were sent or received. Its `texts` are masked by the caller, and `finish` puts them back.
JSON stays JSON, and bytes in which nothing was changed stay as they are, so that their SHA-256 is that of the run log.
"""

from __future__ import annotations

import base64
import hashlib
import re
import zlib
from binascii import Error as Base64Error
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from stentor.core import jsontext

MAX_CHARS = 256 * 1024
"""Characters of all texts of a request or a response."""
MAX_TEXT_CHARS = 64 * 1024
"""Characters of one text. A longer one is cut."""
MARGIN = 24 * 1024
"""Characters beyond the cut in which secrets are masked too, so that half of one cannot remain at the cut."""
MAX_BYTES = 1024 * 1024
"""Largest request or response that is kept, whatever it consists of, such as a list of numbers."""
MAX_STORED_BYTES = 4 * MAX_BYTES
"""Decompression stops here; only a damaged row is larger."""
_DATA_URL = re.compile(r"data:([\w.+/-]{0,100})(?:;[\w=.+-]{1,60}){0,3};base64,([A-Za-z0-9+/=_-]*)")
_MEDIA_TYPE_FIELDS = ("media_type", "mimeType", "mime_type", "format")
_BASE64 = re.compile(r"[A-Za-z0-9+/=_\s-]{40,}")
_URL_SAFE = str.maketrans("-_", "+/")
SPLIT_TEXT = "[not kept: log probabilities]"
"""Stands for the tokens of a reply and their bytes, between which a secret could be split."""
MIN_NUMBER = 10_000
"""Smaller numbers are not masked."""


class KeptText(msgspec.Struct, frozen=True):
    """What is stored of a request or a response. `data` is compressed."""

    data: bytes
    redacted: bool = False
    truncated: bool = False


class CallContent(msgspec.Struct, frozen=True):
    """What is stored of a call; None for what the call did not have."""

    request: KeptText | None
    response: KeptText | None


class Content:
    """A request or a response on its way into the database."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.texts: list[str] = []
        """What has to be masked."""
        self.truncated = False
        self._is_json = True
        try:
            # As JSON, so that a secret that is written with escapes is found too.
            value = jsontext.decode(data)
        except Exception:  # noqa: BLE001 - any bytes may come from a provider
            self._is_json, value = False, data.decode("utf-8", "replace")
        self._room = MAX_CHARS
        self._cut: set[int] = set()
        self._original = value
        self._value = _map_texts(_describe_files(value), self._collect)

    def finish(self, texts: list[str]) -> KeptText:
        """Return what is stored, with the masked `texts` in the place of the original ones."""
        masked = self._cut_texts(texts)
        value = _map_texts(self._value, lambda _: next(masked))
        if not self._is_json:
            encoded = str(value).encode()
        else:
            encoded = self._data if value == self._original else jsontext.encode(value)
        if len(encoded) > MAX_BYTES:
            encoded, self.truncated = jsontext.encode(f"[not kept: {len(self._data)} bytes]"), True
        return KeptText(compress(encoded), texts != self.texts, self.truncated)

    def _collect(self, text: str) -> str:
        limit = min(MAX_TEXT_CHARS, self._room)
        if len(text) > limit:
            self._cut.add(len(self.texts))
            self.truncated = True
            text = text[: limit + MARGIN] if limit else ""
        self._room -= min(len(text), limit)
        self.texts.append(text)
        return text

    def _cut_texts(self, texts: list[str]) -> Iterator[str]:
        for index, text in enumerate(texts):
            # The end may contain part of a secret that the first cut split.
            yield text[: min(MAX_TEXT_CHARS, max(0, len(text) - MARGIN))] if index in self._cut else text


def compress(text: bytes) -> bytes:
    # Level 1: it runs at the end of every call that is kept, so speed matters more than size.
    return zlib.compress(text, 1)


def decompress(data: bytes) -> str:
    # With a limit: a damaged or forged row could expand without end.
    return zlib.decompressobj().decompress(data, MAX_STORED_BYTES).decode("utf-8", "replace")


def _map_texts(value: Any, replace: Callable[[str], str]) -> Any:
    """Return a copy with each text replaced, always in the same order. Long numbers are texts too."""
    if isinstance(value, str):
        return replace(value)
    if isinstance(value, list):
        return [_map_texts(item, replace) for item in value]
    if isinstance(value, dict):
        return {replace(name): _map_texts(item, replace) for name, item in value.items()}
    # Card and telephone numbers also come as JSON numbers.
    if isinstance(value, int) and abs(value) >= MIN_NUMBER:
        text = replace(str(value))
        return value if text == str(value) else text
    return value


def _describe_files(value: Any) -> Any:
    """Return a copy with a description of each image or other file instead of its data."""
    if isinstance(value, str):
        return _DATA_URL.sub(lambda found: describe_file(found[1], found[2]), _unescape(value))
    if isinstance(value, list):
        return [_describe_files(item) for item in value]
    if isinstance(value, dict):
        # The sound of a reply in OpenAI's format names no type.
        media = (
            "audio"
            if "transcript" in value
            else next((value[name] for name in _MEDIA_TYPE_FIELDS if isinstance(value.get(name), str)), None)
        )
        data = value.get("data")
        if isinstance(file := value.get("file_data"), str) and _BASE64.fullmatch(file):
            value = {**value, "file_data": describe_file("", file)}
        described = {
            name: SPLIT_TEXT if name == "logprobs" and isinstance(item, dict) else _describe_files(item)
            for name, item in value.items()
        }
        if media is not None and isinstance(data, str) and _BASE64.fullmatch(data):
            described["data"] = describe_file(media, data)
        return described
    return value


def _unescape(text: str) -> str:
    """Return JSON in a text, such as the arguments of a tool, without escapes that could hide a secret."""
    if text[:1] in ("{", "[") and ("\\u" in text or "\\/" in text):
        value = jsontext.decode_or_none(text.encode("utf-8", "replace"))
        return text if value is None else jsontext.dump(value)
    return text


def describe_file(media_type: str, data: str) -> str:
    """Return what stands for a file in base64: its type, size and hash."""
    try:
        content = base64.b64decode(data.translate(_URL_SAFE) + "=" * (-len(data) % 4))
    except (Base64Error, ValueError):
        content = data.encode("utf-8", "replace")
    return f"[{media_type or 'file'}, {len(content)} bytes, SHA-256 {hashlib.sha256(content).hexdigest()}]"
