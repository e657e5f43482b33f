"""Notes: a vault of Markdown files that people and agents edit."""
