"""Files of notes: paths, reads and conditional writes, frontmatter, three-way merges."""
