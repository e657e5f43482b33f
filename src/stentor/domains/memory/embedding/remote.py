"""A service that speaks OpenAI's embeddings API. Its address is the operator's, so it may be a private one."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stentor.domains.memory.embedding.embedder import EmbeddingUnavailable, Vectors

if TYPE_CHECKING:
    import aiohttp

BATCH_SIZE = 64
MAX_ATTEMPTS = 3
MAX_RETRY_AFTER_SECONDS = 10.0
"""Seconds that a Retry-After is heeded for."""
MAX_TOKENS = 512
_BUSY = {429, 500, 502, 503, 504}
_TOTAL, _CONNECT = 60, 5
"""Seconds."""


class RemoteEmbedder:
    """Implements the port `Embedder`. Tokens are estimated: four characters, or one sign that is not ASCII."""

    def __init__(self, url: str, model: str, key: str = "") -> None:
        self._url = f"{url.rstrip('/')}/embeddings"
        self._model = model
        self._key = key
        self._dimensions = 0
        self._session: aiohttp.ClientSession | None = None

    @property
    def identity(self) -> str:
        return f"{self._model}@{self._url}"

    @property
    def dimensions(self) -> int:
        return self._dimensions

    @property
    def max_tokens(self) -> int:
        return MAX_TOKENS

    async def load(self) -> None:
        """Ask for one vector, to know how long they are."""
        if not self._dimensions:
            self._dimensions = len((await self._ask(["dimensions"]))[0])

    def count(self, text: str) -> int:
        plain = sum(c.isascii() for c in text)
        return math.ceil(plain / 4) + len(text) - plain

    async def embed(self, texts: Sequence[str], *, urgent: bool = False) -> Vectors:
        import numpy as np

        await self.load()
        rows: list[list[float]] = []
        for at in range(0, len(texts), BATCH_SIZE):
            rows += await self._ask(list(texts[at : at + BATCH_SIZE]))
        if any(len(row) != self._dimensions for row in rows):
            raise EmbeddingUnavailable(f"{self._url} answered vectors of different lengths.")
        vectors = np.asarray(rows, np.float32).reshape(len(rows), self._dimensions)
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        scaled: Vectors = vectors / np.maximum(lengths, np.float32(1e-12))
        return scaled

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _ask(self, texts: list[str]) -> list[list[float]]:
        import aiohttp  # a fifth of all imports at the start, for this embedder only

        body = {"model": self._model, "input": [text or " " for text in texts], "encoding_format": "float"}
        for attempt in range(MAX_ATTEMPTS):
            try:
                status, answer, wait = await self._post(body)
            except (aiohttp.ClientError, TimeoutError, ValueError) as error:
                raise EmbeddingUnavailable(f"{self._url} cannot be asked ({type(error).__name__}).") from None
            if status == 200:
                return _vectors(answer, len(texts), self._url)
            if status not in _BUSY:
                break
            await asyncio.sleep(min(MAX_RETRY_AFTER_SECONDS, wait if wait is not None else 0.5 * 2**attempt))
        raise EmbeddingUnavailable(f"{self._url} answered {status}.")

    async def _post(self, body: dict[str, Any]) -> tuple[int, Any, float | None]:
        import aiohttp

        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=_TOTAL, connect=_CONNECT)
            headers = {"Authorization": f"Bearer {self._key}"} if self._key else {}
            self._session = aiohttp.ClientSession(headers=headers, timeout=timeout, trust_env=False)
        async with self._session.post(self._url, json=body, allow_redirects=False) as answer:
            wait = answer.headers.get("Retry-After", "")
            content = await answer.json(content_type=None) if answer.status == 200 else None
            return answer.status, content, float(wait) if wait.isdigit() else None


def _vectors(answer: Any, count: int, url: str) -> list[list[float]]:
    """In the order of the texts, whatever order they came in."""
    try:
        rows = sorted(answer["data"], key=lambda row: row["index"])
        vectors = [[float(number) for number in row["embedding"]] for row in rows]
    except (TypeError, KeyError, ValueError):
        raise EmbeddingUnavailable(f"{url} did not answer in the form of OpenAI's embeddings.") from None
    if len(vectors) != count or not all(vectors):
        raise EmbeddingUnavailable(f"{url} answered {len(vectors)} vectors for {count} texts.")
    return vectors
