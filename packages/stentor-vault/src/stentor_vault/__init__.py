"""A vault: a folder of Markdown notes that people and programs edit at the same time, and a server for it.

- `notes` reads and writes the files: atomically, with the expected state as a condition, and byte for byte.
- `text` reads what a note says: fields, title, tags, links, sections.
- `server` is an ASGI application with the REST API of Obsidian's plugin "Local REST API".

`stentor-vault FOLDER` serves a folder (`command`).
"""

__version__ = "0.2.0"
