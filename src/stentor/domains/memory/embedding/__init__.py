"""Embedding of texts: by a local ONNX model, or by a service with OpenAI's embeddings API."""
