"""The search index: documents, keywords and vectors derived from the vault. It can be rebuilt at any time."""
