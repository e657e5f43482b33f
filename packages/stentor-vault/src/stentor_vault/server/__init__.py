"""A headless vault server: the REST API of Obsidian's "Local REST API" plugin over a plain folder."""
