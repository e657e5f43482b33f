"""The ONNX graph of a BERT sentence model, built from its weights: encoder, mean over the words, length 1.

Source: facts of the embedding ("The local embedding model").
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Tensors = Mapping[str, NDArray[np.float32]]
OPSET = 17
EPSILON = 1e-12
MASKED = -10_000.0


class Builder:
    """Collects nodes and constants; `add` answers the name of a node's result."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **attributes))
        return name

    def constant(self, value: Any, kind: Any = np.float32) -> str:
        name = f"constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(value, kind), name))
        return name

    def linear(self, x: str, weight: NDArray[np.float32], bias: NDArray[np.float32]) -> str:
        product = self.add("MatMul", x, self.constant(np.ascontiguousarray(weight.T)))
        return self.add("Add", product, self.constant(bias))

    def norm(self, x: str, tensors: Tensors, prefix: str) -> str:
        scale, bias = (self.constant(tensors[f"{prefix}.LayerNorm.{part}"]) for part in ("weight", "bias"))
        return self.add("LayerNormalization", x, scale, bias, axis=-1, epsilon=EPSILON)


def build(tensors: Tensors, heads: int) -> onnx.ModelProto:
    """Inputs `ids` and `mask` (batch, words) of int64; output `vectors` (batch, width).

    Raises KeyError for missing weights.
    """
    b = Builder()
    x = _embeddings(b, tensors)
    mask = b.add("Cast", "mask", to=TensorProto.FLOAT)
    penalty = _penalty(b, mask)
    layer = 0
    while f"encoder.layer.{layer}.attention.self.query.weight" in tensors:
        x = _layer(b, tensors, f"encoder.layer.{layer}", x, penalty, heads)
        layer += 1
    _pooled(b, x, mask)
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


def _embeddings(b: Builder, tensors: Tensors) -> str:
    words = b.add("Gather", b.constant(tensors["embeddings.word_embeddings.weight"]), "ids")
    # One sentence alone is always of the first type.
    places = tensors["embeddings.position_embeddings.weight"] + tensors["embeddings.token_type_embeddings.weight"][0]
    count = b.add("Gather", b.add("Shape", "ids"), b.constant([1], np.int64))
    zero = b.constant([0], np.int64)
    here = b.add("Slice", b.constant(places), zero, count, zero)
    return b.norm(b.add("Add", words, here), tensors, "embeddings")


def _penalty(b: Builder, mask: str) -> str:
    """What is added to the attention to a place: nothing, or so much that nobody looks there."""
    missing = b.add("Sub", b.constant(1.0), mask)
    wide = b.add("Unsqueeze", missing, b.constant([1, 2], np.int64))
    return b.add("Mul", wide, b.constant(MASKED))


def _layer(b: Builder, tensors: Tensors, prefix: str, x: str, penalty: str, heads: int) -> str:
    attended = _attention(b, tensors, f"{prefix}.attention", x, penalty, heads)
    x = b.norm(b.add("Add", x, attended), tensors, f"{prefix}.attention.output")
    inner = _gelu(b, b.linear(x, *_pair(tensors, f"{prefix}.intermediate.dense")))
    outer = b.linear(inner, *_pair(tensors, f"{prefix}.output.dense"))
    return b.norm(b.add("Add", x, outer), tensors, f"{prefix}.output")


def _attention(b: Builder, tensors: Tensors, prefix: str, x: str, penalty: str, heads: int) -> str:
    weight, bias = _pair(tensors, f"{prefix}.self.query")
    width = weight.shape[0]
    scale = np.float32((width // heads) ** -0.5)
    split = b.constant([0, 0, heads, width // heads], np.int64)

    def by_head(projected: str, order: list[int]) -> str:
        return b.add("Transpose", b.add("Reshape", projected, split), perm=order)

    query = by_head(b.linear(x, weight * scale, bias * scale), [0, 2, 1, 3])
    key = by_head(b.linear(x, *_pair(tensors, f"{prefix}.self.key")), [0, 2, 3, 1])
    value = by_head(b.linear(x, *_pair(tensors, f"{prefix}.self.value")), [0, 2, 1, 3])
    shares = b.add("Softmax", b.add("Add", b.add("MatMul", query, key), penalty), axis=-1)
    mixed = b.add("Transpose", b.add("MatMul", shares, value), perm=[0, 2, 1, 3])
    joined = b.add("Reshape", mixed, b.constant([0, 0, width], np.int64))
    return b.linear(joined, *_pair(tensors, f"{prefix}.output.dense"))


def _gelu(b: Builder, x: str) -> str:
    error = b.add("Erf", b.add("Mul", x, b.constant(2**-0.5)))
    return b.add("Mul", b.add("Mul", x, b.constant(0.5)), b.add("Add", error, b.constant(1.0)))


def _pooled(b: Builder, x: str, mask: str) -> None:
    axis = b.constant([1], np.int64)
    shares = b.add("Unsqueeze", mask, b.constant([2], np.int64))
    total = b.add("ReduceSum", b.add("Mul", x, shares), axis, keepdims=0)
    mean = b.add("Div", total, b.add("ReduceSum", mask, axis, keepdims=1))
    length = b.add("Max", b.add("ReduceL2", mean, axes=[1], keepdims=1), b.constant(1e-12))
    b.nodes.append(helper.make_node("Div", [mean, length], ["vectors"], name="vectors"))


def _pair(tensors: Tensors, prefix: str) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    return tensors[f"{prefix}.weight"], tensors[f"{prefix}.bias"]
