"""The search index: a copy of what is in the vault, made for searching, that may be deleted at any time."""
