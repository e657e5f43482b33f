"""Exports the weights of a BERT sentence model as a quantized ONNX graph: encoder, mean pooling, normalization.

A command with the arguments WEIGHTS HEADS TARGET. `local` runs it once per model as a process of its own, because it
needs half a gigabyte of memory.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

MAX_HEADER_BYTES = 10_000_000
Tensors = Mapping[str, NDArray[np.float32]]
OPSET = 17
EPSILON = 1e-12
MASKED = -10_000.0
"""Added to the attention to padding, which makes its softmax practically 0."""


def read_safetensors(path: Path) -> dict[str, NDArray[np.float32]]:
    """Return all tensors by name, as 32-bit floats. Raises ValueError if it is not a safetensors file.

    The format: the header's length in eight bytes, the header in JSON, the raw numbers.
    """
    raw = path.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    if len(raw) < 8 or length > min(MAX_HEADER_BYTES, len(raw)):
        raise ValueError(f"{path} is not a safetensors file")
    header = json.loads(raw[8 : 8 + length])
    start = 8 + length
    return {name: _tensor(raw, start, entry) for name, entry in header.items() if name != "__metadata__"}


def _tensor(raw: bytes, start: int, entry: dict[str, Any]) -> NDArray[np.float32]:
    dtypes: dict[str, Any] = {"F32": np.float32, "F16": np.float16, "I64": np.int64}
    begin, end = entry["data_offsets"]
    dtype = dtypes.get(entry["dtype"])
    if dtype is None or start + end > len(raw):
        raise ValueError(f"a tensor of the type {entry['dtype']} cannot be read")
    flat = np.frombuffer(raw, dtype, (end - begin) // np.dtype(dtype).itemsize, start + begin)
    return flat.reshape(tuple(entry["shape"])).astype(np.float32)


class GraphBuilder:
    """Collects nodes and constants; each method returns the name of its node's output."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def add_node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **attributes))
        return name

    def add_constant(self, value: Any, kind: Any = np.float32) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, kind), name))
        return name

    def add_linear(self, x: str, weight: NDArray[np.float32], bias: NDArray[np.float32]) -> str:
        product = self.add_node("MatMul", x, self.add_constant(np.ascontiguousarray(weight.T)))
        return self.add_node("Add", product, self.add_constant(bias))

    def add_layer_norm(self, x: str, tensors: Tensors, prefix: str) -> str:
        scale, bias = (self.add_constant(tensors[f"{prefix}.LayerNorm.{part}"]) for part in ("weight", "bias"))
        return self.add_node("LayerNormalization", x, scale, bias, axis=-1, epsilon=EPSILON)


def build_graph(tensors: Tensors, heads: int) -> onnx.ModelProto:
    """Build the graph: inputs `ids` and `mask` (batch, tokens) of int64; output `vectors` (batch, dimensions).

    Raises KeyError for missing weights.
    """
    b = GraphBuilder()
    x = _embeddings(b, tensors)
    mask = b.add_node("Cast", "mask", to=TensorProto.FLOAT)
    attention_bias = _attention_bias(b, mask)
    layer = 0
    # The weights say how many layers there are, so that no config has to be trusted.
    while f"encoder.layer.{layer}.attention.self.query.weight" in tensors:
        x = _layer(b, tensors, f"encoder.layer.{layer}", x, attention_bias, heads)
        layer += 1
    _mean_pooling(b, x, mask)
    width = tensors["embeddings.word_embeddings.weight"].shape[1]
    shape = ["batch", "words"]
    graph = helper.make_graph(
        b.nodes,
        "sentence",
        [helper.make_tensor_value_info(name, TensorProto.INT64, shape) for name in ("ids", "mask")],
        [helper.make_tensor_value_info("vectors", TensorProto.FLOAT, ["batch", width])],
        b.constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)


def _embeddings(b: GraphBuilder, tensors: Tensors) -> str:
    # In 16 bits: the word table takes most of the model's memory.
    table = b.add_constant(tensors["embeddings.word_embeddings.weight"], np.float16)
    words = b.add_node("Cast", b.add_node("Gather", table, "ids"), to=TensorProto.FLOAT)
    # A single sentence always has the first token type, so its embedding is added to the positions here.
    positions = tensors["embeddings.position_embeddings.weight"] + tensors["embeddings.token_type_embeddings.weight"][0]
    count = b.add_node("Gather", b.add_node("Shape", "ids"), b.add_constant([1], np.int64))
    zero = b.add_constant([0], np.int64)
    used_positions = b.add_node("Slice", b.add_constant(positions), zero, count, zero)
    return b.add_layer_norm(b.add_node("Add", words, used_positions), tensors, "embeddings")


def _attention_bias(b: GraphBuilder, mask: str) -> str:
    """Return what is added to the attention to each position: 0, or MASKED for padding."""
    padding = b.add_node("Sub", b.add_constant(1.0), mask)
    broadcast = b.add_node("Unsqueeze", padding, b.add_constant([1, 2], np.int64))
    return b.add_node("Mul", broadcast, b.add_constant(MASKED))


def _layer(b: GraphBuilder, tensors: Tensors, prefix: str, x: str, attention_bias: str, heads: int) -> str:
    attended = _attention(b, tensors, f"{prefix}.attention", x, attention_bias, heads)
    x = b.add_layer_norm(b.add_node("Add", x, attended), tensors, f"{prefix}.attention.output")
    inner = _gelu(b, b.add_linear(x, *_pair(tensors, f"{prefix}.intermediate.dense")))
    outer = b.add_linear(inner, *_pair(tensors, f"{prefix}.output.dense"))
    return b.add_layer_norm(b.add_node("Add", x, outer), tensors, f"{prefix}.output")


def _attention(b: GraphBuilder, tensors: Tensors, prefix: str, x: str, attention_bias: str, heads: int) -> str:
    weight, bias = _pair(tensors, f"{prefix}.self.query")
    width = weight.shape[0]
    # The attention is scaled in the weights of the query, which saves a node per layer.
    scale = np.float32((width // heads) ** -0.5)
    split = b.add_constant([0, 0, heads, width // heads], np.int64)

    def by_head(projected: str, order: list[int]) -> str:
        return b.add_node("Transpose", b.add_node("Reshape", projected, split), perm=order)

    query = by_head(b.add_linear(x, weight * scale, bias * scale), [0, 2, 1, 3])
    key = by_head(b.add_linear(x, *_pair(tensors, f"{prefix}.self.key")), [0, 2, 3, 1])
    value = by_head(b.add_linear(x, *_pair(tensors, f"{prefix}.self.value")), [0, 2, 1, 3])
    weights = b.add_node("Softmax", b.add_node("Add", b.add_node("MatMul", query, key), attention_bias), axis=-1)
    context = b.add_node("Transpose", b.add_node("MatMul", weights, value), perm=[0, 2, 1, 3])
    joined = b.add_node("Reshape", context, b.add_constant([0, 0, width], np.int64))
    return b.add_linear(joined, *_pair(tensors, f"{prefix}.output.dense"))


def _gelu(b: GraphBuilder, x: str) -> str:
    error = b.add_node("Erf", b.add_node("Mul", x, b.add_constant(2**-0.5)))
    return b.add_node("Mul", b.add_node("Mul", x, b.add_constant(0.5)), b.add_node("Add", error, b.add_constant(1.0)))


def _mean_pooling(b: GraphBuilder, x: str, mask: str) -> None:
    axis = b.add_constant([1], np.int64)
    weights = b.add_node("Unsqueeze", mask, b.add_constant([2], np.int64))
    total = b.add_node("ReduceSum", b.add_node("Mul", x, weights), axis, keepdims=0)
    mean = b.add_node("Div", total, b.add_node("ReduceSum", mask, axis, keepdims=1))
    length = b.add_node("Max", b.add_node("ReduceL2", mean, axes=[1], keepdims=1), b.add_constant(1e-12))
    b.nodes.append(helper.make_node("Div", [mean, length], ["vectors"], name="vectors"))


def _pair(tensors: Tensors, prefix: str) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    return tensors[f"{prefix}.weight"], tensors[f"{prefix}.bias"]


def export_model(source: Path, heads: int, target: Path) -> None:
    """Write the quantized graph of a model. Raises ValueError and KeyError if the weights are not a BERT's.

    Quantizes only the products with weights, per channel: an 8-bit word embedding table would cost accuracy.
    """
    model = build_graph(read_safetensors(source), heads)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        whole, small = Path(folder) / "whole.onnx", Path(folder) / "small.onnx"
        onnx.save(model, str(whole))
        quantize_dynamic(whole, small, op_types_to_quantize=["MatMul"], per_channel=True, weight_type=QuantType.QInt8)
        # Renamed only when complete: another process may look for the file at any time.
        small.replace(target)


if __name__ == "__main__":
    logging.disable()
    try:
        export_model(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
    except (ValueError, KeyError) as error:
        sys.exit(f"the file is not a sentence model of the BERT type ({type(error).__name__}: {error})")
