"""Memory: documents in the vault, found by word and by meaning, changed without losing an edit."""
