"""The pages of the memory: search, notes and their versions, and changes of notes."""
