"""Makes the graph of a local model: WEIGHTS HEADS TARGET. A process of its own: it takes half a gigabyte, once."""

from __future__ import annotations

import logging
import sys
import tempfile
from pathlib import Path

import onnx
from onnxruntime.quantization import QuantType, quantize_dynamic

from stentor.domains.memory.embedding import graph, weights


def prepare(source: Path, heads: int, target: Path) -> None:
    """Only the products by weights are quantized, by channel: the table of words in 8 bits would cost accuracy.

    Raises ValueError and KeyError when the weights are not those of a BERT.
    """
    model = graph.build(weights.read(source), heads)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        whole, small = Path(folder) / "whole.onnx", Path(folder) / "small.onnx"
        onnx.save(model, str(whole))
        quantize_dynamic(whole, small, op_types_to_quantize=["MatMul"], per_channel=True, weight_type=QuantType.QInt8)
        small.replace(target)


if __name__ == "__main__":
    logging.disable()
    try:
        prepare(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
    except (ValueError, KeyError) as error:
        sys.exit(f"it holds no sentence model of the BERT kind ({type(error).__name__}: {error})")
