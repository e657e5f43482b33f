"""Note files: paths, reads and conditional writes, frontmatter, three-way merges."""
