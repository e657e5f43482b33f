"""Embedding of texts: by a local ONNX model, or by a service with OpenAI's embeddings API."""

import os

# From 1.29 on ONNX Runtime reports to its vendor, and keeps an id of the machine in the home folder, unless this is set
# before it is imported. Stentor sends no telemetry unless the user asks for it.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
