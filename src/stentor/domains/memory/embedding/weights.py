"""Tensors of a safetensors file: eight bytes of length, a JSON header, raw numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_HEADER = 10_000_000


def read(path: Path) -> dict[str, NDArray[np.float32]]:
    """All tensors by name, as 32-bit floats. Raises ValueError for anything that is no such file."""
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    if len(raw) < 8 or length > min(MAX_HEADER, len(raw)):
        raise ValueError(f"{path} is no safetensors file")
    header = json.loads(raw[8 : 8 + length])
    start = 8 + length
    return {name: _tensor(raw, start, entry) for name, entry in header.items() if name != "__metadata__"}


def _tensor(raw: bytes, start: int, entry: dict[str, Any]) -> NDArray[np.float32]:
    kinds: dict[str, Any] = {"F32": np.float32, "F16": np.float16, "I64": np.int64}
    begin, end = entry["data_offsets"]
    kind = kinds.get(entry["dtype"])
    if kind is None or start + end > len(raw):
        raise ValueError(f"a tensor of the kind {entry['dtype']} cannot be read")
    flat = np.frombuffer(raw, kind, (end - begin) // np.dtype(kind).itemsize, start + begin)
    return flat.reshape(tuple(entry["shape"])).astype(np.float32)
