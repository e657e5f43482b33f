"""A sentence model on this machine: ONNX Runtime, one thread for those who wait and one for the rest."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from stentor.domains.memory.embedding import files
from stentor.domains.memory.embedding.model import EmbeddingUnavailable, Vectors

MAX_TOKENS = 256


class LocalEmbedder:
    """Implements the port `Embedder`. Nothing is loaded before the first use."""

    def __init__(self, cache: Path, folder: Path | None = None) -> None:
        self._cache = cache
        self._folder = folder
        self._loaded = asyncio.Lock()
        self._session: Any = None
        self._tokenizer: Any = None
        self._identity = ""
        self._dimensions = 0
        self._urgent = ThreadPoolExecutor(1, thread_name_prefix="stentor-embed-query")
        self._bulk = ThreadPoolExecutor(1, thread_name_prefix="stentor-embed-bulk", initializer=_give_way)

    @property
    def identity(self) -> str:
        return self._identity

    @property
    def dimensions(self) -> int:
        return self._dimensions

    @property
    def max_tokens(self) -> int:
        return MAX_TOKENS

    async def load(self) -> None:
        async with self._loaded:
            if self._session is None:
                await asyncio.get_running_loop().run_in_executor(self._urgent, self._load)

    def count(self, text: str) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)

    async def embed(self, texts: Sequence[str], *, urgent: bool = False) -> Vectors:
        await self.load()
        pool = self._urgent if urgent else self._bulk
        return await asyncio.get_running_loop().run_in_executor(pool, self._embed, list(texts))

    async def close(self) -> None:
        for pool in (self._urgent, self._bulk):
            pool.shutdown(wait=True, cancel_futures=True)
        self._session = None

    def _load(self) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise EmbeddingUnavailable(f"The package {error.name} is missing: pip install 'stentor'.") from None
        found = files.find(self._folder)
        path, identity = files.graph(found, self._cache)
        session = self._open(path) or self._open(self._again(path, found))
        if session is None:
            raise EmbeddingUnavailable(f"The prepared model {path} cannot be loaded.")
        tokenizer = Tokenizer.from_file(str(found.tokenizer))
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self._tokenizer, self._identity = tokenizer, identity
        self._dimensions = session.get_outputs()[0].shape[1]
        self._session = session

    def _again(self, path: Path, found: files.ModelFiles) -> Path:
        path.unlink(missing_ok=True)
        return files.graph(found, self._cache)[0]

    def _open(self, path: Path) -> Any:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        try:
            return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception:  # noqa: BLE001 - the runtime has errors of many kinds for a damaged file
            return None

    def _embed(self, texts: list[str]) -> Vectors:
        """One by one: in 8 bits the numbers of a text would depend on the texts beside it, and little time is lost."""
        import numpy as np

        vectors = np.empty((len(texts), self._dimensions), np.float32)
        for row, text in enumerate(texts):
            ids = np.array([self._tokens(text)], np.int64)
            vectors[row] = self._session.run(["vectors"], {"ids": ids, "mask": np.ones_like(ids)})[0][0]
        return vectors

    def _tokens(self, text: str) -> list[int]:
        """Cut to the model's length; the last token stays the end mark."""
        ids = list(self._tokenizer.encode(text).ids)
        return ids if len(ids) <= MAX_TOKENS else [*ids[: MAX_TOKENS - 1], ids[-1]]


def _give_way() -> None:
    """Requests come before work in the background, where the system has priorities for threads."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
