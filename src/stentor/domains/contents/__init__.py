"""Contents by their SHA-256: each is stored once, whichever steps, items and values of sessions refer to it."""
