"""Embedding by a service with OpenAI's embeddings API.

The operator configures its address, so unlike addresses from users it may be a private one.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stentor.core import jsontext
from stentor.core.errors import InvalidRequest
from stentor.core.http_client.outbound import read_body
from stentor.core.jsontext import JsonObject
from stentor.core.lazy_import import lazy_module
from stentor.domains.memory.embedding.embedder import EmbeddingUnavailable, Vectors

if TYPE_CHECKING:
    import aiohttp
    import numpy as np
else:
    aiohttp = lazy_module("aiohttp")
    np = lazy_module("numpy")

BATCH_SIZE = 64
MAX_ATTEMPTS = 3
MAX_RETRY_AFTER_SECONDS = 10.0
"""Upper bound of a Retry-After."""
MAX_RESPONSE_BYTES = 32 * 1024 * 1024
MAX_TOKENS = 512
_RETRYABLE_STATUSES = {429, 500, 502, 503, 504}
_REFUSED_STATUSES = {400, 413, 422}
"""What services answer to a text that is too long for their model, or to too many texts."""
_SHORTENED_DIVISORS = (2, 4, 8)
"""The parts of a refused text that are tried, from its beginning."""
log = logging.getLogger(__name__)
_TOTAL_TIMEOUT_SECONDS, _CONNECT_TIMEOUT_SECONDS = 60, 5


class RemoteEmbedder:
    """Implements `Embedder`. Tokens are estimated: one per four ASCII characters, and one per other character.

    Code and the like have more tokens, so a text that the service refuses is shortened.
    """

    def __init__(self, url: str, model: str, key: str = "") -> None:
        self._url = f"{url.rstrip('/')}/embeddings"
        self._model = model
        self._key = key
        self._dimensions = 0
        self._session: aiohttp.ClientSession | None = None
        self._refusal = 0
        """The status with which a request was refused last."""

    @property
    def identity(self) -> str:
        return f"{self._model}@{self._url}"

    @property
    def dimensions(self) -> int:
        return self._dimensions

    @property
    def max_tokens(self) -> int:
        return MAX_TOKENS

    async def is_prepared(self) -> bool:
        return True

    async def load(self) -> None:
        """Request one embedding, to learn the number of dimensions."""
        if not self._dimensions:
            self._dimensions = len((await self._request(["dimensions"]))[0])

    def count(self, text: str) -> int:
        ascii_chars = sum(c.isascii() for c in text)
        return math.ceil(ascii_chars / 4) + len(text) - ascii_chars

    async def embed(self, texts: Sequence[str], *, urgent: bool = False) -> Vectors:
        await self.load()
        rows: list[list[float]] = []
        for start in range(0, len(texts), BATCH_SIZE):
            rows += await self._embed_accepted(list(texts[start : start + BATCH_SIZE]))
        if any(len(row) != self._dimensions for row in rows):
            raise EmbeddingUnavailable(f"{self._url} returned embeddings of different lengths.")
        vectors = np.asarray(rows, np.float32).reshape(len(rows), self._dimensions)
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        scaled: Vectors = np.divide(vectors, np.maximum(lengths, np.float32(1e-12)), dtype=np.float32)
        return scaled

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _embed_accepted(self, texts: list[str]) -> list[list[float]]:
        """Embed texts together, and after a refusal each half by itself, so that one text holds up no other."""
        if (rows := await self._request_unless_refused(texts)) is not None:
            return rows
        if len(texts) == 1:
            return await self._embed_shortened(texts[0])
        middle = len(texts) // 2
        return await self._embed_accepted(texts[:middle]) + await self._embed_accepted(texts[middle:])

    async def _embed_shortened(self, text: str) -> list[list[float]]:
        for divisor in _SHORTENED_DIVISORS:
            rows = await self._request_unless_refused([text[: len(text) // divisor]])
            if rows is not None:
                return rows
        # Refused because of its content. If this request fails too, the text is not the reason.
        rows = await self._request([""])
        log.warning("embedding: text rejected at any length url=%s characters=%d", self._url, len(text))
        return rows

    async def _request(self, texts: list[str]) -> list[list[float]]:
        rows = await self._request_unless_refused(texts)
        if rows is None:
            # The reason is not the texts, which are short: perhaps it is the name of the model.
            raise EmbeddingUnavailable(f"{self._url} returned status {self._refusal}.")
        return rows

    async def _request_unless_refused(self, texts: list[str]) -> list[list[float]] | None:
        """Return None if the service rejects this request, and may accept others."""
        # Services reject an empty text.
        body = {"model": self._model, "input": [text or " " for text in texts], "encoding_format": "float"}
        for attempt in range(MAX_ATTEMPTS):
            try:
                status, response, retry_after = await self._post(body)
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                raise EmbeddingUnavailable(f"{self._url} cannot be reached ({type(error).__name__}).") from None
            if status == 200:
                return _parse_vectors(response, len(texts), self._url)
            if status in _REFUSED_STATUSES:
                self._refusal = status
                return None
            if status not in _RETRYABLE_STATUSES:
                break
            delay = retry_after if retry_after is not None else 0.5 * 2**attempt
            await asyncio.sleep(min(MAX_RETRY_AFTER_SECONDS, delay))
        raise EmbeddingUnavailable(f"{self._url} returned status {status}.")

    async def _post(self, body: JsonObject) -> tuple[int, Any, float | None]:
        """Return the status, the parsed body of a 200, and the Retry-After in seconds."""
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=_TOTAL_TIMEOUT_SECONDS, connect=_CONNECT_TIMEOUT_SECONDS)
            headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
            self._session = aiohttp.ClientSession(headers=headers, timeout=timeout, trust_env=False)
        # No redirects: the key must not go to an address that the operator did not configure.
        async with self._session.post(self._url, json=body, allow_redirects=False) as response:
            retry_after = response.headers.get("Retry-After", "")
            content = None
            if response.status == 200:
                if (data := await read_body(response, MAX_RESPONSE_BYTES)) is None:
                    raise EmbeddingUnavailable(f"{self._url} returned more than {MAX_RESPONSE_BYTES} bytes.")
                try:
                    content = jsontext.decode(data)
                except InvalidRequest:
                    raise EmbeddingUnavailable(f"{self._url} returned a body that is not valid JSON.") from None
            return response.status, content, float(retry_after) if retry_after.isdigit() else None


def _parse_vectors(response: Any, count: int, url: str) -> list[list[float]]:
    """Return the embeddings in the order of the texts; the response may have any order."""
    try:
        rows = sorted(response["data"], key=lambda row: row["index"])
        vectors = [[float(number) for number in row["embedding"]] for row in rows]
    except (TypeError, KeyError, ValueError):
        raise EmbeddingUnavailable(f"{url} did not respond in the format of OpenAI's embeddings API.") from None
    if len(vectors) != count or not all(vectors):
        raise EmbeddingUnavailable(f"{url} returned {len(vectors)} embeddings for {count} texts.")
    return vectors
