"""What a note says: its fields, title, tags, links and sections. Pure functions."""
