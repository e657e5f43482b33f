"""Text as the search sees it: words, excerpts, chunks. Pure."""
