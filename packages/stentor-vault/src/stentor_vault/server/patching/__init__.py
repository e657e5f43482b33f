"""Edits of parts of a note: headings, blocks, frontmatter fields. Pure functions from text to text."""
