"""Texts as vectors: a model on this machine, or a service that speaks OpenAI's embeddings API."""
