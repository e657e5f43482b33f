"""Text processing for search: terms, excerpts and passages, and chunks for embedding. Pure."""
